"""Check a task or env of your own before you train on it: shapes, dtypes, NaN, seeds, resets, snapshots, images.

A failed check raises a `UserError` that says what is wrong and how to correct it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import torch
from gymnasium import spaces

from kit.envs.contract import BatchEnv
from kit.envs.obs import Obs, leaves
from kit.envs.outputs import fail, require, require_finite
from kit.envs.registry import check_source, find, make_vec, without_opponents
from kit.envs.task import Task
from kit.errors import UserError, check_whole

N, SEED = 3, 0
"""Number of envs in a check, and their seed. `_kept` looks for the task's tensors with this number of rows."""
REPEATED = 20
"""Steps that are simulated twice, to compare the results bit for bit."""
Say = Callable[[str], object]


def passed(line: str) -> None:
    print("✓", line)


def check_task(env: str, env_options: Mapping[str, Any] | None = None, steps: int = 500, say: Say = passed) -> None:
    """Check the task or Gymnasium env `env` with random actions; `say` gets one line per check that it passes.

    A task is checked with three envs, for `steps` steps: spaces; shapes, dtypes and finite values of all that its
    methods return; `reset` only changes the envs of its mask and draws the same number of random numbers for any mask;
    the same seed gives the same steps; a restored snapshot continues bit for bit; `compute_reward` of a goal task;
    images. A Gymnasium env goes through Gymnasium's own `check_env`, and is then stepped likewise. Raises `UserError`
    at the first failed check.
    """
    check_whole("steps", steps, 1)
    if not isinstance(env, str):
        raise UserError(f"env={env!r} must be a name; put the class into a module and name it, as in 'module:Class'.")
    check_source("env", env)
    if not (isinstance(entry := find(env), type) and issubclass(entry, Task)):
        _check_gymnasium(env, entry, env_options or {}, steps, say)
        return
    made = make_vec(env, N, seed=SEED, threads=1, env_options=env_options)  # checks the first observation
    task: Task = made.task  # type: ignore[attr-defined]
    try:
        say(f"observation: {made.observation_space}")
        say(f"action: {task.action_space}")
        for line in task.task_info.robot:
            say(f"the robot's {line}")
        made.step(actions := _actions(made))  # checks the first step
        say("shapes, dtypes and finite values of observation, reward, terminated, success, failed and info")
        for hint in _hints(task, actions):
            say(f"a hint: {hint}")
        _check_masks(made, task)
        say("reset changes the envs of its mask only, and draws as many random numbers for any mask")
        _check_seeds(made)
        say(f"the same seed gives the same {REPEATED} steps, whatever other random generators do")
        _check_snapshot(made)
        say(f"a restored snapshot continues bit for bit, for {REPEATED} steps")
        _check_steps(made, env, steps, say)
        if task.cameras:
            image = made.render(None, 64, 64)
            require(task, "render()", image, (N, 1, 64, 64, 3), torch.uint8)
            say(f"images of the cameras {', '.join(task.cameras)}")
    finally:
        made.close()


def check_one_step(env: str, env_options: Mapping[str, Any] | None = None) -> None:
    """Check what the task's methods return in a reset and one step, and what it keeps. Raises `UserError`."""
    made = make_vec(env, N, seed=SEED, threads=1, env_options=without_opponents(env, env_options or {}))
    try:
        made.step(_actions(made))  # an env checks its first reset and its first step
        if isinstance(task := getattr(made, "task", None), Task):
            task.state()
    finally:
        made.close()


def _hints(task: Task, actions: torch.Tensor) -> Iterator[str]:
    """Yield a sentence for each dtype that works, but may not be what the author meant."""
    for name, value in leaves("observe()", task.observe()):
        if value.is_floating_point() and value.dtype not in (torch.float32, task.dtype):
            yield f"{name} returns {value.dtype}; the policy gets it as torch.float32"
    if not (dtype := task.reward(actions).dtype).is_floating_point:
        yield f"reward() returns {dtype}, whole numbers; if fractions were cut off, compute it with floats"


def _check_masks(env: BatchEnv, task: Task) -> None:
    """Check that `reset` changes only the envs of its mask, and draws as many random numbers for any mask."""
    generator, states = torch.Generator(task.device), []
    for mask in ([True, False, False], [False, False, False], [True, True, True]):
        env.reset(SEED)
        for _ in range(2):
            env.step(_actions(env))
        before = _kept(task)
        task.reset(torch.tensor(mask, device=task.device), generator.manual_seed(SEED))
        states.append(generator.get_state())
        for name, value in _kept(task).items():
            changed = (value != before[name]).flatten(1).any(1) if value.ndim > 1 else value != before[name]
            if bool((changed & ~torch.tensor(mask, device=task.device)).any()):
                raise UserError(
                    f"env={task.name!r}: reset(mask) changed {name!r} of an env that `mask` leaves out; assign with "
                    "torch.where(mask, new, old) or x[mask] = new[mask]."
                )
    if not all(torch.equal(state, states[0]) for state in states):
        raise UserError(
            f"env={task.name!r}: reset draws more random numbers for some masks than for others; draw for all self.n "
            "envs and keep those of the mask, so that an env's numbers do not depend on the other envs."
        )


def _kept(task: Task) -> dict[str, torch.Tensor]:
    """Copy those tensors of the task's snapshot that have one row per env."""
    return {name: x.clone() for name, x in task.snapshot().items() if x.ndim and len(x) == N}


def _check_seeds(env: BatchEnv) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = _played(env, env.reset(SEED))
        torch.manual_seed(2)
        second = _played(env, env.reset(SEED))
    _compare(env, first, second, "the same seed gave another", "draw with the generator that `reset` gets")


def _check_snapshot(env: BatchEnv) -> None:
    env.reset(SEED)
    for action in _sequence(env, 5):
        env.step(action)
    snapshot = env.snapshot()
    first = _played(env)
    env.reset(SEED + 1)  # so that what `reset` draws for an episode differs from the snapshot's
    for action in _sequence(env, 3):
        env.step(action)
    env.restore(snapshot)
    hint = "name every tensor of the task's state in `keeps`, and change it in place"
    _compare(env, first, _played(env), "after a restored snapshot, step {step} gave another", hint)


def _played(env: BatchEnv, first: Obs | None = None) -> list[dict[str, torch.Tensor]]:
    """Play `REPEATED` steps; return observation, reward and terminated of each, copied. All values must be finite."""
    rows = [] if first is None else [first]
    results = [{name: x.clone() for name, x in leaves("observation", row)} for row in rows]
    for action in _sequence(env, REPEATED):
        obs, reward, terminated, _, _ = env.step(action)
        _require_finite_step(env, obs, reward)  # before `_compare`, because NaN differs from itself
        row = {**dict(leaves("observation", obs)), "reward": reward, "terminated": terminated}
        results.append({name: x.clone() for name, x in row.items()})
    return results


def _require_finite_step(env: BatchEnv, obs: Obs, reward: torch.Tensor) -> None:
    task: Task = env.task  # type: ignore[attr-defined]
    require_finite(task, "reward()", reward)
    for name, value in leaves("observe()", obs):
        require_finite(task, name, value)


def _compare(env: BatchEnv, one: list[Any], other: list[Any], problem: str, hint: str) -> None:
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        for name, value in a.items():
            if not torch.equal(value, b[name]):
                what = f"{problem.format(step=step + 1)} {name.replace('.', ' ', 1)}"
                raise UserError(f"env={env.task.name!r}: {what}; {hint}.")  # type: ignore[attr-defined]


def _check_steps(env: BatchEnv, name: str, steps: int, say: Say) -> None:
    """Step the env `name` with random actions, and check all values: finite, in the space, and rewards of goals.

    A Gymnasium env checks by itself that its values are finite, and its space often is only a rough guide.
    """
    task: Task | None = getattr(env, "task", None)
    goals = _rewards_goals(env)
    obs, ended, successes, returns = env.reset(SEED), 0, 0, torch.zeros(0)
    for action in _sequence(env, steps):
        obs, reward, terminated, truncated, info = env.step(action)
        if task is not None:
            _require_finite_step(env, obs, reward)
            _check_bounds(task, env.observation_space, obs)
        if goals:
            _check_goal_reward(env, name, info["final_obs"], reward)
        done = terminated | truncated
        ended += int(done.sum())
        successes += int((info["success"] & done).sum()) if "success" in info else 0
        returns = torch.cat([returns, info["episode_return"][done].cpu().float()])
    text = f"{steps} steps of random actions in {N} envs: "
    if ended:
        success = f", {successes} with success" if "success" in info else ""
        say(f"{text}{ended} episodes ended{success}, returns {returns.min():.3g} to {returns.max():.3g}")
    else:
        say(f"{text}no episode ended" + (f" (a time limit of {task.episode_steps:,} steps)" if task else ""))
    if goals:
        say("compute_reward gives the rewards of these steps")


def _rewards_goals(env: BatchEnv) -> bool:
    """Return whether `compute_reward` can be compared with rewards. Randomization may add noise to the goals."""
    space = env.observation_space
    if not (isinstance(space, spaces.Dict) and {"achieved_goal", "desired_goal"} <= set(space)):
        return False
    obs: Any = env.reset(SEED)
    try:
        env.compute_reward(obs["achieved_goal"], obs["desired_goal"])
    except UserError:
        return False
    return getattr(env, "randomizer", None) is None


def _check_goal_reward(env: BatchEnv, name: str, obs: Any, reward: torch.Tensor) -> None:
    """Check that `compute_reward` of the goals in `obs` gives `reward` (n,), that of the step which led to `obs`."""
    computed = env.compute_reward(obs["achieved_goal"], obs["desired_goal"])
    if computed.shape != reward.shape:
        shapes = f"returned shape {tuple(computed.shape)}, expected {tuple(reward.shape)}"
        hint = "it takes many pairs of goals, and returns a reward for each"
        raise UserError(f"env={name!r}: compute_reward() {shapes}; {hint}.")
    wrong = ~torch.isclose(computed, reward, rtol=1e-5, atol=1e-5)
    if bool(wrong.any()):
        got, expected = f"{computed[wrong][0]:.6g}", f"{reward[wrong][0]:.6g}"
        problem = f"compute_reward() returned {got} for the goals of a step whose reward was {expected}"
        raise UserError(f"env={name!r}: {problem}; hindsight mixes both, so use compute_reward() in each step.")


def _check_bounds(task: Task, space: gymnasium.Space, obs: Any) -> None:
    if isinstance(space, spaces.Dict):
        for name, inner in space.items():
            _check_bounds(task, inner, obs[name])
    elif isinstance(space, spaces.Box) and obs.is_floating_point():
        low, high = (torch.as_tensor(bound, dtype=obs.dtype, device=obs.device) for bound in (space.low, space.high))
        slack = 1e-5 * (1 + obs.abs())
        if bool(((obs < low - slack) | (obs > high + slack)).any()):
            got = f"values from {obs.min():.3g} to {obs.max():.3g}"
            expected = f"{space.low.min():.3g} to {space.high.max():.3g} as observation_space says"
            fail(task, "observe()", got, expected, "widen the space or clamp the values")


def _sequence(env: BatchEnv, steps: int) -> list[torch.Tensor]:
    """Return random actions (n, ...) for `steps` steps; every call returns the same actions."""
    env.action_space.seed(SEED)
    return [_actions(env) for _ in range(steps)]


def _actions(env: BatchEnv) -> torch.Tensor:
    return torch.stack([torch.as_tensor(env.action_space.sample()) for _ in range(N)])


def _check_gymnasium(env: str, entry: Any, env_options: Mapping[str, Any], steps: int, say: Say) -> None:
    from gymnasium.utils.env_checker import check_env

    try:
        made: Any = entry(**env_options) if isinstance(entry, type) else gymnasium.make(entry, **env_options)
        check_env(made.unwrapped, skip_render_check=True)
        made.close()
    except Exception as error:
        problem = " ".join((str(error) or type(error).__name__).split())
        raise UserError(f"env={env!r} fails Gymnasium's check_env: {problem}") from None
    say("Gymnasium's check_env")
    several = make_vec(env, N, seed=SEED, env_options=env_options)
    try:
        _check_steps(several, env, steps, say)
    finally:
        several.close()
