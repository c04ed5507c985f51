"""Tests of `Copier` on the Hub: commits, squashing the history, the page of a finished run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.stores import lease, pull
from kit.stores.copier import Copier
from kit.stores.hub import HubStore
from tests.stores.conftest import Clock
from tests.stores.fabricate import add_checkpoint, content, latest, set_status, steps
from tests.stores.hub_server import Fault, HubServer


@pytest.fixture
def hub_copier(run: Path, hub: HubServer, clock: Clock) -> Iterator[Copier]:
    yield Copier(run, HubStore("hf://me/runs", write=True, sleep=lambda s: None), "me-1", clock=clock)


def test_one_commit_per_checkpoint_on_the_hub(run: Path, hub: HubServer, hub_copier: Copier) -> None:
    """Ten checkpoints, one per pass, make ten commits, and the lease makes one."""
    hub_copier.run_pass()
    for step in range(300, 1200, 100):
        add_checkpoint(run, step)
        hub_copier.run_pass()
    log = hub.repos["me/runs"].log
    assert len(log) == 11
    assert latest(hub_copier.store) == 1000 and steps(hub_copier.store) >= {1000, 1100}, (
        "latest.json names a checkpoint one commit after its upload"
    )
    hub_copier.run_pass()
    assert latest(hub_copier.store) == 1100 and len(log) == 12
    assert steps(hub_copier.store) == {1000, 1100}
    hub_copier.run_pass()
    assert len(log) == 12, "nothing is new, yet a commit was made"


@pytest.fixture
def little_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.stores.copier.HISTORY_BYTES", 50_000)


def save(run: Path, copier: Copier, steps: Iterable[int]) -> dict[str, Any]:
    for step in steps:
        add_checkpoint(run, step)
        result = copier.run_pass()
    return result


@pytest.mark.usefixtures("little_history")
def test_a_large_hub_history_is_squashed(
    run: Path, hub: HubServer, hub_copier: Copier, clock: Clock, tmp_path: Path
) -> None:
    """44 checkpoints of 24 kB, 1 MB in sum, of which the store keeps two.

    A new `Copier` every 500 steps, as in a new session, continues the count of uploaded bytes.
    """
    sizes = []
    for step in range(300, 4700, 100):
        save(run, hub_copier, [step])
        sizes.append(hub.repos["me/runs"].size)
        if step % 500 == 0:
            hub_copier = Copier(run, hub_copier.store, "me-1", clock=clock)
    held = sum(hub_copier.store.list().values())
    assert max(sizes) < 7.5 * held and hub.repos["me/runs"].squashed == hub.count("squash") >= 2
    hub_copier.run_pass()
    assert latest(hub_copier.store) == 4600
    assert content(pull(hub_copier.store, None, tmp_path / "back")) == content(run)


@pytest.mark.usefixtures("little_history")
def test_a_history_is_not_squashed_while_another_run_of_the_repository_is_at_work(
    run: Path, hub: HubServer, clock: Clock
) -> None:
    """The two runs are in stores with different prefixes of one repository."""
    lab = HubStore("hf://me/runs/lab", write=True, sleep=lambda s: None)
    lease.acquire(HubStore("hf://me/runs/home", write=True), "another", "rival", clock=clock)
    copier = Copier(run, lab, "me-1", clock=clock)
    said = save(run, copier, range(300, 2300, 100))["note"]
    assert hub.count("squash") == 0 and said.endswith("does no harm: rival is training home/another")
    clock.now += lease.TTL_S + 1
    assert save(run, copier, range(2300, 3300, 100))["note"] is None
    assert hub.repos["me/runs"].squashed >= 1


@pytest.mark.usefixtures("little_history")
def test_a_repository_with_files_of_no_run_is_not_squashed(run: Path, hub: HubServer, hub_copier: Copier) -> None:
    hub.repos["me/runs"].files |= {".gitattributes": b"", "notes/plan.md": b"what I tried"}
    note = save(run, hub_copier, range(300, 2300, 100))["note"]
    assert note.endswith("does no harm: notes/plan.md belongs to no run")
    assert hub.count("squash") == 0


@pytest.mark.usefixtures("little_history")
@pytest.mark.parametrize("fault", [Fault(500), Fault(504, after=True), Fault(403), Fault(cut=True)])
def test_a_failed_squash_is_reported_and_does_no_harm(
    run: Path, hub: HubServer, hub_copier: Copier, fault: Fault
) -> None:
    """The squash is not retried at once, but after half as many uploaded bytes."""
    hub.fault("squash", Fault(fault.status, fault.after, fault.cut))
    notes = [save(run, hub_copier, [step])["note"] for step in range(300, 3300, 100)]
    said = [note for note in notes if note]
    assert "history of hf://me/runs was not squashed, which does no harm:" in said[0] and notes[-1] is None
    first = notes.index(said[0])
    assert all(note == said[0] for note in notes[first : first + 3]), "the squash was retried at once"
    assert steps(hub_copier.store) >= {3100, 3200} and hub_copier.run_pass()["step"] == 3200


@pytest.mark.usefixtures("little_history")
def test_files_lost_in_a_squash_are_uploaded_again(
    run: Path, hub: HubServer, hub_copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The squash loses all checkpoints, as if it dropped the commits made just before it."""
    squash = HubStore.squash

    def careless(store: HubStore) -> None:
        squash(store)
        files = hub.repos["me/runs"].files
        for path in [path for path in files if "step_" in path]:
            del files[path]

    monkeypatch.setattr(HubStore, "squash", careless)
    step = 300
    while not hub.count("squash"):
        result = save(run, hub_copier, [step])
        step += 100
    assert result["step"] == step - 100 and steps(hub_copier.store) == {step - 100}


def test_a_finished_run_gets_a_page(run: Path, hub: HubServer, hub_copier: Copier) -> None:
    pytest.importorskip("matplotlib")
    hub_copier.run_pass(final=True)
    files = hub.repos["me/runs"].files
    assert "README.md" not in files, "an unfinished run must get no page"
    set_status(run, state="finished", success_rate=0.97)
    hub_copier.run_pass(final=True)
    files = hub.repos["me/runs"].files
    page = files["README.md"].decode()
    assert page.startswith("---\nlibrary_name: kit\n") and "| success rate | 97 % |" in page and "PPO on Reach" in page
    assert (
        files["curve.png"].startswith(b"\x89PNG") and files["replay.mp4"] == files["reach-1/videos/step_000000100.mp4"]
    )
    hub.repos["me/runs"].files["README.md"] = b"my own words"
    set_status(run, step=201)
    hub_copier.run_pass(final=True)
    assert hub.repos["me/runs"].files["README.md"] == b"my own words"
