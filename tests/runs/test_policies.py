"""Policies are kept at evaluations, so that one can look back on how a run learnt."""

import pytest
import torch

from kit.errors import UserError
from kit.runs import session, training
from kit.runs.fingerprint import fingerprint
from tests.runs.crash import create


def test_each_evaluation_leaves_its_policy(tmp_path):
    run = create(tmp_path, "run", eval_every=400)
    assert session.Session(run.path)() == 0
    kept = run.policies()
    assert [found.step for found in kept] == [416, 800, 1216] and len(run.checkpoints()) < 3  # iterations are 32 steps
    early, late = (run.policy(step).policy.state_dict() for step in (416, 1216))
    assert not torch.equal(early["action_net.weight"], late["action_net.weight"])
    assert run.find(416).read()["evaluation"]["episodes"] > 0
    with pytest.raises(UserError, match="a policy alone"):
        fingerprint(run, 416)
    with pytest.raises(UserError, match="there is: 416, 800, 1216"):
        run.policy(500)


def test_looking_at_a_policy_leaves_the_process_as_it_was(tmp_path):
    run = create(tmp_path, "run", total_steps=64)
    assert session.Session(run.path)() == 0
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    run.policy()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_a_long_run_keeps_some_of_them_from_first_to_last(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "POLICIES", 4)
    run = create(tmp_path, "run", eval_every=100)
    assert session.Session(run.path)() == 0
    steps = sorted(int(path.name[5:]) for path in (run.path / "policies").iterdir())
    assert len(steps) <= 4 and steps[0] == 128 and steps[-1] == 1216, steps


def test_a_run_of_a_moment_ends_with_what_its_last_evaluation_found(tmp_path):
    run = create(tmp_path, "run", eval_every=400, total_steps=400)
    assert session.Session(run.path)() == 0
    assert run.status()["mean_return"] == run.find("best").read()["evaluation"]["mean_return"]
