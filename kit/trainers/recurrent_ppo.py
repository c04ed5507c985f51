"""PPO for policies that remember: sb3-contrib's RecurrentPPO, an LSTM before the actor and one before the critic.

An update goes through the rollout world after world, as sb3-contrib does: a batch is a piece of that row of steps, cut
where a world or an episode begins. Each cut is a sequence that starts from what was remembered there when it was lived,
and all sequences of a batch go through an LSTM side by side, in one call.
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
from kit.errors import UserError
from kit.presets import Row
from kit.trainers.actor import Actor
from kit.trainers.algorithm import Algorithm
from kit.trainers.networks import Networks
from kit.trainers.ppo import ProximalTrainer, divide
from kit.trainers.rollout import Batch, RecurrentBatch, Rollout
from kit.trainers.saving import State, Values

# What an LSTM remembers is one tensor (n, 2, layers, hidden): the hidden state h and the cell c of each layer.


def zero_state(lstm: torch.nn.LSTM, n: int) -> torch.Tensor:
    """The hidden state (n, 2, layers, hidden) with which episodes start."""
    return torch.zeros(n, 2, lstm.num_layers, lstm.hidden_size, device=next(lstm.parameters()).device)


def reset_where(hidden_state: torch.Tensor, episode_starts: torch.Tensor) -> torch.Tensor:
    """`hidden_state` (n, ...), zero in the envs of `episode_starts` (n,) bool."""
    return hidden_state.masked_fill(episode_starts.view(-1, 1, 1, 1), 0.0)


def step(lstm: torch.nn.LSTM, features: torch.Tensor, hidden_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of every env: the output (n, hidden) for `features` (n, in), and the next hidden state."""
    after = []
    for layer, weights in enumerate(lstm.all_weights):
        features, cell = torch.lstm_cell(features, hidden_state[:, :, layer].unbind(1), *weights)
        after.append(torch.stack([features, cell], 1))
    return features, torch.stack(after, 2)


class Sequences(NamedTuple):
    """How the rows of a batch lie as sequences side by side, (length, k); the shorter ones are filled up at their end
    with rows that nobody reads."""

    first: torch.Tensor
    """(k,) row with which each begins."""
    row: torch.Tensor
    """(length, k) the row in each place."""
    place: torch.Tensor
    """(N,) the place of each row, places counted step by step."""


def sequences(episode_starts: torch.Tensor) -> Sequences:
    """The sequences of a batch: one starts at the first row and at each True of `episode_starts` (N,). Waits for the
    device, to know how many there are and how long the longest is."""
    number = torch.arange(len(episode_starts), device=episode_starts.device)
    first = torch.cat([number[:1], 1 + episode_starts[1:].nonzero().flatten()])
    which = torch.bucketize(number, first, right=True) - 1
    time = number - first[which]
    row = (first + number[: int(time.max()) + 1].unsqueeze(1)).clamp_(max=len(episode_starts) - 1)
    return Sequences(first, row, time * len(first) + which)


def unroll(lstm: torch.nn.LSTM, features: torch.Tensor, hidden_state: torch.Tensor, places: Sequences) -> torch.Tensor:
    """Outputs (N, hidden) for the rows `features` (N, in) of sequences that start from `hidden_state` (N, ...)."""
    side_by_side = features.index_select(0, places.row.flatten()).view(*places.row.shape, -1)
    hidden, cell = hidden_state.index_select(0, places.first).movedim(0, 2).contiguous()
    return lstm(side_by_side, (hidden, cell))[0].flatten(0, 1).index_select(0, places.place)


class RecurrentNetworks(Networks):
    """`policy`, and what it remembers of each world: a part of what is saved."""

    policy: RecurrentActorCriticPolicy

    def __init__(self, policy: RecurrentActorCriticPolicy, n_envs: int) -> None:
        super().__init__(policy)
        lstms = {"actor": policy.lstm_actor, "critic": policy.lstm_critic}
        self._lstms: dict[str, torch.nn.LSTM] = {name: lstm for name, lstm in lstms.items() if lstm is not None}
        self._n_envs = n_envs
        self.reset()

    def reset(self) -> None:
        """Episodes start in all envs."""
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
        latent, for_value, self.hidden_state = self._step(obs, self.hidden_state)
        distribution = self._distribution(latent)
        actions = distribution.get_actions()
        rollout.values[step] = self.policy.value_net(for_value).flatten()
        rollout.log_probs[step] = distribution.log_prob(actions)
        actions = actions.reshape(-1, *self.policy.action_space.shape)  # type: ignore[misc]
        rollout.act(step, actions)
        return actions

    def finish(self, rollout: Rollout) -> None:
        self._reset_where(rollout.done[-1])

    def with_hidden_state(self, obs: Obs) -> Obs:
        return {"obs": obs, "hidden_state": cast(Obs, self.hidden_state)}

    def values(self, known: Obs) -> torch.Tensor:
        obs, hidden_state = cast(dict[str, Any], known).values()
        return self.policy.value_net(self._step(obs, hidden_state)[1]).flatten()

    def _reset_where(self, episode_starts: torch.Tensor) -> None:
        self.hidden_state = {name: reset_where(state, episode_starts) for name, state in self.hidden_state.items()}

    def _step(
        self, obs: Obs, hidden_state: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Latents of actor and critic (n, ...), and the next hidden state."""
        after: dict[str, torch.Tensor] = {}

        def through(name: str, features: torch.Tensor) -> torch.Tensor:
            out, after[name] = step(self._lstms[name], features, hidden_state[name])
            return out

        return *self._latents(obs, through), after

    # -- updates ---------------------------------------------------------------------------------------------------

    def _evaluate(self, batch: Batch, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        assert isinstance(batch, RecurrentBatch)
        places, hidden_state = sequences(batch.episode_starts), cast(dict[str, torch.Tensor], batch.hidden_state)

        def through(name: str, features: torch.Tensor) -> torch.Tensor:
            return unroll(self._lstms[name], features, hidden_state[name], places)

        latent, for_value = self._latents(batch.obs, through)
        distribution = self._distribution(latent)
        return self.policy.value_net(for_value), distribution.log_prob(actions), distribution.entropy()

    # -- both ------------------------------------------------------------------------------------------------------

    def _latents(
        self, obs: Obs, through: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the last layers of actor and critic see (N, ...); `through` takes features through an LSTM."""
        policy = self.policy
        features: Any = policy.extract_features(obs)  # type: ignore[arg-type]
        of_actor, of_critic = (features, features) if policy.share_features_extractor else features
        actor = through("actor", of_actor)
        if "critic" in self._lstms:
            critic = through("critic", of_critic)
        else:
            critic = actor.detach() if policy.shared_lstm else policy.critic(of_critic)  # type: ignore[misc]
        return policy.mlp_extractor.forward_actor(actor), policy.mlp_extractor.forward_critic(critic)

    def _distribution(self, latent: torch.Tensor) -> Distribution:
        return self.policy._get_action_dist_from_latent(latent)


class RecurrentActor(Actor):
    """Its hidden state is that of the actor's LSTM alone."""

    policy: RecurrentActorCriticPolicy

    def initial_state(self, n: int) -> HiddenState:
        return (zero_state(self.policy.lstm_actor, n),)

    def choose(self, seen: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        policy = self.policy
        features = BasePolicy.extract_features(policy, seen, policy.pi_features_extractor)  # type: ignore[arg-type]
        (before,) = hidden_state or self.initial_state(len(features))
        latent, after = step(policy.lstm_actor, features, before)
        distribution = policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(latent))
        return distribution.get_actions(self.deterministic), (after,)


class RecurrentPPO(ProximalTrainer, sb3_contrib.RecurrentPPO):  # type: ignore[misc]
    """sb3-contrib's RecurrentPPO on tensors."""

    actor_class = RecurrentActor
    networks: RecurrentNetworks
    policy_aliases = {  # noqa: RUF012
        **sb3_contrib.RecurrentPPO.policy_aliases,
        **{name.replace("Lstm", ""): policy for name, policy in sb3_contrib.RecurrentPPO.policy_aliases.items()},
        ASYMMETRIC: AsymmetricRecurrent,
    }

    def _setup_model(self) -> None:
        kinds = [type(space) for _, space in leaves("obs", self.observation_space)]
        if spaces.MultiDiscrete in kinds:  # their width is a numpy number, which torch's LSTM refuses
            raise UserError(
                f"algo={type(self).__name__!r} cannot see MultiDiscrete spaces such as this env's "
                f"{self.observation_space}; flatten them with gymnasium.wrappers.FlattenObservation."
            )
        super()._setup_model()
        self.attach("memory", self.networks)

    def _networks(self) -> RecurrentNetworks:
        return RecurrentNetworks(cast(RecurrentActorCriticPolicy, self.policy), self.n_envs)

    def _begin(self) -> None:
        super()._begin()
        if "networks" in vars(self):  # else they are yet to be made, and remember nothing
            self.networks.reset()

    def load_state(self, state: State) -> bool:
        same_envs = super().load_state(state)
        if not (same_envs and self.tensor_env.snapshots):
            self.networks.reset()
        return same_envs

    def _permutation(self, n: int) -> torch.Tensor:
        """World after world, in the order of time, from anywhere on and round to there: sb3-contrib's order."""
        start = torch.randint(n, (1,), device=self.device)
        number = (torch.arange(n, device=self.device) + start) % n
        return number % self.n_steps * self.n_envs + number // self.n_steps


def _together(hyper: Row, n_envs: int, row: Row, asked: Mapping[str, Any]) -> Row:
    """As for PPO, and networks that can be."""
    policy = hyper.get("policy_kwargs", {})
    for name in ("lstm_hidden_size", "n_lstm_layers"):
        if policy.get(name, 1) < 1:
            raise UserError(f"overrides policy_kwargs {name}={policy[name]!r} must be a whole number of at least 1.")
    if policy.get("shared_lstm") and policy.get("enable_critic_lstm", True):
        raise UserError(
            "overrides policy_kwargs shared_lstm=true leaves the critic no LSTM of its own; "
            "write enable_critic_lstm=false with it."
        )
    return divide(hyper, n_envs, row, asked)


ALGORITHM = Algorithm(
    "RecurrentPPO", RecurrentPPO, sb3_contrib.RecurrentPPO, RecurrentActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    row={"n_envs": 16, "n_steps": 128, "batch_size": 512},
    stock_row={"n_envs": 1, "n_steps": 128, "batch_size": 128},
    columns=("n_steps", "batch_size", "n_epochs", "net_arch"),
    rule=_together,
    more_envs=True,
    imported=("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm"),
)  # fmt: skip
