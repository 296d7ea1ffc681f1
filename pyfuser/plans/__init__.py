"""Plans: the calls of a program as straight-line Python, for all sizes that decide alike.

plan.py                  a fusion's plan: checks its inputs, computes sizes, runs the program
program_writer.py        the statements of a program's parts: buffers, launches, torch's calls
launches.py              the launch of one kernel: its arguments, scratch memory, refusals
library_parts.py, library_operations.py, library_calls.py     what torch computes, and views
text.py                  source text: lines, constants, arithmetic on sizes
clock.py                 the statements that time parts, while a profile is made
"""
