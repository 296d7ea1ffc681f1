"""The command line: `show`, `ops` and `doctor`, one module each.

Turns arguments into text on standard output.  It stands above everything else and may look into
every layer; only `pyfuser.__main__` imports it.
"""
