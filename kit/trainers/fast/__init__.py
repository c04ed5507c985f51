"""The same arithmetic, quicker: SB3's default networks as stacked matrices, gradients by hand, CUDA graphs.

What trainers see of it are `Networks` that answer as those of `kit.trainers.networks` do, and `StackedSAC`. Every
result is held against SB3's own in the tests; without this room everything works, at about half the speed.
"""

from __future__ import annotations

from stable_baselines3.common.policies import ActorCriticPolicy

from kit.trainers.networks import Networks


def networks(policy: ActorCriticPolicy) -> Networks:
    """The quickest `Networks` that can do what `policy` does."""
    from kit.trainers.fast.stacked import StackedActorCritic, can_stack

    return StackedActorCritic(policy) if can_stack(policy) else Networks(policy)
