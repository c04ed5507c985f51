"""What `auto` chooses: the search on made-up machines, by hand; one real probe; and that what was asked for is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.config import RunConfig
from kit.errors import UserError
from kit.machine import busy, tune
from kit.machine.tune import Candidate, Plan, Reading, fitted, grid, search

LONG = 1_000_000


@pytest.fixture(autouse=True)
def a_machine_of_four_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tune, "usable_cores", lambda: 4)
    monkeypatch.setattr(tune, "_sees_cuda", lambda: False)


class Machine:
    """Answers as a machine would on which an env step of n worlds takes `overhead_s` and, of `world_s` each, what its
    threads leave of it; every turn takes `turn_s` on its clock. 100 env steps make an iteration."""

    def __init__(self, overhead_s=1e-3, world_s=1e-3, minibatch_s=0.0, turn_s=0.05, noise=(), cuda=None):
        self.overhead_s, self.world_s, self.minibatch_s, self.turn_s = overhead_s, world_s, minibatch_s, turn_s
        self.noise, self.cuda = list(noise), cuda
        self.now = 0.0
        self.turns: list[Candidate] = []

    def __call__(self, candidate: Candidate) -> Reading:
        self.turns.append(candidate)
        self.now += self.turn_s
        if candidate.device == "cuda":
            assert self.cuda is not None
            return self.cuda
        n, threads = candidate.n_envs, min(candidate.n_envs, candidate.threads)
        late = self.noise.pop(0) if self.noise else 1.0
        return Reading(100 * n, late * 100 * (self.overhead_s + n * self.world_s / threads), n * self.minibatch_s)

    def clock(self) -> float:
        return self.now


def cpu(*worlds: int, threads: int = 4) -> list[Candidate]:
    return [Candidate(n, threads, "cpu") for n in worlds]


def test_the_fewest_worlds_within_three_percent_of_the_fastest() -> None:
    # steps/s with 4 threads: n / (1 ms + n / 4 ms) = 8: 2667, 16: 3200, 32: 3556, 64: 3765; 97 % of that is 3652
    machine = Machine()
    plan = search(cpu(8, 16, 32, 64), machine, machine.clock)
    assert plan is not None and (plan.n_envs, plan.threads, plan.device) == (64, 4, "cpu")
    assert plan.steps_per_s == pytest.approx(64 / 17e-3)
    # with half the overhead: 8: 3200, 16: 3556, 32: 3765, 64: 3879; 97 % of that is 3762
    machine = Machine(overhead_s=0.5e-3)
    plan = search(cpu(8, 16, 32, 64), machine, machine.clock)
    assert plan is not None and plan.n_envs == 32
    machine = Machine(overhead_s=0.05e-3)  # 3902 and 3951: it makes no difference, so the row's own stays
    plan = search(cpu(8, 16), machine, machine.clock)
    assert plan is not None and plan.n_envs == 8


def test_a_disturbance_in_most_turns_changes_nothing() -> None:
    machine = Machine(overhead_s=0.05e-3, noise=[9, 1, 1, 7, 5, 3, 2, 4])  # the row and 16 worlds, in turn
    plan = search(cpu(8, 16), machine, machine.clock)
    assert plan is not None and plan.n_envs == 8
    assert machine.turns == cpu(8, 16) * tune.TURNS


def test_updates_with_the_same_batch_are_taken_to_cost_the_same() -> None:
    """Only the second candidate's minibatches were ever timed undisturbed."""
    readings = {8: Reading(800, 0.2, 0.4, batch=64), 16: Reading(1600, 0.4, 0.2, batch=64)}
    plan = search(cpu(8, 16), lambda candidate: readings[candidate.n_envs], Machine().clock)
    assert plan is not None and plan.n_envs == 8
    assert plan.steps_per_s == pytest.approx(800 / (0.2 + 0.1))


def test_fewer_threads_where_more_get_in_each_others_way() -> None:
    def measure(candidate: Candidate) -> Reading:
        return Reading(1000, 1.0 if candidate.threads == 2 else 1.5, 0.0)

    options = [Candidate(8, threads, "cpu") for threads in (4, 2, 1)]
    plan = search([*options, *cpu(16)], measure, Machine().clock)
    assert plan is not None and (plan.n_envs, plan.threads) == (8, 2)


def test_what_would_take_too_long_is_left_out() -> None:
    """A world takes 30 ms a step on 4 threads: 64 steps of 8 worlds are 4 s and more."""
    machine = Machine(world_s=30e-3, turn_s=1.9)
    plan = search(cpu(4, 8, 16), machine, machine.clock, budget_s=4.0)
    assert plan is not None and plan.n_envs == 4
    assert machine.turns == cpu(4, 4, 4)  # the last began just in time
    assert machine.now < 4.0 + machine.turn_s


def test_who_is_far_behind_gets_no_more_turns() -> None:
    machine = Machine(overhead_s=3e-3, world_s=0.5e-3)  # steps/s: 8: 2000, 64: 5818, and 1829 with one thread
    plan = search([*cpu(8, 64), *cpu(64, threads=1)], machine, machine.clock)
    assert plan is not None and (plan.n_envs, plan.threads) == (64, 4)
    assert [machine.turns.count(c) for c in (*cpu(8, 64), *cpu(64, threads=1))] == [2, tune.TURNS, 2]


def test_what_cannot_be_built_is_left_out() -> None:
    def measure(candidate: Candidate) -> Reading:
        if candidate.n_envs > 8:
            raise MemoryError
        return Reading(1000, 1.0, 0.0)

    plan = search(cpu(8, 16), measure, Machine().clock)
    assert plan is not None and plan.n_envs == 8
    assert search(cpu(16, 32), measure, Machine().clock) is None


# -- with a GPU --------------------------------------------------------------------------------------------------------

BOTH = [Candidate(8, 4, "cpu"), Candidate(8, 4, "cuda")]


def test_a_gpu_that_would_wait_for_the_physics_is_named_idle() -> None:
    """The CPU: 800 steps in 0.3 s. The GPU: the same physics, 0.3 s, and slower steps of the network around it."""
    machine = Machine(cuda=Reading(800, 0.4, 0.1, host_s=0.3))
    plan = search(BOTH, machine, machine.clock)
    assert plan == Plan(8, 4, "cpu", pytest.approx(800 / 0.3), plan.about_gpu)
    assert plan.about_gpu == (
        "the CPU is faster for this network; the GPU would do 1,600 steps/s and be idle 60% of the time"
    )


def test_a_gpu_that_is_faster_is_taken_and_its_waiting_said() -> None:
    machine = Machine(minibatch_s=1.0, cuda=Reading(800, 0.4, 0.1, host_s=0.3))
    plan = search(BOTH, machine, machine.clock)
    assert plan is not None and (plan.device, plan.steps_per_s) == ("cuda", 1600.0)
    assert plan.about_gpu == "the GPU will be idle 60% of the time, while the CPU does the physics"
    machine = Machine(minibatch_s=1.0, cuda=Reading(800, 0.4, 0.1))
    plan = search(BOTH, machine, machine.clock)
    assert plan is not None and (plan.device, plan.about_gpu) == ("cuda", "")


def test_worlds_on_a_card_are_as_many_as_fit_up_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.presets._device", lambda device: device)
    config = RunConfig(env="Go1Joystick", total_steps=10 * LONG, device="cuda", threads=4)
    (row,) = grid(config)
    asked: list[int] = []

    def fits(resolved: RunConfig) -> int:
        asked.append(int(resolved.n_envs))
        return 1024

    assert fitted(config, [row], fits) == [Candidate(1024, 4, "cuda")]
    assert asked == [row.n_envs] and row.n_envs > 1024
    assert fitted(config, [row], lambda resolved: 8192) == [row]
    assert fitted(config.replace(n_envs=4096), [Candidate(4096, 4, "cuda")], fits) == [Candidate(4096, 4, "cuda")]

    def full(resolved: RunConfig) -> int:
        raise UserError("n_envs='auto': no room.")

    assert fitted(config, [*cpu(32), row], full) == cpu(32), "then the CPU is left"
    with pytest.raises(UserError, match="no room"):
        fitted(config, [row], full)


# -- what may be chosen ------------------------------------------------------------------------------------------------


def worlds(config: RunConfig) -> list[int]:
    return list(dict.fromkeys(candidate.n_envs for candidate in grid(config)))


def test_worlds_double_while_twenty_rollouts_are_left() -> None:
    reach = RunConfig(env="Reach", total_steps=100_000)  # 8 × 256 steps: 20 rollouts of 16 worlds are 81,920
    assert worlds(reach) == [8, 16]
    assert worlds(reach.replace(total_steps=LONG)) == [8, 16, 32, 64]
    assert worlds(reach.replace(overrides={"n_steps": 512})) == [8]
    assert worlds(reach.replace(overrides={"n_steps": 24, "batch_size": 384})) == [8, 16, 32, 64]
    assert worlds(reach.replace(total_steps=LONG, overrides={"n_steps": 24, "batch_size": 128})) == [8, 16, 32, 64]
    assert {c.threads for c in grid(reach)} == {4, 2, 1}


def test_sac_has_as_many_gradient_steps_for_each_env_step_with_any_number_of_worlds() -> None:
    reach, ant = RunConfig(env="Reach", algo="SAC"), RunConfig(env="Ant", algo="SAC")
    assert worlds(reach) == [8, 16, 32] and worlds(ant) == [4, 8, 16]

    def steps(config: RunConfig, n_envs: int) -> int:
        return int(config.replace(n_envs=n_envs).resolve().overrides["gradient_steps"])

    assert [steps(reach, n) for n in (1, 8, 16, 32)] == [1, 2, 4, 8]
    assert [steps(ant, n) for n in (1, 4, 16)] == [1, 1, 4]
    assert steps(reach.replace(overrides={"gradient_steps": 3}), 16) == 3
    assert "gradient_steps" not in reach.replace(preset="sb3").resolve().overrides


def test_where_the_row_alone_is_left_nothing_is_measured() -> None:
    for fields in (
        {"total_steps": 40_000, "overrides": {"n_steps": 16}},
        {"env": "Ant", "total_steps": 100_000},
        {"algo": "SAC", "total_steps": LONG, "overrides": {"gradient_steps": 1}},
        {"algo": "A2C", "total_steps": LONG},
        {"n_envs": 5, "total_steps": LONG},
    ):
        config = RunConfig(**fields)
        assert not tune.needs_probe(config)
        assert tune.settle(config) == config
        assert config.resolve().threads > 0
    assert not tune.needs_probe(RunConfig(preset="sb3", total_steps=LONG))


def test_several_processes_share_a_run_without_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(total_steps=LONG)
    assert tune.needs_probe(config)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2" if "SIZE" in name else "0")
    assert not tune.needs_probe(config)


def test_what_was_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {c.threads for c in grid(RunConfig(total_steps=LONG, threads=3))} == {3}
    monkeypatch.setattr(tune, "_sees_cuda", lambda: True)
    monkeypatch.setattr("kit.presets._device", lambda device: device)
    both = grid(RunConfig(env="CartPole-v1", n_envs=5, threads=2, total_steps=LONG))
    assert both == [Candidate(5, 2, "cpu"), Candidate(5, 2, "cuda")]
    assert grid(RunConfig(n_envs=5, threads=2, total_steps=LONG, device="cpu")) == [Candidate(5, 2, "cpu")]
    assert {c.device for c in grid(RunConfig(total_steps=LONG, overrides={"autocast": "bf16"}))} == {"cuda"}


def test_a_wrong_request_is_refused_before_anything_is_built() -> None:
    for overrides, name in (({"n_steps": "many"}, "n_steps"), ({"batch_size": 0}, "batch_size"), ({"gama": 1}, "gama")):
        config = RunConfig(total_steps=LONG, overrides=overrides)
        tune.needs_probe(config)
        with pytest.raises(UserError, match=name):
            config.resolve()


# -- the real thing ----------------------------------------------------------------------------------------------------


def test_a_real_probe_is_kept_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(tune, "usable_cores", lambda: 2)
    config = RunConfig(env="Reach", total_steps=LONG, overrides={"n_steps": 16, "batch_size": 32})
    assert tune.needs_probe(config)
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    resolved = config.resolve()
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), generator)
    assert Candidate(int(resolved.n_envs), int(resolved.threads), resolved.device) in grid(config)
    assert resolved.overrides["n_steps"] == 16 and resolved.overrides["batch_size"] == 32

    plan = tune.known(config)
    assert plan is not None and plan.steps_per_s is not None and plan.steps_per_s > 10
    said = tune.sentence(config, resolved)
    assert said.startswith(f"auto: {resolved.n_envs} worlds on {resolved.threads} thread")
    assert "16 steps, batch 32: about" in said and said.removesuffix(f" {busy.SAID}").endswith("steps/s here")

    monkeypatch.setattr(tune, "search", lambda options, measure: pytest.fail("measured again"))
    assert not tune.needs_probe(config)
    assert config.replace(run_name="again").resolve() == resolved.replace(run_name="again")
    assert tune.sentence(config.replace(preset="sb3"), resolved) == ""
