"""Distributed training: one run in several processes, each with its own GPU, started by rank 0 or by torchrun.

    group       process group: starting ranks, all-reduce, broadcast, gather
    ppo         PPO whose gradient is the mean over ranks
    rank        main function of the ranks above 0
"""
