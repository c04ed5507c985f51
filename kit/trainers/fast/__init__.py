"""Fast implementations for SB3's default networks: stacked matrices, hand-written gradients, CUDA graphs.

Networks of the same shape (actor and critic, or SAC's critics) are stacked, so that one batched matrix product computes
the same layer of all of them. `Networks`, which supports every policy, is about half as fast.
"""
