"""Tests of distillation: exact resume without the teacher's run, teacher score, further training, export, refusals."""

import json
import shutil
import sys

import numpy as np
import pytest
from stable_baselines3 import PPO

import kit
from kit import trust
from kit.envs.play import play
from kit.errors import UserError
from kit.runs.evaluation import EVAL_SEED, Evaluator
from kit.runs.exported import ExportedPolicy, read
from tests.runs.crash import complete, create, cut_twice
from tests.runs.test_resume import assert_same_end, killed_at_random

CHASE, STATE = "tests.envs.chase:Chase", "tests.envs.chase:ChaseState"
SMALL = {"n_steps": 4, "batch_size": 32, "gradient_steps": 4, "policy_kwargs": {"net_arch": [16]}}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A PPO run of 640 steps; the tests do not need a good teacher."""
    overrides = {"n_steps": 16, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}}
    return kit.train(
        env=STATE, algo="PPO", total_steps=640, n_envs=4, threads=1, run_name="teacher", overrides=overrides,
        runs_dir=str(tmp_path_factory.mktemp("runs")), eval_every=320,
    )  # fmt: skip


def student(folder, name, teacher, **fields):
    fields = {"env": CHASE, "n_envs": 4, "total_steps": 480} | fields
    return create(folder, name, "Distill", SMALL, teacher=teacher, **fields)


@pytest.fixture(scope="module")
def students(tmp_path_factory, teacher):
    """Two finished students with evaluations: of the scripted policy, and of the best policy of `teacher`."""
    made = {}
    for kind, source in (("scripted", "scripted"), ("run", f"{teacher.path}@best")):
        made[kind] = student(tmp_path_factory.mktemp("runs"), kind, source, eval_every=240)
        assert complete(made[kind]) == 0, made[kind].log()
    return made


def test_cut_run_ends_like_the_uncut_one(tmp_path, teacher):
    """Checkpoints hold labels, images, noise and teacher; the teacher's folder is deleted after the first session."""
    source = str(shutil.copytree(teacher.path, tmp_path / "lent"))
    uncut, cut = (student(tmp_path, name, source, checkpoint_every=32, eval_every=240) for name in ("uncut", "cut"))
    assert complete(uncut) == 0, uncut.log()
    for _ in cut_twice(cut, 64):
        shutil.rmtree(tmp_path / "lent", ignore_errors=True)
    assert complete(cut) == 0, cut.log()
    assert_same_end(cut, uncut)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_trust_on_resume_reaches_the_teacher(tmp_path, monkeypatch, has_checkpoint):
    """On a machine that has not imported the teacher's algorithm before, nor has its run if a checkpoint holds it."""
    (tmp_path / "teachers_algo.py").write_text("from tests.trainers.toy import REINFORCE\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = kit.train(
        env=STATE, algo="teachers_algo:REINFORCE", total_steps=64, n_envs=4, threads=1, eval_every=0,
        runs_dir=str(tmp_path / "lent"), run_name="own",
    )  # fmt: skip
    run = student(tmp_path, "student", str(own.path))
    if has_checkpoint:
        assert complete(run) == 0, run.log()
        shutil.rmtree(own.path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    monkeypatch.setattr(trust, "_trusted", set())
    monkeypatch.delitem(sys.modules, "teachers_algo")
    with pytest.raises(UserError, match="names the module 'teachers_algo'"):
        kit.resume(run.path, total_steps=544)
    state = "finished" if has_checkpoint else "interrupted"
    assert kit.Run(run.path).status()["state"] == state, "it was refused before a session began"
    assert kit.resume(run.path, total_steps=544, trust=True).status()["step"] == 544


@pytest.mark.storm
def test_twenty_kills_in_one_run(tmp_path, teacher):
    """The stored labels come from many sessions."""
    fields = {"total_steps": 6000, "eval_every": 2000}
    uncut = student(tmp_path, "uncut", str(teacher.path), **fields)
    assert complete(uncut) == 0, uncut.log()
    cut = student(tmp_path, "cut", str(teacher.path), checkpoint_every="0.05s", **fields)
    assert killed_at_random(cut, 20, seed=1, longest_s=1.5) >= 20
    assert complete(cut) == 0, cut.log()
    assert_same_end(cut, uncut)


def test_the_saved_teacher_is_the_best_policy_of_its_run(students, teacher):
    import torch

    run = students["run"]
    trainer = run.policy("latest")
    saved = run.checkpoints()[-1].read()["teacher"]
    best = teacher.policy("best").policy_state()["policy"]
    assert all(torch.equal(saved[f"policy/{name}"], value) for name, value in best.items())
    assert trainer.as_actor()(kit.make_vec(CHASE, 2, "cpu", 0, 1).reset(seed=0))[0].shape == (2, 1)


@pytest.mark.parametrize("kind", ["scripted", "run"])
def test_the_teachers_score_is_logged_once(students, teacher, kind):
    """The teacher is evaluated in the same episodes as the student."""
    run = students[kind]
    scores = [row["teacher/mean_return"] for row in run.rows() if "teacher/mean_return" in row]
    assert len(scores) == 1
    if kind == "scripted":
        assert run.rows()[0]["teacher/success_rate"] == 1.0
    else:
        own = Evaluator(teacher.config, seed=EVAL_SEED)(teacher.policy("best").as_actor())
        assert scores[0] == pytest.approx(own["mean_return"])


def test_ppo_trains_a_student_further(tmp_path, students):
    after = kit.train(
        start_from=f"{students['scripted'].path}@latest", algo="PPO", env=CHASE, total_steps=128, eval_every=0,
        runs_dir=str(tmp_path), threads=1, run_name="on", n_envs=4,
        overrides={"n_steps": 16, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}},
    )  # fmt: skip
    assert after.status()["state"] == "finished"


def test_a_student_is_exported_like_any_policy(students):
    """Stock SB3 loads the zip as PPO; the ONNX model takes only the clip, not the teacher's observation."""
    run = students["scripted"]
    clip = kit.make_vec(CHASE, 3, "cpu", 0, 1).reset(seed=0)
    actions = run.policy("latest").act(clip)
    model = PPO.load(kit.export(run, "sb3", "latest"), device="cpu")
    assert np.allclose(model.predict(clip.numpy(), deterministic=True)[0], actions.clamp(-2, 2), atol=1e-5)
    about = json.loads(kit.export(run, "onnx", "latest").with_suffix(".json").read_text())
    assert [entry["name"] for entry in about["inputs"]] == ["obs.eye"]


def test_an_exported_policy_teaches_as_its_run_does(tmp_path, teacher, students):
    """The ONNX file is in the checkpoint: without the file the student goes on, and ends like an uncut one."""
    pytest.importorskip("onnxruntime")
    file = kit.export(teacher, "onnx", "best", tmp_path / "lent.onnx")
    uncut, cut = (student(tmp_path, name, str(file), eval_every=240) for name in ("uncut", "cut"))
    assert complete(uncut) == 0, uncut.log()
    for _ in cut_twice(cut, 64):
        file.unlink(missing_ok=True)
    assert complete(cut) == 0, cut.log()
    assert_same_end(cut, uncut)
    ours, its = (run.rows()[0]["teacher/mean_return"] for run in (cut, students["run"]))
    assert ours == pytest.approx(its, rel=1e-4)


def test_an_exported_policy_with_memory_plays_as_its_run_does(tmp_path):
    pytest.importorskip("onnxruntime")
    run = kit.train(
        env=STATE, algo="RecurrentPPO", total_steps=128, n_envs=4, threads=1, runs_dir=str(tmp_path), eval_every=0,
        overrides={"n_steps": 16, "batch_size": 16},
    )  # fmt: skip
    policy = ExportedPolicy(*read(kit.export(run, "onnx", "latest")), "it")
    actor, env = run.policy("latest").as_actor(), kit.make_vec(STATE, 4, "cpu", 0, 1)
    for _, step in zip(range(60), play(env, actor, env.reset(seed=0)), strict=False):
        action, after = policy(step.obs, step.hidden_state)
        assert np.allclose(action, actor.clip(step.action), atol=1e-5)
        assert len(after) == len(policy.initial_state(4)) == 1
    env.close()


def test_a_file_that_cannot_teach_is_refused_in_one_sentence(tmp_path, teacher):
    pytest.importorskip("onnxruntime")
    file = kit.export(teacher, "onnx", path=tmp_path / "mine.onnx")

    def refused(words, env=CHASE):
        with pytest.raises(UserError, match=words):
            kit.train(env=env, algo="Distill", teacher=str(file), total_steps=64, runs_dir=str(tmp_path / "runs"))

    about = file.with_suffix(".json")
    told = about.read_text()
    about.write_text(told.replace('"name": "obs"', '"name": "obs.eye"', 1))
    refused("has other inputs than the JSON file beside it says; export it again")
    about.write_text(told)
    refused(r"does not fit env='Reach': its obs is float32 \(2,\), the env's float32 \(24,\)", env="Reach")
    file.write_bytes(b"no model")
    refused("is not an ONNX file of kit")
    file.with_suffix(".json").unlink()
    refused(r"mine.json' is missing; `kit export RUN --to onnx` writes NAME.onnx and NAME.json")
    assert not (tmp_path / "runs").exists()


def test_a_teacher_of_another_task_is_refused_in_one_sentence(tmp_path, teacher):
    with pytest.raises(UserError, match=r"teacher=.*ChaseState.* but the teacher of env='Reach'"):
        kit.train(env="Reach", algo="Distill", teacher=str(teacher.path), total_steps=64, runs_dir=str(tmp_path))
    with pytest.raises(UserError, match="no scripted policy"):
        kit.train(env="Ant", algo="Distill", teacher="scripted", total_steps=64, runs_dir=str(tmp_path))
    with pytest.raises(UserError, match="nowhere"):
        kit.train(env=CHASE, algo="Distill", teacher="runs/nowhere", total_steps=64, runs_dir=str(tmp_path))
    for step, words in (("999", r"step=999 has no checkpoint .*; there is: "), ("nope", "step='nope' is not a step")):
        with pytest.raises(UserError, match=words):
            kit.train(
                env=CHASE, algo="Distill", teacher=f"{teacher.path}@{step}", total_steps=64, runs_dir=str(tmp_path)
            )
    assert not list(tmp_path.iterdir())
