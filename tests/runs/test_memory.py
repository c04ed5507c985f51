"""Tests of memory and GPU load: out-of-memory errors halve n_envs; metrics report how busy the GPU was."""

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
"""Number of envs that fit into the memory of the simulated GPU."""


class Greedy(Slide):
    """Slide that runs out of memory with more than `CARD_HOLDS` envs, when built or after `steps_before` steps."""

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
def test_out_of_memory_errors_are_recognised(error, means):
    assert (memory.shortage(error) is None) if means is None else (means in memory.shortage(error))


def test_a_cuda_graph_capture_that_ran_out_of_memory_is_recognised():
    with pytest.raises(RuntimeError) as raised:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert memory.shortage(raised.value) == "CUDA out of memory. Tried to allocate 2.00 GiB"


def test_an_error_of_torchs_cpu_allocator_is_recognised():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert memory.shortage(raised.value)


def test_garbage_collection_is_off_during_a_graph_capture():
    with recording(torch.device("cpu")):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="broken"), memory.no_garbage_collection():
        raise RuntimeError("broken off")
    assert gc.isenabled()


@pytest.mark.parametrize("algo", ["PPO", "A2C"])
def test_n_envs_is_halved_until_the_envs_fit(tmp_path, algo):
    run = create(tmp_path, "run", algo, env=GREEDY, n_envs=300, total_steps=6000)
    assert Session(run.path)() == 0
    config = type(run)(run.path).config
    assert config.n_envs == 75  # 300, 150, 75
    assert config.overrides.get("batch_size", 16) == 16  # unchanged: 16 divides 75 × 16 steps
    assert run.status()["step"] >= 6000
    assert [row["run/n_envs"] for row in run.rows() if "run/n_envs" in row] == [75]


def test_after_running_out_of_memory_training_continues_from_the_last_checkpoint(tmp_path, capsys):
    fields = {"total_steps": 12_000, "checkpoint_every": 1, "overrides": {"n_steps": 12, "batch_size": 600}}
    run = create(tmp_path, "run", env=GREEDY_LATER, n_envs=150, **fields)
    messages = set()
    assert Session(run.path, lambda now: messages.add(now["message"]))() == 0
    config = type(run)(run.path).config
    assert (config.n_envs, config.overrides["batch_size"]) == (75, 450)  # divides 75 × 12 = 900
    rows = run.rows()
    before = [row["step"] for row in rows if "rollout/ep_rew_mean" in row and row["step"] <= 3 * 12 * 150]
    assert before, "metrics of the training with 150 envs must be kept"
    [shrunk] = [row for row in rows if "run/n_envs" in row]
    assert shrunk["step"] in before, "training must continue from a checkpoint"
    after = [row["step"] for row in rows if row["step"] > shrunk["step"]]
    assert after[0] == shrunk["step"] + 12 * 75
    sentence = "memory ran out with 150 envs (CUDA out of memory. Tried to allocate 2.00 GiB.); going on with 75"
    assert sentence in capsys.readouterr().out
    assert run.status()["state"] == "finished"


def test_a_resume_uses_the_smaller_n_envs(tmp_path):
    run = create(tmp_path, "run", env=GREEDY_LATER, n_envs=150, total_steps=12_000)
    assert Session(run.path)() == 0
    from kit import resume

    again = resume(run.path, total_steps=14_000)
    assert again.status()["step"] >= 14_000 and again.config.n_envs == 75
    assert [row["run/n_envs"] for row in run.rows() if "run/n_envs" in row] == [75], "must be logged once"


def test_halving_ends_with_an_error_if_fewer_envs_do_not_help(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.CARD_HOLDS", 10)
    run = create(tmp_path, "run", env=GREEDY, n_envs=200)
    with pytest.raises(UserError, match=r"n_envs=100: memory ran out \(CUDA out of memory\..*choose a smaller network"):
        Session(run.path)()
    assert run.status()["state"] == "failed"
    sac = create(tmp_path, "sac", "SAC", env=GREEDY, n_envs=200)
    with pytest.raises(UserError, match="choose a smaller buffer_size, n_envs or network"):
        Session(sac.path)()


@pytest.mark.parametrize("algo", ["PPO", "A2C", "SAC"])
def test_metrics_report_how_busy_the_gpu_was(tmp_path, monkeypatch, algo):
    """Only the reader of the GPU is a stub: 80 % busy in updates, 5 % otherwise."""
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
    assert run.status()["gpu"] is None, "must be None once the run has ended"
    assert watching[0].summaries()["rollout"]["busy_percent"] == 5.0
    assert not watching[0]._thread.is_alive()
