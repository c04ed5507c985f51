"""Distributed training: one run in several processes, each with its own GPU, started by rank 0 or by torchrun.

`kit.runs.ranks` has the main function of the ranks above 0.
"""
