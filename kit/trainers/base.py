"""Base class of all trainers: acting, episode statistics, hooks per iteration, and exact state for resuming."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage, is_vecenv_wrapped
from torch.optim import Optimizer

from kit.encoders.frozen import FrozenView
from kit.envs import curriculum, randomize
from kit.envs.contract import BatchEnv
from kit.envs.divergence import Divergence
from kit.envs.obs import Obs, from_leaves, leaves, tree_map
from kit.envs.sb3 import TensorVecEnv
from kit.errors import Interrupted, UserError
from kit.trainers.actor import Actor
from kit.trainers.normalize import Normalizer, scaled
from kit.trainers.reward_terms import RewardTerms
from kit.trainers.saving import Component, Counters, FrozenWeights, Optimizers, RandomGenerators, State, Weights

NOT_IN_V0_2 = (f"{curriculum.OPTION}.", f"{randomize.OPTION}.{randomize.ACTIVE}")
"""Prefixes of env snapshot entries that runs of kit 0.2 lack. Such a run continues in the last curriculum stage."""
READ_EVERY = 4
"""On a GPU, on-policy trainers log at most every so many iterations by default: reading metrics waits for the GPU.
Trainers with a replay buffer log on a GPU at most once per `READ_EVERY` × n_envs env steps."""


def skip_compiler_import() -> None:
    """Keep torch from importing its compiler when the first optimizer is made, because the import takes a second.

    torch/_compile.py imports the compiler only to exclude the three methods below from compilation. This function
    stores the undecorated methods where torch looks first, so torch does not import the compiler.
    """
    for method in (Optimizer.add_param_group, Optimizer.state_dict, Optimizer.load_state_dict):
        if plain := getattr(method, "__wrapped__", None):
            plain.__dict__.setdefault("__dynamo_disable", plain)


class TensorTrainer(BaseAlgorithm):
    """Mixin for SB3 algorithms: trains on a tensor env and resumes exactly.

    Save `state()` at the end of an iteration and load it with `load_state()` in a new process: on the CPU the run
    continues bit for bit, and `learn(total_timesteps)` trains up to that total. Callbacks, logger, `save` and `load`
    are SB3's; SB3 without this library can open the saved zip.

    The parameters as the panel's help shows them:

    :param learning_rate: size of the steps in which weights change; usual: 0.00003 to 0.001. lin_0.0003 falls to 0
        during the run. Too large: the curve jumps or collapses. Too small: hardly anything is learnt
    :param gamma: discount factor: a reward k steps in the future counts gamma^k as much; usual: 0.95 to 0.997. With
        0.99, a reward 100 steps away counts 0.37 times, one 300 steps away 0.05 times
    :param batch_size: steps in a minibatch, from which one gradient is computed; usual: 64 to 4,096
    :param ent_coef: weight of the entropy, that is, how much random actions are rewarded; usual for PPO and A2C: 0 to
        0.02. Larger: more exploration. SAC learns it with auto, or auto_0.1 to begin with 0.1
    :param use_sde: state-dependent exploration: smooth noise on the actions, not a new random number at each step;
        usual: false
    :param sde_sample_freq: steps between two draws of the noise of use_sde; -1: only at the start of a rollout;
        usual: -1, or 4 to 64
    :param stats_window_size: the training curves show the mean return and success rate of this many latest episodes;
        larger: smoother, and later to show a change; usual: 20 to 200
    :param net_arch: layers and their widths, such as 64, 64; larger networks can learn more and need more time;
        usual: from 64, 64 to 512, 512, 512
    :param activation_fn: function between the layers: tanh, relu, elu, ...
    :param log_std_init: logarithm of the standard deviation of the action noise at the start; 0 is a deviation of 1, -1
        of 0.37; usual: -3 to 0
    """

    tensor_env: BatchEnv
    gamma: float
    normalizer: Normalizer | None = None
    actor_class: type[Actor] = Actor
    _last_obs: Obs | None  # type: ignore[assignment]

    def __init__(self, *args: Any, normalize: bool | dict[str, Any] = False, **kwargs: Any) -> None:
        """Take SB3's arguments; the env is a `kit.envs.sb3.TensorVecEnv`.

        `normalize` scales observations and rewards by running statistics: True, or a dict of `Normalizer` settings.
        """
        self.on_boundary: Callable[[], None] = lambda: None
        self.should_stop: Callable[[], bool] = lambda: False
        self.on_divergence: Callable[[Divergence], object] = lambda divergence: None
        self.reward_terms = RewardTerms()
        self._normalize = normalize
        self._attached: dict[str, Component] = {}
        skip_compiler_import()
        super().__init__(*args, **kwargs)

    # -- set-up ----------------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        super()._setup_model()  # type: ignore[safe-super]
        self.iteration = 0
        self._is_fresh = self.num_timesteps == 0  # whether the next `learn` needs no reset: new, or just loaded
        self._unread: list[Any] = []
        self.normalizer = None
        if self.ep_info_buffer is None:
            self.ep_info_buffer = deque(maxlen=self._stats_window_size)
            self.ep_success_buffer = deque(maxlen=self._stats_window_size)
        if self.device.type != "cpu":  # validating each parameter of a distribution would synchronise with the GPU
            torch.distributions.Distribution.set_default_validate_args(False)
        if self._normalize:
            settings = self._normalize if isinstance(self._normalize, dict) else {}
            settings = {"gamma": self.gamma, **settings}
            self.normalizer = Normalizer(self.observation_space, self.n_envs, self.device, **settings)
        self._actors: dict[bool, Actor] = {}
        if self.device.type != "cpu" and getattr(self, "use_sde", False):
            noisy: Any = getattr(self, "actor", self.policy)
            noisy.reset_noise(self.n_envs)  # SB3 drew its matrix before it moved the policy to the GPU
        if self.env is not None:
            self.tensor_env = tensor_env_of(self.env)
            self._reset_envs()

    def _reset_envs(self) -> None:
        self._last_obs = self.tensor_env.start_training(seed=self.seed)
        if self.normalizer is not None:
            self.normalizer.begin(self.as_actor().view(self._last_obs))

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Continue in another `TensorVecEnv` with equal spaces and number of envs, from new episodes.

        Raises `UserError` for a model that was loaded without an env.
        """
        if self.env is None:
            raise UserError("env=None: the model was loaded without an env; load it with load(path, env=env).")
        super().set_env(env, force_reset)
        assert self.env is not None
        self.tensor_env = tensor_env_of(self.env)
        self._actors.clear()
        self._reset_envs()

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        if reset_num_timesteps and not self._is_fresh:
            self._reset_envs()
            self.num_timesteps = self.iteration = self._episode_num = 0
            self.ep_info_buffer, self.ep_success_buffer = None, None  # SB3 makes new ones
            self._unread.clear()
        if reset_num_timesteps:  # SB3, called with False below, adds num_timesteps, which total_timesteps includes
            total_timesteps -= self.num_timesteps
        self._is_fresh = False
        custom = self._custom_logger
        if not custom:
            new_log = self.num_timesteps == 0
            self._logger = utils.configure_logger(self.verbose, self.tensorboard_log, tb_log_name, new_log)
        self._custom_logger = True
        try:
            return super()._setup_learn(total_timesteps, callback, False, tb_log_name, progress_bar)
        finally:
            self._custom_logger = custom

    # -- hooks -----------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Raise `Interrupted` if `should_stop()`; called before every env step and every minibatch."""
        if self.should_stop():
            raise Interrupted(f"stop requested at step {self.num_timesteps:,}")

    def _boundary(self) -> None:
        """Call the hook `on_boundary`; called at the end of each iteration, when `state()` is valid."""
        self.on_boundary()

    def end(self) -> None:
        """In a distributed run, end the other processes after the last `learn`; in other runs, do nothing."""

    # -- acting ----------------------------------------------------------------------------------------------------

    def as_actor(self, deterministic: bool = True) -> Actor:
        """Return the policy as a module that maps the env's observations to actions. The module shares the weights."""
        if deterministic not in self._actors:
            assert isinstance(self.env, VecEnv) and isinstance(self.env.unwrapped, TensorVecEnv)
            view = self.env.unwrapped.view
            self._actors[deterministic] = self.actor_class(
                self.policy, view, self.normalizer, self.action_space, deterministic
            )
        return self._actors[deterministic]

    def act(self, obs: Obs, deterministic: bool = True) -> torch.Tensor:
        """Return actions (n, ...) for `env.step`, given the env's observations (n, ...), not normalised.

        A recurrent policy starts each call with its initial hidden state; use `kit.envs.play` for whole episodes.
        """
        return self.as_actor(deterministic)(obs)[0]

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """SB3's `predict`, for observations that are not normalised; the trainer's normaliser, if any, is applied."""
        if self.normalizer is not None:
            tensors = tree_map(lambda x: torch.as_tensor(x, device=self.device), observation)
            observation = tree_map(lambda x: x.cpu().numpy(), self.normalizer.scale_obs(tensors))
        return super().predict(observation, state, episode_start, deterministic)

    # -- statistics ------------------------------------------------------------------------------------------------

    def _record_episodes(
        self, done: torch.Tensor, returns: torch.Tensor, lengths: torch.Tensor, success: torch.Tensor | None
    ) -> None:
        """Add the episodes that end where `done` is True to SB3's window of recent episodes, `ep_info_buffer`.

        All tensors have the same shape. On a GPU, copies are kept until `_read_episodes`, so that no step synchronises.
        """
        if self.device.type == "cpu":
            self._count_episodes(done, returns, lengths, success)
        else:
            self._unread.append([None if x is None else x.clone() for x in (done, returns, lengths, success)])

    def _read_episodes(self) -> None:
        """Add the episodes kept on the GPU to SB3's window. Called before the window is read."""
        if self._unread:
            *columns, success = zip(*self._unread, strict=True)
            if any(x is not None for x in success):
                pairs = zip(columns[0], success, strict=True)
                columns.append(tuple(torch.zeros_like(done) if x is None else x for done, x in pairs))
            self._count_episodes(*(torch.cat([x.flatten() for x in column]) for column in columns))
        self._unread.clear()

    def _count_episodes(
        self, done: torch.Tensor, returns: torch.Tensor, lengths: torch.Tensor, success: torch.Tensor | None = None
    ) -> None:
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        if success is None and self.ep_success_buffer:
            success = torch.zeros_like(done)
        if success is not None:  # episodes from before the env first reported success count as failures
            self.ep_success_buffer.extend([0.0] * (len(self.ep_info_buffer) - len(self.ep_success_buffer)))
        ended = done.flatten().nonzero().flatten()
        self._episode_num += len(ended)
        ended = ended[-self._stats_window_size :]
        self._check_finite(returns.flatten()[ended])
        for total, length in zip(returns.flatten()[ended].tolist(), lengths.flatten()[ended].tolist(), strict=True):
            self.ep_info_buffer.append({"r": total, "l": length, "t": 0.0})
        if success is not None:
            self.ep_success_buffer.extend(success.flatten()[ended].float().tolist())

    def _log_episodes(self) -> None:
        """Prepare SB3's `dump_logs`: read the episodes, report diverged physics, record reward terms and stage."""
        self._read_episodes()
        self.reward_terms.record(self.logger)
        for divergence in self.tensor_env.take_divergences():
            self.on_divergence(divergence)
        if self.tensor_env.stage is not None:
            self.logger.record("rollout/stage", int(self.tensor_env.stage))

    def _check_finite(self, values: torch.Tensor) -> None:
        """Raise `UserError` if one of the rewards, returns or `values` is NaN or infinite: the policy would be NaN."""
        if not bool(torch.isfinite(values).all()):
            raise UserError(
                f"a reward, an observation or the policy is NaN or infinite, before step {self.num_timesteps:,}; `kit "
                "check ENV` looks for the step in your own task (the cause may also be a loss of your own or a large "
                "learning rate); correct it and resume (from the last checkpoint, if there is one)."
            )

    # -- exact state -----------------------------------------------------------------------------------------------

    def attach(self, name: str, component: Component) -> None:
        """Include `component` under `name` in all later `state()` and `load_state()` calls."""
        self._attached[name] = component

    def policy_components(self) -> dict[str, Component]:
        """Return the state components needed for acting."""
        components: dict[str, Component] = {"policy": Weights(self.policy), "frozen": FrozenWeights(self.policy)}
        view = self.as_actor().view
        if isinstance(view, FrozenView):
            components["encoder"] = view
        return components | ({} if self.normalizer is None else {"normalizer": self.normalizer})

    def components(self) -> dict[str, Component]:
        """Return the state components, without replay data and the env's snapshot."""
        training: dict[str, Component] = {
            "optimizer": Optimizers(self._optimizers()),
            "trainer": Counters(self),
            "rng": RandomGenerators(self.device),
        }
        return {**self.policy_components(), **training, **self._attached}

    def _optimizers(self) -> Mapping[str, tuple[torch.optim.Optimizer, Mapping[str, torch.Tensor]]]:
        """Return name -> (optimizer, its parameters by name)."""
        raise NotImplementedError

    def state(self) -> State:
        """Return a copy of the training state, without replay data. Valid at the end of an iteration only.

        Raises `UserError` instead of returning weights that are NaN.
        """
        self._read_episodes()
        if self.device.type != "cpu":  # where training does not check rewards, which would wait for the GPU
            self._check_finite(torch.stack([parameter.detach().sum() for parameter in self.policy.parameters()]))
        state = _states(self.components())
        state["trainer"] |= {name: value.cpu().clone() for name, value in leaves("last_obs", self._last_obs)}
        return {**state, "env": self.tensor_env.snapshot()}

    def policy_state(self) -> State:
        """Copy the components needed for acting; `load_policy` loads them."""
        return _states(self.policy_components())

    def load_state(self, state: State) -> bool:
        """Restore a `state()`; `learn(total_timesteps)` then continues to that total.

        Return False if the env snapshot does not fit, because it has another number of envs or is of another
        simulator. In that case, and for envs without full snapshots (`BatchEnv.snapshots`), the envs start new
        episodes; everything else continues.
        """
        self.load_policy(state)
        components = self.components()
        for name in ("optimizer", "trainer", *(name for name in self._attached if name in state)):
            components[name].load_state(state[name])
        same_envs = self._fits_env(state["env"])
        if same_envs:
            self.tensor_env.restore(state["env"])
        same_episodes = same_envs and self.tensor_env.snapshots
        if same_episodes:
            self._last_obs = tree_map(lambda x: x.to(self.device), from_leaves("last_obs", state["trainer"]))
        else:  # no usable snapshot: reset, with a seed that is the same at every resume from this step
            self._last_obs = self.tensor_env.start_training((self.seed or 0) + self.num_timesteps, state["env"])
        if self.normalizer is not None:
            self.normalizer.load_state(state["normalizer"], statistics_only=not same_episodes)
        components["rng"].load_state(state["rng"])  # last, because resets draw random numbers too
        self._is_fresh = True
        return same_envs

    def _fits_env(self, snapshot: dict[str, torch.Tensor]) -> bool:
        """Return whether `snapshot` has every tensor of this env's snapshot, with equal shape and dtype."""
        return all(
            name in snapshot and snapshot[name].shape == value.shape and snapshot[name].dtype == value.dtype
            for name, value in self.tensor_env.snapshot().items()
            if not name.startswith(NOT_IN_V0_2)
        )

    def load_policy(self, state: State) -> None:
        """Load only the components needed for acting. The state may come from another number of envs."""
        components = self.policy_components()
        if "encoder" in components:
            components["encoder"].load_state(state.get("encoder", {}))
        components["policy"].load_state(state["policy"])
        if "frozen" in state:
            components["frozen"].load_state(state["frozen"])
        if self.normalizer is not None and state.get("normalizer"):
            self.normalizer.load_state(state["normalizer"], statistics_only=True)

    def warm_start(self, state: State) -> None:
        """Load a pretrained policy and its normaliser, and the state of the optimizers if both runs have the same ones.

        Raises `UserError` if the policy does not fit.
        """
        theirs, mine = state.get("normalizer", {}), {} if self.normalizer is None else self.normalizer.state()
        if scaled(theirs) != (set() if self.normalizer is None else self.normalizer.scaled):
            raise UserError("only one of the two runs normalises observations; give both the same overrides normalize")
        if not mine.keys() <= theirs.keys():
            state = {**state, "normalizer": {}}  # neither run scales observations, and entries differ: load none
        self.load_policy(state)
        if {name.partition(".")[0] for name in state.get("optimizer", {})} == set(self._optimizers()):
            self.components()["optimizer"].load_state(state["optimizer"])

    # -- SB3's zip -------------------------------------------------------------------------------------------------

    def _excluded_save_params(self) -> list[str]:
        ours = [
            "on_boundary", "on_divergence", "should_stop", "reward_terms", "tensor_env", "normalizer", "iteration",
            "_unread", "_normalize", "_is_fresh", "_actors", "_attached", "_last_obs", "_last_episode_starts",
            "_last_original_obs",
        ]  # fmt: skip
        return [*super()._excluded_save_params(), *ours]


def tensor_env_of(env: VecEnv) -> BatchEnv:
    """Return the tensor env that the SB3 `env` wraps. Raises `UserError` if it wraps none."""
    if is_vecenv_wrapped(env, VecNormalize):
        raise UserError("VecNormalize around env has no effect on tensors; give the trainer normalize=True instead.")
    if is_vecenv_wrapped(env, VecTransposeImage):
        raise UserError(f"observation_space={env.unwrapped.observation_space} has its channels last; put them first.")
    if not isinstance(env.unwrapped, TensorVecEnv):
        raise UserError(f"env={env} is not a tensor env; make it with kit.make_vec.")
    return env.unwrapped.tensor_env


def _states(components: Mapping[str, Component]) -> State:
    """Return name -> state of each component, without empty states; "normalizer" is always present."""
    states = {name: component.state() for name, component in components.items()}
    return {"normalizer": {}, **{name: values for name, values in states.items() if values}}
