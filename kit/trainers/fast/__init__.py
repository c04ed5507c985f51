"""Fast implementations for SB3's default networks: stacked matrices, hand-written gradients, CUDA graphs.

Networks of the same shape (actor and critic, or SAC's critics) are stacked, so that one batched matrix product computes
the same layer of all of them. `Networks`, which supports every policy, is about half as fast.
"""

from __future__ import annotations

from stable_baselines3.common.policies import ActorCriticPolicy

from kit.trainers.networks import Networks


def networks(policy: ActorCriticPolicy) -> Networks:
    """Return the fastest implementation of `Networks` that supports `policy`."""
    from kit.trainers.fast.stacked import StackedActorCritic, can_stack

    return StackedActorCritic(policy) if can_stack(policy) else Networks(policy)
