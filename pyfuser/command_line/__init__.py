"""The command line: `show`, `profile`, `ops`, `compat` and `doctor`, one module each.

Each turns arguments into text on standard output.  The command line is above everything else and
may look into every layer; only `pyfuser.__main__` imports it.
"""
