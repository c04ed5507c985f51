"""Memory runs out: training goes on with half the worlds. And what the GPU does while a run trains."""

import gc

import pytest
import torch

from kit.errors import Overflow, UserError
from kit.machine import gpu, memory
from kit.runs.session import Session
from kit.sim.kernels import recording
from tests.envs.slide import Slide
from tests.runs.crash import SLIDE, create

CARD_HOLDS = 100
"""Worlds."""


class Greedy(Slide):
    """Slide, on a card with room for so many worlds. It notices when the worlds are made, or once it has trained."""

    name = "Greedy"
    steps_before = 0

    def bind(self, sim):
        super().bind(sim)
        self.taken = 0
        self.allocate()

    def act(self, action):
        self.taken += 1
        self.allocate()
        super().act(action)

    def allocate(self):
        if self.sim.n > CARD_HOLDS and self.taken >= self.steps_before:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 15 GiB")


class GreedyLater(Greedy):
    name = "GreedyLater"
    steps_before = 40


GREEDY, GREEDY_LATER = f"{__name__}:Greedy", f"{__name__}:GreedyLater"


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "CUDA out of memory. Tried"),
        (RuntimeError("Failed to allocate 4096 bytes on device 'cuda:0'"), "Failed to allocate 4096"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "CUBLAS_STATUS_ALLOC"),
        (RuntimeError("Warp CUDA error 2: out of memory (in function wp_alloc_device_async)"), "out of memory"),
        (MemoryError(), "MemoryError"),
        (Overflow("World 0 needed more than constraints=7"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("out of memory lane"), None),
    ],
)
def test_which_errors_mean_it(error, means):
    assert (memory.shortage(error) is None) if means is None else (means in memory.shortage(error))


def test_a_recording_broken_off_by_it_counts():
    with pytest.raises(RuntimeError) as raised:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert memory.shortage(raised.value) == "CUDA out of memory. Tried to allocate 2.00 GiB"


def test_torch_s_own_allocator_is_understood():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert memory.shortage(raised.value)


def test_while_a_graph_is_recorded_python_collects_nothing():
    with recording(torch.device("cpu")):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="broken"), memory.no_garbage_collection():
        raise RuntimeError("broken off")
    assert gc.isenabled()


@pytest.mark.parametrize("algo", ["PPO", "A2C"])
def test_too_many_worlds_from_the_start(tmp_path, algo):
    run = create(tmp_path, "run", algo, env=GREEDY, n_envs=300, total_steps=6000)
    assert Session(run.path)() == 0
    config = type(run)(run.path).config
    assert config.n_envs == 75  # 300, 150, 75
    assert config.overrides.get("batch_size", 16) == 16  # 75 × 16 steps: 16 still divides
    assert run.status()["step"] >= 6000
    assert [row["run/n_envs"] for row in run.rows() if "run/n_envs" in row] == [75]


def test_later_it_goes_on_from_the_last_checkpoint_with_its_history(tmp_path, capsys):
    fields = {"total_steps": 12_000, "checkpoint_every": 1, "overrides": {"n_steps": 12, "batch_size": 600}}
    run = create(tmp_path, "run", env=GREEDY_LATER, n_envs=150, **fields)
    messages = set()
    assert Session(run.path, lambda now: messages.add(now["message"]))() == 0
    config = type(run)(run.path).config
    assert (config.n_envs, config.overrides["batch_size"]) == (75, 450)  # divides 75 × 12 = 900
    rows = run.rows()
    before = [row["step"] for row in rows if "rollout/ep_rew_mean" in row and row["step"] <= 3 * 12 * 150]
    assert before, "what was trained with 150 worlds is kept"
    [shrunk] = [row for row in rows if "run/n_envs" in row]
    assert shrunk["step"] in before, "it went on from a checkpoint"
    after = [row["step"] for row in rows if row["step"] > shrunk["step"]]
    assert after[0] == shrunk["step"] + 12 * 75
    sentence = "memory ran out with 150 envs (CUDA out of memory. Tried to allocate 2.00 GiB.); going on with 75"
    assert sentence in capsys.readouterr().out
    assert run.status()["state"] == "finished"


def test_a_resume_goes_on_with_the_smaller_number(tmp_path):
    run = create(tmp_path, "run", env=GREEDY_LATER, n_envs=150, total_steps=12_000)
    assert Session(run.path)() == 0
    from kit import resume

    again = resume(run.path, total_steps=14_000)
    assert again.status()["step"] >= 14_000 and again.config.n_envs == 75
    assert [row["run/n_envs"] for row in run.rows() if "run/n_envs" in row] == [75], "said once"


def test_there_is_an_end_to_halving(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.CARD_HOLDS", 10)
    run = create(tmp_path, "run", env=GREEDY, n_envs=200)
    with pytest.raises(UserError, match=r"n_envs=100: memory ran out \(CUDA out of memory\..*choose a smaller network"):
        Session(run.path)()
    assert run.status()["state"] == "failed"
    sac = create(tmp_path, "sac", "SAC", env=GREEDY, n_envs=200)
    with pytest.raises(UserError, match="choose a smaller buffer_size, n_envs or network"):
        Session(sac.path)()


@pytest.mark.parametrize("algo", ["PPO", "A2C", "SAC"])
def test_rows_say_how_busy_the_card_was(tmp_path, monkeypatch, algo):
    """A made-up card that is busy in updates only; everything above its reading is real."""
    watching = []
    real = gpu.Monitor.__init__

    def init(self, device):
        real(self, device)
        watching.append(self)

    def read():
        return gpu.Summary(1, 80.0 if watching[0].phase == "update" else 5.0, 10**9, 50.0, 70.0)

    monkeypatch.setattr(gpu.Monitor, "__init__", init)
    monkeypatch.setattr(gpu, "reader", lambda device: read)
    monkeypatch.setattr(gpu, "SAMPLES_PER_S", 200.0)
    run = create(tmp_path, "run", algo, env=SLIDE, total_steps=600)
    seen = []
    assert Session(run.path, lambda now: seen.append(now["gpu"]))() == 0
    rows = [row for row in run.rows() if "gpu/update_busy" in row]
    assert rows and all(row["gpu/update_busy"] == 80.0 and row["gpu/memory_gb"] == 1.0 for row in rows)
    assert {row["gpu/rollout_busy"] for row in rows if "gpu/rollout_busy" in row} == {5.0}
    assert run.status()["gpu"] is None, "the run has ended"
    assert watching[0].summaries()["rollout"]["busy_percent"] == 5.0
    assert not watching[0]._thread.is_alive()
