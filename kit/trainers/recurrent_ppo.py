"""Recurrent PPO, as in sb3-contrib: an LSTM before the actor and one before the critic.

An update orders the rollout env by env, as sb3-contrib does, and cuts it into minibatches. A minibatch consists of
sequences, which start at its first row and wherever an env or an episode starts, each from the hidden state stored
during the rollout. All sequences go through the LSTM in one padded call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric_recurrent import AsymmetricRecurrent
from kit.envs.obs import Obs, leaves
from kit.envs.play import HiddenState
from kit.errors import UserError, check_whole
from kit.presets import Row
from kit.trainers.actor import Actor
from kit.trainers.algorithm import Algorithm
from kit.trainers.networks import Networks
from kit.trainers.ppo import ProximalTrainer, fit_batch_size
from kit.trainers.rollout import Batch, RecurrentBatch, Rollout
from kit.trainers.saving import State, Values

# The hidden state of an LSTM is one tensor (n, 2, layers, hidden): h and the cell c of each layer.


def zero_state(lstm: torch.nn.LSTM, n: int) -> torch.Tensor:
    """Return the hidden state (n, 2, layers, hidden) at the start of an episode: zeros."""
    return torch.zeros(n, 2, lstm.num_layers, lstm.hidden_size, device=next(lstm.parameters()).device)


def reset_where(hidden_state: torch.Tensor, episode_starts: torch.Tensor) -> torch.Tensor:
    """Zero `hidden_state` (n, ...) where `episode_starts` (n,) is True."""
    return hidden_state.masked_fill(episode_starts.view(-1, 1, 1, 1), 0.0)


def step(lstm: torch.nn.LSTM, features: torch.Tensor, hidden_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Step the LSTM once for all envs: `features` (n, in) -> output (n, hidden) and next hidden state."""
    next_state = []
    for layer, weights in enumerate(lstm.all_weights):
        features, cell = torch.lstm_cell(features, hidden_state[:, :, layer].unbind(1), *weights)
        next_state.append(torch.stack([features, cell], 1))
    return features, torch.stack(next_state, 2)


class Sequences(NamedTuple):
    """Row numbers that arrange a batch's N rows as k padded sequences, (length, k). Outputs of padding are unused."""

    first: torch.Tensor
    """(k,) number of the first row of each sequence."""
    row: torch.Tensor
    """(length, k) number of the row at each time step of each sequence."""
    place: torch.Tensor
    """(N,) position of each row in the flattened layout."""


def sequences(episode_starts: torch.Tensor) -> Sequences:
    """Split a batch into sequences: one starts at the first row, and one at each True of `episode_starts` (N,).

    Synchronises with the GPU, because the number of sequences and the longest length must be known on the CPU.
    """
    rows = torch.arange(len(episode_starts), device=episode_starts.device)
    first = torch.cat([rows[:1], 1 + episode_starts[1:].nonzero().flatten()])
    sequence = torch.bucketize(rows, first, right=True) - 1
    time = rows - first[sequence]
    row = (first + rows[: int(time.max()) + 1].unsqueeze(1)).clamp_(max=len(episode_starts) - 1)
    return Sequences(first, row, time * len(first) + sequence)


def unroll(lstm: torch.nn.LSTM, features: torch.Tensor, hidden_state: torch.Tensor, layout: Sequences) -> torch.Tensor:
    """Run the LSTM over all sequences of `features` (N, in) from `hidden_state` (N, ...); outputs (N, hidden)."""
    padded = features.index_select(0, layout.row.flatten()).view(*layout.row.shape, -1)
    hidden, cell = hidden_state.index_select(0, layout.first).movedim(0, 2).contiguous()
    return lstm(padded, (hidden, cell))[0].flatten(0, 1).index_select(0, layout.place)


class RecurrentNetworks(Networks):
    """Recurrent actor-critic and its hidden state per env; the hidden state is a checkpoint component."""

    policy: RecurrentActorCriticPolicy

    def __init__(self, policy: RecurrentActorCriticPolicy, n_envs: int) -> None:
        super().__init__(policy)
        lstms = {"actor": policy.lstm_actor, "critic": policy.lstm_critic}
        self._lstms: dict[str, torch.nn.LSTM] = {name: lstm for name, lstm in lstms.items() if lstm is not None}
        self._n_envs = n_envs
        self.reset()

    def reset(self) -> None:
        self.hidden_state = {name: zero_state(lstm, self._n_envs) for name, lstm in self._lstms.items()}

    def state(self) -> Values:
        return {name: hidden_state.cpu().clone() for name, hidden_state in self.hidden_state.items()}

    def load_state(self, state: Values) -> None:
        self.hidden_state = {name: state[name].to(self.policy.device) for name in self._lstms}

    # -- rollouts --------------------------------------------------------------------------------------------------

    def sample(self, rollout: Rollout, step: int, obs: Obs) -> torch.Tensor:
        if step:
            self._reset_where(rollout.done[step - 1])
        rollout.store_hidden_state(step, cast(Obs, self.hidden_state))
        latent_pi, latent_vf, self.hidden_state = self._step(obs, self.hidden_state)
        distribution = self._distribution(latent_pi)
        actions = distribution.get_actions()
        rollout.values[step] = self.policy.value_net(latent_vf).flatten()
        rollout.log_probs[step] = distribution.log_prob(actions)
        actions = actions.reshape(-1, *self.policy.action_space.shape)  # type: ignore[misc]
        rollout.store_actions(step, actions)
        return actions

    def finish(self, rollout: Rollout) -> None:
        """Zero the hidden state where the last step of `rollout` ended an episode."""
        self._reset_where(rollout.done[-1])

    def with_hidden_state(self, obs: Obs) -> Obs:
        return {"obs": obs, "hidden_state": cast(Obs, self.hidden_state)}

    def values(self, inputs: Obs) -> torch.Tensor:
        obs, hidden_state = (cast(dict[str, Any], inputs)[name] for name in ("obs", "hidden_state"))
        return self.policy.value_net(self._step(obs, hidden_state)[1]).flatten()

    def _reset_where(self, episode_starts: torch.Tensor) -> None:
        self.hidden_state = {name: reset_where(state, episode_starts) for name, state in self.hidden_state.items()}

    def _step(
        self, obs: Obs, hidden_state: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        next_state: dict[str, torch.Tensor] = {}

        def apply_lstm(name: str, features: torch.Tensor) -> torch.Tensor:
            out, next_state[name] = step(self._lstms[name], features, hidden_state[name])
            return out

        return *self._latents(obs, apply_lstm), next_state

    # -- updates ---------------------------------------------------------------------------------------------------

    def _evaluate(self, batch: Batch, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        assert isinstance(batch, RecurrentBatch)
        layout, hidden_state = sequences(batch.episode_starts), cast(dict[str, torch.Tensor], batch.hidden_state)

        def apply_lstm(name: str, features: torch.Tensor) -> torch.Tensor:
            return unroll(self._lstms[name], features, hidden_state[name], layout)

        latent_pi, latent_vf = self._latents(batch.obs, apply_lstm)
        distribution = self._distribution(latent_pi)
        return self.policy.value_net(latent_vf), distribution.log_prob(actions), distribution.entropy()

    # -- both ------------------------------------------------------------------------------------------------------

    def _latents(
        self, obs: Obs, apply_lstm: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs of the output layers of actor and critic. `apply_lstm(name, features)` runs one LSTM."""
        policy = self.policy
        features: Any = policy.extract_features(obs)  # type: ignore[arg-type]
        actor_features, critic_features = (features, features) if policy.share_features_extractor else features
        actor = apply_lstm("actor", actor_features)
        if "critic" in self._lstms:
            critic = apply_lstm("critic", critic_features)
        else:
            critic = actor.detach() if policy.shared_lstm else policy.critic(critic_features)  # type: ignore[misc]
        return policy.mlp_extractor.forward_actor(actor), policy.mlp_extractor.forward_critic(critic)

    def _distribution(self, latent_pi: torch.Tensor) -> Distribution:
        return self.policy._get_action_dist_from_latent(latent_pi)


class RecurrentActor(Actor):
    """Recurrent policy for playing. It needs the hidden state of the actor's LSTM only."""

    policy: RecurrentActorCriticPolicy

    def initial_state(self, n: int) -> HiddenState:
        return (zero_state(self.policy.lstm_actor, n),)

    def choose(self, policy_obs: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        policy, extractor = self.policy, self.policy.pi_features_extractor
        features = BasePolicy.extract_features(policy, policy_obs, extractor)  # type: ignore[arg-type]
        (state,) = hidden_state or self.initial_state(len(features))
        latent, next_state = step(policy.lstm_actor, features, state)
        distribution = policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(latent))
        return distribution.get_actions(self.deterministic), (next_state,)


class RecurrentPPO(ProximalTrainer, sb3_contrib.RecurrentPPO):  # type: ignore[misc]
    """sb3-contrib's RecurrentPPO with tensor rollouts."""

    actor_class = RecurrentActor
    networks: RecurrentNetworks
    policy_aliases = {  # noqa: RUF012 - encoders name policies as for PPO, without "Lstm"
        **sb3_contrib.RecurrentPPO.policy_aliases,
        **{name.replace("Lstm", ""): policy for name, policy in sb3_contrib.RecurrentPPO.policy_aliases.items()},
        ASYMMETRIC: AsymmetricRecurrent,
    }

    def _setup_model(self) -> None:
        kinds = [type(space) for _, space in leaves("obs", self.observation_space)]
        if spaces.MultiDiscrete in kinds:  # SB3 gives their width as a numpy number, which torch's LSTM refuses
            raise UserError(
                f"algo={type(self).__name__!r} does not support MultiDiscrete observations such as this env's "
                f"{self.observation_space}; flatten them with gymnasium.wrappers.FlattenObservation."
            )
        super()._setup_model()
        self.attach("memory", self.networks)

    def _networks(self) -> RecurrentNetworks:
        return RecurrentNetworks(cast(RecurrentActorCriticPolicy, self.policy), self.n_envs)

    def _reset_envs(self) -> None:
        super()._reset_envs()
        if "networks" in vars(self):  # the first reset comes before the networks are made
            self.networks.reset()

    def load_state(self, state: State) -> bool:
        same_envs = super().load_state(state)
        if not (same_envs and self.tensor_env.snapshots):
            self.networks.reset()
        return same_envs

    def _permutation(self, n: int) -> torch.Tensor:
        """Return an epoch's row order, as in sb3-contrib: env by env, rotated by a random offset."""
        start = torch.randint(n, (1,), device=self.device)
        env_major = (torch.arange(n, device=self.device) + start) % n
        return env_major % self.n_steps * self.n_envs + env_major // self.n_steps


def check_hyperparameters(hyper: Row, n_envs: int, row: Row, requested: Mapping[str, Any]) -> Row:
    """Check the LSTM settings, then fit `batch_size` as PPO does. Raises `UserError`."""
    policy = hyper.get("policy_kwargs", {})
    for name in ("lstm_hidden_size", "n_lstm_layers"):
        check_whole(f"overrides policy_kwargs {name}", policy.get(name, 1), 1)
    if policy.get("shared_lstm") and policy.get("enable_critic_lstm", True):
        raise UserError(
            "overrides policy_kwargs shared_lstm=true leaves the critic without its own LSTM; "
            "add enable_critic_lstm=false."
        )
    return fit_batch_size(hyper, n_envs, row, requested)


ALGORITHM = Algorithm(
    "RecurrentPPO", RecurrentPPO, sb3_contrib.RecurrentPPO, RecurrentActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    row={"n_envs": 16, "n_steps": 128, "batch_size": 512},
    stock_row={"n_envs": 1, "n_steps": 128, "batch_size": 128},
    columns=("n_steps", "batch_size", "n_epochs", "net_arch"),
    rule=check_hyperparameters,
    more_envs=True,
)  # fmt: skip
