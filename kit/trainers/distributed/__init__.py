"""Distributed training: one run in several processes, each with a GPU of its own, started here or by torchrun.

    group       the process group: who is in it, sums and broadcasts
    ppo         PPO whose gradient is the mean over ranks
    follower    what ranks above 0 do from start to end
"""
