"""Plan a run: look up a config's env, algorithm and encoder, and replace "auto" by numbers, without measuring.

The same config gets the same plan on the same kind of machine. "auto" is resolved as follows:

    row       starting values of the hyperparameters: tuned for the task and algorithm (`kit.presets`), else the
              algorithm's own (`Algorithm.row`)
    n_envs    the value in the row; with preset auto, for PPO and RecurrentPPO (`Algorithm.more_envs`), changed:
              - on a CPU, and without physics: doubled while the run still has `MIN_ROLLOUTS` rollouts, up to
                `ENVS_PER_CORE` envs per core (without physics: `ENVS_PER_CORE_NO_PHYSICS`, or
                `ENVS_ON_CUDA_NO_PHYSICS` in all on a GPU)
              - with physics on a GPU: halved until the run has `MIN_ROLLOUTS` rollouts, down to `ENVS_PER_CORE`
              A run that runs out of memory halves n_envs if `Algorithm.fewer_envs`
    device    a GPU, if one works, for policies that see images, for legged robots with PPO and for the presets for
              GPUs; else the CPU
    batch     for PPO and RecurrentPPO, the largest divisor of the rollout's size that is no larger than the batch size
              in the row
    threads   one per core
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from kit import encoders, envs
from kit.config import SCRIPTED, RunConfig, default_name
from kit.encoders import ASYMMETRIC, Encoder
from kit.envs.groups import OPTION as OBS_GROUPS
from kit.envs.obs import TEACHER
from kit.errors import UserError
from kit.machine import limits, settings
from kit.presets import LEGGED, NAMED, PPO_FROM_IMAGES_ON_CUDA, PPO_ON_CUDA, TASKS, TASKS_ON_CUDA, Row
from kit.trainers import algorithm
from kit.trainers.algorithm import Algorithm
from kit.trainers.arguments import complete, hyperparameter_docs, hyperparameter_types, nested
from kit.trust import ROBOT_TASKS

if TYPE_CHECKING:
    from kit.envs.contract import BatchEnv
    from kit.envs.registry import Spaces

ENVS_PER_CORE = 16
"""Most envs per core that "auto" chooses for tasks with physics. Reach and Ant then train at no less than
0.9 of their best speed."""
ENVS_PER_CORE_NO_PHYSICS = 1024
"""Most envs per core for tasks without physics, where the time of a step depends little on the number of envs."""
ENVS_ON_CUDA_NO_PHYSICS = 2048
"""Most envs on a GPU for tasks without physics. Updates take most of the time there; with twice as many envs Mission
learnt less from as many steps."""
MIN_ROLLOUTS = 20
"""Rollouts that a run must still have when "auto" raises n_envs: Reach scores 4.25 with 24 rollouts, 4.11 with 12."""


@dataclass(frozen=True)
class Plan:
    """A resolved config (without "auto") with its algorithm and encoder."""

    config: RunConfig
    algorithm: Algorithm
    encoder: Encoder

    @classmethod
    def of(cls, config: RunConfig, env: Spaces | BatchEnv) -> Plan:
        """Look up algorithm and encoder of a resolved `config`. `env`: its env, or what `kit.envs.describe` returns.

        Raises `UserError` for an unknown algorithm or encoder, or a combination that does not work.
        """
        record = algorithm.find(config.algo)
        options = config.overrides.get("policy_kwargs", {}).get(encoders.OPTIONS)
        encoder = encoders.choose(config.encoder, env.observation_space, options, env.obs_groups)
        if encoder.policy not in record.trainer.policy_aliases:
            raise UserError(
                f"algo={config.algo!r} cannot give the critic other observations than the policy, but the env has an "
                "observation group for the critic; leave it out (env_options obs_groups=[]), or use another algorithm."
            )
        if encoder.policy == ASYMMETRIC and config.overrides.get("policy_kwargs", {}).get("shared_lstm"):
            raise UserError(
                "overrides policy_kwargs shared_lstm=true gives the critic the actor's observation group, but this env "
                "declares one for the critic; leave shared_lstm out."
            )
        if config.overrides.get("mirror") and env.mirror is None:
            raise UserError(
                f"overrides mirror=true: env={config.env!r} has no left and right (`Task.mirror`); leave it out."
            )
        if config.overrides.get("freeze_encoder") and not encoders.is_image_extractor(encoder.extractor):
            raise UserError(
                "overrides freeze_encoder=true needs one of kit's image encoders, and "
                f"encoder={config.encoder!r} gives env={config.env!r} none; leave it out."
            )
        critic = encoder.policy_kwargs.get("critic_entries")
        if config.overrides.get("freeze_encoder") and critic and encoders.sees_images(env.observation_space, critic):
            raise UserError(
                "overrides freeze_encoder=true stores no images, but the critic's observation group has some; leave it "
                "out, or give the critic numbers."
            )
        return cls(config, record, encoder)

    @property
    def sentence(self) -> str:
        """What auto chose, such as "auto chose 32 envs on 2 threads, minibatches of 64"; "" for other presets."""
        config, hyper, n = self.config, self.config.overrides, int(self.config.n_envs)
        if config.preset != "auto":
            return ""
        threads = f"{config.threads} thread{'' if config.threads == 1 else 's'}"
        text = f"auto chose {n:,} env{'' if n == 1 else 's'} on {threads if config.device == 'cpu' else config.device}"
        text += f", {hyper['n_steps']} steps of each per iteration" if "n_steps" in hyper else ""
        return text + (f", minibatches of {hyper['batch_size']:,}" if "batch_size" in hyper else "")


def plan(config: RunConfig, new: bool = True) -> Plan:
    """Return the plan of a user's `config`, without side effects. Raises `UserError` if it cannot be trained.

    `new`: also refuse what only new runs may not have, such as `env_options` that randomise nothing (`Spaces.unfit`).
    """
    record = algorithm.find(config.algo)
    config = with_teacher(record, config.replace(overrides=nested(config.overrides)))
    check_dataset(record, config)
    env = envs.describe(config.env, config.env_options)
    if new and env.unfit:
        raise UserError(env.unfit)
    has = f"env={config.env!r} has {env.action_space}"
    if not isinstance(env.action_space, record.actions):
        kinds = " or ".join(kind.__name__ for kind in record.actions)
        raise UserError(f"algo={config.algo!r} supports {kinds} actions, and {has}.")
    if record.actions == (spaces.Box,) and len(env.action_space.shape or ()) != 1:
        raise UserError(f"algo={config.algo!r} supports actions of one dimension, and {has}; flatten them.")
    stacks = encoders.sees_clips(env.observation_space, env.obs_groups)
    images = encoders.sees_images(env.observation_space)
    device = device_of(config, images)
    row = row_of(record, config, device, on_gpu=device != "cpu" and env.batched and env.physics, images=images)
    if images and device != "cpu" and "buffer_size" in hyperparameter_types(record):
        # a GPU reserves the whole buffer at once: a million of ReachVision's observations are 34 GiB
        row = {"buffer_size": min(config.total_steps, hyperparameter_docs(record)["buffer_size"][0]), **row}
    hyper = complete(record, row, config.overrides)
    n_envs = config.n_envs if isinstance(config.n_envs, int) else _auto_n_envs(record, config, row, device, env.physics)
    resolved = config.replace(
        run_name=config.run_name or default_name(config),
        device=device,
        encoder=record.clip_encoder if config.encoder == "auto" and stacks else config.encoder,
        n_envs=n_envs,
        threads=config.threads if isinstance(config.threads, int) else limits.usable_cores(),
        eval_every=max(1, config.total_steps // 10) if config.eval_every == "auto" else config.eval_every,
        overrides=record.rule(hyper, n_envs, row, config.overrides),
    )
    planned = Plan.of(resolved, env)
    if config.processes > 1:
        config_of_rank(resolved)  # raises if the config cannot be divided
    return planned


def options_of(config: RunConfig) -> dict[str, Any]:
    """Return the encoder's options in the overrides of `config`."""
    policy_kwargs = config.overrides.get("policy_kwargs")
    options = policy_kwargs.get(encoders.OPTIONS) if isinstance(policy_kwargs, dict) else None
    return options if isinstance(options, dict) else {}


def with_teacher(record: Algorithm, config: RunConfig) -> RunConfig:
    """Check `config.teacher`; return `config` with "teacher" added to the observation groups in its env_options.

    Raises `UserError` if the algorithm needs a teacher and none is named, or the reverse.
    """
    if not record.taught and config.teacher is not None:
        raise UserError(f"teacher={config.teacher!r} has no effect with algo={config.algo!r}; use algo='Distill'.")
    if not record.taught:
        return config
    env = envs.describe(config.env, config.env_options)
    if config.teacher is None:
        raise UserError(f"algo={config.algo!r} needs a teacher; set teacher to a run such as runs/NAME, or 'scripted'.")
    if config.teacher.partition(":")[0] == SCRIPTED and config.teacher not in env.scripts:
        valid = f"valid are {', '.join(env.scripts)}" if env.scripts else "name a run instead"
        raise UserError(f"teacher={config.teacher!r} is no scripted policy of env={config.env!r}; {valid}.")
    if config.overrides.get("state_coef") and options_of(config).get("frozen"):
        raise UserError(
            f"overrides state_coef={config.overrides['state_coef']!r} needs the teacher's observations, and with a "
            "frozen encoder only its features are stored; leave out state_coef or frozen."
        )
    groups = config.env_options.get(OBS_GROUPS, [])
    if TEACHER in groups or TEACHER not in env.groups:
        return config
    return config.replace(env_options={**config.env_options, OBS_GROUPS: [*groups, TEACHER]})


def check_dataset(record: Algorithm, config: RunConfig) -> None:
    """Raise `UserError` if the algorithm needs a dataset and `config` names none, or the reverse."""
    if not record.dataset and config.dataset is not None:
        raise UserError(
            f"dataset={config.dataset!r} has no effect with algo={config.algo!r}; use BC, SAC, TD3 or CrossQ."
        )
    if record.dataset == "needed" and config.dataset is None:
        raise UserError(f"algo={config.algo!r} needs a dataset; set dataset to a folder that `kit record` wrote.")
    if config.dataset is not None and options_of(config).get("frozen"):
        raise UserError(
            f"dataset={config.dataset!r} holds images, and with a frozen encoder only its features are stored; leave "
            "out the option frozen."
        )


def during_training(config: RunConfig) -> RunConfig:
    """Return `config` with the device for evaluations during training: the CPU for physics without image observations.

    A GPU needs as long for a step of a few robots as for one of thousands: an evaluation of Ant took ten seconds on an
    H200, which trains a million steps in that time, and five seconds on two slow CPU cores. Image observations are
    rendered on the training device.
    """
    env = envs.describe(config.env, config.env_options)
    images = encoders.sees_images(env.observation_space)
    return config.replace(device="cpu") if env.physics and not images else config


def config_of_rank(config: RunConfig, rank: int = 0, on_this_machine: int = 1) -> RunConfig:
    """Return the config of one `rank`: its share of envs, batch and threads, and its own seed.

    Raises `UserError` if `config` cannot be divided.
    """
    size = config.processes
    if not algorithm.find(config.algo).distributed:
        raise UserError(f"processes={size}: algo={config.algo!r} trains in one process; use 1, or algo='PPO'.")
    if ":" in config.device:
        raise UserError(f"processes={size} need one GPU each, but device={config.device!r} is one GPU; write cuda.")
    n_envs, batch = int(config.n_envs), int(config.overrides["batch_size"])
    for name, number in (("n_envs", n_envs), ("batch_size", batch)):
        if number % size:
            raise UserError(f"{name}={number} cannot be shared by {size} processes; choose a multiple of {size}.")
    return config.replace(
        n_envs=n_envs // size,
        overrides={**config.overrides, "batch_size": batch // size},
        threads=max(1, int(config.threads) // on_this_machine),
        seed=config.seed + rank * (n_envs // size),  # env i of a Gymnasium env has the seed seed + i
    )


def row_of(record: Algorithm, config: RunConfig, device: str, on_gpu: bool, images: bool) -> Row:
    """Return the hyperparameters of the config's preset, before the user's overrides.

    `on_gpu`: a GPU simulates MuJoCo. `images`: the policy sees images.
    """
    if config.preset == "sb3":
        return record.stock_row
    if config.preset in NAMED:
        named = NAMED[config.preset]
        return record.row | {"n_envs": named["n_envs"], **{name: named[name] for name in record.columns}}
    kind = config.env.partition(":")[0]
    task = (kind if kind in ROBOT_TASKS else config.env), config.algo
    if device != "cpu" and task in TASKS_ON_CUDA:
        return TASKS_ON_CUDA[task]
    row = TASKS.get(task, record.row)
    if on_gpu and config.algo == "PPO":
        return row | (PPO_FROM_IMAGES_ON_CUDA if images else PPO_ON_CUDA)
    return row


def device_of(config: RunConfig, images: bool) -> str:
    """Return the device for training and, if the env is a `Task`, for simulation. `images`: the policy sees images."""
    import torch

    if config.device != "auto":
        if config.device != "cpu" and not torch.cuda.is_available():
            raise UserError(
                f"device={config.device!r} needs a CUDA GPU and PyTorch sees none; use cpu or see `kit verify`."
            )
        return config.device
    kind = config.env.partition(":")[0]
    legged = config.env in LEGGED or (kind in ROBOT_TASKS and kind in LEGGED)
    suits_gpu = images or config.preset in NAMED or (legged and config.algo == "PPO")
    return "cuda" if suits_gpu and settings.gpu_works() else "cpu"


def _auto_n_envs(record: Algorithm, config: RunConfig, row: Row, device: str, physics: bool) -> int:
    """Return the number of envs for n_envs="auto"."""
    n_envs, per_core = int(row.get("n_envs", 1)), ENVS_PER_CORE if physics else ENVS_PER_CORE_NO_PHYSICS
    if config.preset != "auto" or not record.more_envs:
        return n_envs
    n_steps = int({"n_steps": 2048, **row, **config.overrides}["n_steps"])
    most = config.total_steps // (MIN_ROLLOUTS * n_steps)
    if device != "cpu" and physics:
        while n_envs > max(most, ENVS_PER_CORE):
            n_envs //= 2
        return n_envs
    most = min(most, per_core * limits.usable_cores() if device == "cpu" else ENVS_ON_CUDA_NO_PHYSICS)
    while 2 * n_envs <= most:
        n_envs *= 2
    return n_envs
