"""Tests of resume: interrupted runs end bit-identical to uninterrupted ones; signals, commands, damaged checkpoints."""

import json
import os
import random
import signal
import time

import pytest

import kit
from kit.errors import UserError
from kit.format import checkpoint
from kit.runs import api
from kit.runs.finding import locate_unfinished
from kit.runs.fingerprint import fingerprint
from tests.runs.crash import SLIDE, Forked, complete, create
from tests.ui.fabricate import set_status

TASKS = {"PPO": {"env": "Reach", "env_options": {"randomize": True}}, "SAC": {}, "RecurrentPPO": {}}
EVERYTHING = {"eval_every": 200, "overrides": {"normalize": True, "learning_rate": "lin_0.001"}}
"""Settings with additional state, all at once; tests/trainers/test_trainer_resume.py varies the overrides."""


def rows(run):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.rows()]


def assert_same_end(run, uncut):
    assert run.status()["state"] == "finished", run.log()
    assert json.dumps(rows(run)) == json.dumps(rows(uncut))
    assert fingerprint(str(run.path)) == fingerprint(uncut)


def cut_when(run, condition, number=signal.SIGKILL):
    """Train `run` until `condition()`, then send the signal; return the exit code."""
    session = Forked(run)
    session.until(condition)
    session.kill(number)
    return session.wait()


def killed_at_random(run, kills, seed, longest_s=0.4):
    """SIGKILL `kills` sessions, each at a random moment; stop if one ends by itself. Return the number of sessions."""
    moments = random.Random(seed)
    done = 0
    while done < kills:
        session = Forked(run)
        moment = time.monotonic() + moments.uniform(0, longest_s)
        running = session.until(lambda moment=moment: time.monotonic() > moment)
        session.kill()
        session.wait()
        done += 1
        if not running:
            break
    return done


@pytest.mark.parametrize("algo", TASKS)
def test_cut_run_ends_like_the_uncut_one(tmp_path, algo):
    fields = {"env": SLIDE, "total_steps": 500, **EVERYTHING, **TASKS[algo]}
    uncut, cut = (create(tmp_path, name, algo, checkpoint_every=50, **fields) for name in ("uncut", "cut"))
    assert complete(uncut) == 0, uncut.log()
    for number in (signal.SIGTERM, signal.SIGKILL):
        step = max((c.step for c in cut.checkpoints()), default=-1)
        code = cut_when(cut, lambda step=step: any(c.step > step + 120 for c in cut.checkpoints()), number)
        assert code in (75, -number, 0), cut.log()
    assert complete(cut) == 0, cut.log()
    assert_same_end(cut, uncut)


@pytest.mark.parametrize("fields", [{"n_envs": 5, "env": SLIDE}, {"n_envs": 1, "env": "HalfCheetah-v5"}])
def test_resume_is_exact_for_other_n_envs_and_a_gymnasium_env(tmp_path, fields):
    uncut, cut = (create(tmp_path, name, checkpoint_every=100, **fields) for name in ("uncut", "cut"))
    assert complete(uncut) == 0, uncut.log()
    cut_when(cut, lambda: len(cut.checkpoints()) > 1)
    assert complete(cut) == 0, cut.log()
    assert_same_end(cut, uncut)


def test_an_env_that_cannot_be_snapshotted_is_reset_and_the_run_says_so(tmp_path):
    run = create(tmp_path, "run", env="CartPole-v1", total_steps=640, checkpoint_every=64)
    cut_when(run, lambda: bool(run.checkpoints()))
    assert "CartPole-v1" in run.log().splitlines()[0]
    assert complete(run) == 0, run.log()


@pytest.mark.storm
@pytest.mark.parametrize("algo", ["PPO", "A2C", "SAC"])
def test_thirty_kills_in_one_run(tmp_path, algo):
    fields = {"total_steps": 6000, "eval_every": 2000, "overrides": {"normalize": algo != "SAC"}}
    uncut = create(tmp_path, "uncut", algo, **fields)
    assert complete(uncut) == 0, uncut.log()
    cut = create(tmp_path, "cut", algo, checkpoint_every="0.05s", **fields)
    assert killed_at_random(cut, 30, seed=1, longest_s=0.6) >= 30
    assert complete(cut) == 0, cut.log()
    assert_same_end(cut, uncut)


def test_sigterm_saves_and_exits_75_also_when_repeated(tmp_path):
    run = create(tmp_path, "run", total_steps=10**9, checkpoint_every=10**9)
    session = Forked(run)
    assert session.until(lambda: run.status()["step"] > 0)
    session.kill(signal.SIGTERM)
    session.kill(signal.SIGINT)
    assert session.wait() == 75, run.log()
    assert run.status()["state"] == "interrupted" and "SIG" in run.status()["message"]
    assert run.latest() is not None and run.latest().step == run.status()["step"]


def test_an_evaluation_postponed_by_a_stop_at_the_last_step_is_saved(tmp_path):
    """Simulated by a change of eval_every after the last step: the next session only has to evaluate."""
    fields = {"env": SLIDE, "total_steps": 320}
    uncut, cut = (create(tmp_path, name, eval_every=n, **fields) for name, n in (("uncut", 320), ("cut", 9999)))
    assert complete(uncut) == complete(cut) == 0
    (cut.path / "config.yaml").write_text(cut.config.replace(eval_every=320).to_yaml())
    assert complete(type(cut)(cut.path)) == 0, cut.log()
    assert_same_end(cut, uncut)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path):
    uncut, run = (create(tmp_path, name, env=SLIDE, checkpoint_every=100) for name in ("uncut", "run"))
    assert complete(uncut) == 0
    cut_when(run, lambda: len(run.checkpoints()) >= 3)
    before, newest = run.checkpoints()[-2:]
    path = newest.path / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert run.latest().step == before.step
    assert complete(run) == 0
    assert f"checkpoint {newest.step} is damaged" in run.log() and f"resumed from step {before.step:,}" in run.log()
    assert_same_end(run, uncut)


def test_pause_checkpoint_unpause_and_stop_while_paused(tmp_path):
    run = create(tmp_path, "run", total_steps=10**9, checkpoint_every=10**9)
    session = Forked(run)
    run.wait(30, until=lambda now: now["step"] > 0)
    run.pause()
    run.wait(30, until=lambda now: now["state"] == "paused")
    run.unpause()
    run.wait(30, until=lambda now: now["state"] == "running")
    run.checkpoint()
    run.wait(30, until=lambda now: now["checkpoint"] is not None)
    run.pause()
    run.wait(30, until=lambda now: now["state"] == "paused")
    run.stop()
    assert session.wait() == 75, run.log()
    assert run.status()["state"] == "interrupted"


def test_session_limit_ends_in_time_and_resumably(tmp_path):
    run = create(tmp_path, "run", total_steps=10**9, session_limit="2s")
    assert complete(run) == 75, run.log()
    assert "session_limit='2s'" in run.status()["message"] or "session_limit=2s" in run.status()["message"]
    assert run.latest().step > 0


def test_a_run_in_use_is_refused(tmp_path):
    from kit import resume
    from kit.errors import UserError

    run = create(tmp_path, "run", total_steps=10**9)
    session = Forked(run)
    assert session.until(lambda: run.status()["step"] > 0)
    with pytest.raises(UserError, match="in use by"):
        resume(run.path)
    session.kill()
    session.wait()
    assert run.status()["state"] == "interrupted"


def test_an_exception_sets_exit_code_state_and_log(tmp_path):
    run = create(tmp_path, "run", env=SLIDE, checkpoint_every=100)
    cut_when(run, lambda: bool(run.checkpoints()))
    newest = run.checkpoints()[-1]
    state = newest.read()
    del state["optimizer"]
    checkpoint.write(newest.path.parent, newest.step, state)
    assert complete(run) == 1
    assert run.status()["state"] == "failed" and "optimizer" in run.status()["message"]
    assert "Traceback" in run.log()


def flip(path, at=-5):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut_sac(tmp_path):
    """A SAC run stopped after at least three checkpoints, all of which need the first replay segment."""
    run = create(tmp_path, "run", "SAC", env=SLIDE, total_steps=800, checkpoint_every=50)
    assert cut_when(run, lambda: len(run.checkpoints()) >= 3, signal.SIGTERM) == 75
    return run


def test_a_flipped_bit_in_shared_replay_loses_the_replay_and_nothing_else(tmp_path):
    run = cut_sac(tmp_path)
    newest, rows = run.checkpoints()[-1], len(run.rows())
    flip(newest.replay()[0])
    assert complete(run) == 0, run.log()
    lost = "its replay data is damaged, so the replay buffer fills again before learning continues"
    assert f"resumed from step {newest.step:,}; {lost}" in run.log()
    assert run.status()["state"] == "finished" and len(run.rows()) > rows, "its metrics must be kept"
    trainer = run.checkpoints()[-1].read()["trainer"]
    assert trainer["replay_first"] == newest.step // 2 and trainer["replay_written"] == 400
    assert not list((run.path / "checkpoints").glob(".damaged-*")), "no checkpoint may be renamed as damaged"
    assert len(fingerprint(run)) == 64


def test_a_run_with_only_damaged_checkpoints_fails_and_keeps_its_files(tmp_path):
    run = cut_sac(tmp_path)
    rows = (run.path / "metrics.jsonl").read_bytes()
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    for found in run.checkpoints():
        flip(found.path / "policy.safetensors")
    with pytest.raises(UserError, match="has only damaged checkpoints; name the step of a policy"):
        run.find("latest")
    session = Forked(run)
    assert session.wait() == 1
    assert "all checkpoints of" in run.status()["message"] and run.status()["state"] == "failed"
    assert (run.path / "metrics.jsonl").read_bytes() == rows
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == names


@pytest.mark.storm
def test_a_thousand_kills_leave_a_thousand_readable_runs(tmp_path):
    """After each kill, the newest checkpoint is readable, and not older than the one reported in status.json."""
    kills, moments, readable = int(os.environ.get("KIT_KILLS", 1000)), random.Random(7), 0
    first = create(tmp_path, "first", total_steps=10**9, checkpoint_every="0.05s")
    begun, session = time.monotonic(), Forked(first)
    session.until(lambda: first.status()["checkpoint"] is not None)
    start_s = time.monotonic() - begun  # of this machine, under its load
    session.kill()
    session.wait()
    for number in range(kills):
        if number % 50 == 0:
            run = create(
                tmp_path, f"run{number}x", "SAC" if number % 100 else "PPO", total_steps=10**9, checkpoint_every="0.05s"
            )
        session = Forked(run)
        moment = time.monotonic() + start_s * moments.uniform(0.2, 2.5)
        session.until(lambda moment=moment: time.monotonic() > moment)
        session.kill()
        session.wait()
        said = run.status()["checkpoint"]
        if said is not None:
            found = run.latest()
            assert found is not None and found.step >= said["step"], (number, said, found)
            found.read()
            readable += 1
    assert readable > kills // 4, "most kills should come after the first checkpoint"


def test_a_pruned_trial_is_not_the_latest_unfinished_run(tmp_path):
    for name, phase in (("unlucky", "interrupted"), ("pruned", "pruned")):
        set_status(create(tmp_path, name).path, state="interrupted", phase=phase)
    assert locate_unfinished(str(tmp_path))[0].name == "unlucky"


def test_fewer_steps_than_the_run_has_are_refused(tmp_path):
    run = create(tmp_path, "run", total_steps=64)
    assert complete(run) == 0
    with pytest.raises(UserError, match=r"total_steps=32 is less than the 64 steps of .*run; give more"):
        kit.resume(run.path, total_steps=32)
    assert kit.Run(run.path).config.total_steps == 64


def test_eval_every_auto_is_a_tenth_of_the_new_total_also_on_resume(tmp_path):
    run = create(tmp_path, "run", total_steps=64)
    assert complete(run) == 0
    again = kit.resume(run.path, total_steps=128, eval_every="auto")
    assert again.status()["state"] == "finished" and again.config.eval_every == 12


def test_processes_that_cannot_share_the_envs_are_refused_on_resume_too(tmp_path):
    run = create(tmp_path, "run", total_steps=64)
    assert complete(run) == 0
    with pytest.raises(UserError, match=r"cannot be shared by 7 processes"):
        kit.resume(run.path, total_steps=128, processes=7)
    assert kit.Run(run.path).config.processes == 1


def test_a_damaged_best_policy_is_one_sentence_and_does_not_fail_the_run(tmp_path):
    run = create(tmp_path, "run", total_steps=128, eval_every=64)
    assert complete(run) == 0
    (run.best().path / "policy.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"is damaged \(best/step_000000064/policy\.safetensors has 7 bytes"):
        kit.evaluate(run, episodes=2)
    again = kit.resume(run.path, total_steps=144, eval_every=0)
    assert again.status()["state"] == "finished"


def test_damaged_replay_data_do_not_hide_the_policy(tmp_path):
    run = create(tmp_path, "run", total_steps=64, algo="SAC", eval_every=0)
    assert complete(run) == 0
    newest = run.latest()
    next((run.path / "replay").glob("*.safetensors")).write_bytes(b"damaged")
    assert run.latest() == newest
    assert kit.evaluate(run, episodes=2)["episodes"] == 2


def test_two_runs_launched_in_one_second_get_two_names(tmp_path, monkeypatch):
    monkeypatch.setattr("kit.config.time.gmtime", lambda: time.struct_time((2026, 11, 27, 9, 0, 0, 4, 331, 0)))
    config = kit.RunConfig(env=SLIDE, n_envs=2, threads=1, total_steps=64, runs_dir=str(tmp_path))
    names = [api.create(config, {}).name for _ in range(3)]
    assert names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]
