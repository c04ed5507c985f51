"""Fast paths for SB3's default networks: stacked matrices, hand-written gradients, CUDA graphs.

Trainers use `StackedActorCritic`, with the interface of `kit.trainers.networks`, and `StackedSAC`. The tests compare
every result with SB3's. Without this package everything works at about half the speed.
"""

from __future__ import annotations

from stable_baselines3.common.policies import ActorCriticPolicy

from kit.trainers.networks import Networks


def networks(policy: ActorCriticPolicy) -> Networks:
    """The fastest `Networks` implementation that supports `policy`."""
    from kit.trainers.fast.stacked import StackedActorCritic, can_stack

    return StackedActorCritic(policy) if can_stack(policy) else Networks(policy)
