"""Tests of `Helpers`, the thread pool of the CPU simulator: parallel work, exceptions, interrupts, clean-up."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import mujoco
import pytest

from kit.sim.cpu import CpuSim
from kit.sim.helpers import Helpers


def test_every_thread_and_the_caller_do_the_work_once():
    helpers, seen = Helpers(3), []
    together = threading.Barrier(4, timeout=60)

    def work() -> None:
        together.wait()  # passes only when all four threads are in `work`
        seen.append(threading.get_ident())

    for turn in range(1, 4):
        helpers.run(work, work, work, work)
        assert len(seen) == 4 * turn and len(set(seen)) == 4
    helpers.close()


@pytest.mark.parametrize("count", [0, 2])
def test_run_raises_the_exception_of_a_thread_and_the_next_run_works(count):
    helpers, caller, calls = Helpers(count), threading.get_ident(), []

    def fail_elsewhere() -> None:
        if count == 0 or threading.get_ident() != caller:
            raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        helpers.run(*[fail_elsewhere] * (count + 1))
    helpers.run(*[lambda: calls.append(1)] * (count + 1))
    assert len(calls) == count + 1
    helpers.close()


@pytest.mark.parametrize("count", [0, 2])
def test_a_closed_pool_refuses_work_instead_of_waiting_for_its_threads(count):
    helpers = Helpers(count)
    helpers.close()
    with pytest.raises(RuntimeError, match="the env is closed"):
        helpers.run(*[list] * (count + 1))


def test_an_interrupted_caller_leaves_no_work_behind():
    helpers, caller, release, finished = Helpers(1), threading.get_ident(), threading.Event(), []

    def work() -> None:
        if threading.get_ident() == caller:
            release.set()
            raise KeyboardInterrupt
        release.wait(200)
        finished.append(1)

    with pytest.raises(KeyboardInterrupt):
        helpers.run(work, work)
    assert finished == [1]
    helpers.close()


def test_a_garbage_collected_simulator_ends_its_threads():
    before = set(threading.enumerate())
    xml = '<mujoco><worldbody><body><joint/><geom size=".1"/></body></worldbody></mujoco>'
    sim = CpuSim(mujoco.MjModel.from_xml_string(xml), 4, threads=4)
    sim.step()
    its_own = set(threading.enumerate()) - before
    assert len(its_own) == 3
    del sim
    gc.collect()
    assert not its_own & set(threading.enumerate())


def test_python_ends_with_a_simulator_still_open():
    code = "import kit; env = kit.make_vec('Ant', 4, threads=4); env.step(env.reset(0)[:, :8]); print('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
