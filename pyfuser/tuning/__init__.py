"""Feedback from measurement to schedule: measures candidates of kernels, and stores what is better.

session.py    a budget, the results so far, and how costs are measured
programs.py   the kernels of a program, each with its inputs
kernels.py    the candidates of one kernel: made, checked, measured, stored
measuring.py  who is faster: interleaved rounds, and when a difference is more than noise
samples.py    inputs for fusions of which only the metadata is known
report.py     results as text
"""
