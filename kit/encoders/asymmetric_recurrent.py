"""Observation groups for recurrent policies: an LSTM for the actor's group, and another for the critic's group.

With enable_critic_lstm=false the critic has a linear layer instead.
"""

from __future__ import annotations

from typing import Any

from sb3_contrib.common.recurrent.policies import RecurrentMultiInputActorCriticPolicy
from torch import nn

from kit.encoders.asymmetric import ActorCriticGroups


class AsymmetricRecurrent(ActorCriticGroups, RecurrentMultiInputActorCriticPolicy):
    """Policy with observation groups for RecurrentPPO."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        width = self.vf_features_extractor.features_dim
        if width == self.features_dim:
            return
        if self.lstm_critic is not None:  # sb3-contrib made it for the actor's number of features
            hidden, layers = self.lstm_critic.hidden_size, self.lstm_critic.num_layers
            self.lstm_critic = nn.LSTM(width, hidden, num_layers=layers, **self.lstm_kwargs)
        else:
            self.critic = nn.Linear(width, self.lstm_output_dim)
        rate = self.optimizer.defaults["lr"]
        self.optimizer = self.optimizer_class(self.parameters(), lr=rate, **self.optimizer_kwargs)  # type: ignore[call-arg]
