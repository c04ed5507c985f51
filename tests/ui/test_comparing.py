"""Tests of `kit.ui.comparing`: groups of seeds, scores, standings, verdicts, with numbers worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.measure.uncertainty import success_interval
from kit.runs import provenance
from kit.runs.run import Run
from kit.ui import comparing
from tests.ui.fabricate import make_run, set_status

pytest.importorskip("matplotlib")


def evaluated(folder: Path, name: str, scores: list[float], **config: Any) -> Run:
    """A run evaluated every 200 steps from step 0 on, 2 s apart; a new session starts after step 400."""
    run = make_run(folder, name, rows=0, config=config)
    rows: list[dict[str, Any]] = []
    for i, score in enumerate(scores):
        rows += [{"step": 200 * i, "time/time_elapsed": 2.0 * i - (4.0 if i > 2 else 0.0)}] if i else []
        rows += [{"step": 200 * i, "eval/success_rate": score, "eval/mean_return": 10 * score, "eval/episodes": 20}]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_seeds_share_a_group_and_tasks_do_not(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path, f"ppo{seed}", [0.0, 0.5], seed=seed) for seed in range(2)]
    runs += [evaluated(tmp_path, f"slow{seed}", [0.0, 0.5], seed=seed, overrides={"gamma": 0.9}) for seed in range(2)]
    runs += [evaluated(tmp_path, "a2c", [0.0, 0.5], algo="A2C"), evaluated(tmp_path, "ant", [0.0, 0.5], env="Ant")]
    runs += [evaluated(tmp_path, "far", [0.0, 0.5], env_options={"size": 2}), make_run(tmp_path, "new", rows=0)]
    found = {task: {g.label: len(g.seeds) for g in groups} for task, groups in comparing.by_task(runs).items()}
    reach = {"PPO": 2, "PPO (gamma 0.9)": 2, "A2C": 1}
    assert found == {"Reach": reach, "Ant": {"PPO": 1}, "Reach size=2": {"PPO": 1}}


def test_the_score_is_that_of_the_final_test_if_all_runs_have_one(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path, f"ppo{seed}", [0.0, 1.0], seed=seed) for seed in range(2)]
    for run, rate in zip(runs, (0.6, 0.8), strict=True):
        assert comparing.standings([run]).score.item() == 1.0, "there is no test yet"
        row = {"step": 200, "test/step": 200, "test/episodes": 500, "test/success_rate": rate, "test/mean_return": 1.0}
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    assert comparing.standings(runs).score.item() == pytest.approx(0.7)
    assert "Final score: the best policy in new episodes after training" in comparing.compare(runs).text
    old = evaluated(tmp_path, "old", [0.0, 0.9], seed=2)
    assert "Final score: the last point of each curve, because not" in comparing.compare([*runs, old]).text
    assert comparing.standings([*runs, old]).score.item() == pytest.approx(2.9 / 3), "scored by evaluations"
    scores = comparing.RunScores.of(runs[0])
    assert (scores.episodes, scores.without_test().episodes) == (500, 20), "each score must have its number of episodes"
    with (runs[0].path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 400, "eval/success_rate": 0.9, "eval/mean_return": 9.0}) + "\n")
    assert comparing.RunScores.of(runs[0]).last == 0.6, "finished"
    set_status(runs[0].path, state="interrupted")
    assert comparing.RunScores.of(runs[0]).last == 0.9, "it trains longer than until the test"


def branched(folder: Path, name: str, parent: str, step: int, **config: Any) -> Run:
    run = evaluated(folder, name, [0.0, 0.5], **config)
    provenance.write(run.path, run.config, parent={"name": parent, "step": step})
    return run


def test_runs_from_before_their_task_had_a_success_are_compared_by_return(tmp_path: Path) -> None:
    newer, older = evaluated(tmp_path, "newer", [0.0, 0.5], seed=0), evaluated(tmp_path, "older", [0.0, 0.7], seed=1)
    lines = [json.loads(line) for line in (older.path / "metrics.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in line.items() if name != "eval/success_rate"} for line in lines]
    (older.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for runs in ([newer, older], [older, newer]):
        assert comparing.standings(runs).score.item() == pytest.approx(6.0), "the mean of the returns 5 and 7"
        assert "Reach: " in comparing.compare(runs).text


def test_seeds_of_a_second_curriculum_stage_share_a_group(tmp_path: Path) -> None:
    """Parents differ in seed and step; groups are the same whether or not the parents are compared too."""
    first = [evaluated(tmp_path, f"first{seed}", [0.0, 0.5], seed=seed) for seed in range(3)]
    evaluated(tmp_path, "other", [0.0, 0.5], overrides={"gamma": 0.9})
    hard = {"env_options": {"level": "hard"}}
    runs = [branched(tmp_path, f"b{seed}", f"first{seed}", 200 + seed, **hard, seed=seed) for seed in range(3)]
    third = [branched(tmp_path, f"c{seed}", f"b{seed}", 200, **hard, seed=seed) for seed in range(3)]

    def sizes(runs: list[Run]) -> dict[str, dict[str, int]]:
        found = comparing.by_task(runs).items()
        return {task: {group.label: len(group.seeds) for group in groups} for task, groups in found}

    assert sizes(runs) == {"Reach level=hard": {"PPO": 3}}
    lessons = {'PPO (from ["first0", 200])': 3, 'PPO (from ["b0", 200])': 3}
    assert sizes([*first, *runs, *third]) == {"Reach": {"PPO": 3}, "Reach level=hard": lessons}

    apart = [branched(tmp_path, "d", "other", 200, **hard), branched(tmp_path, "e", "gone", 200, **hard)]
    labels = [f'PPO (from ["{name}", 200])' for name in ("first0", "other", "gone")]
    assert sizes([*runs, *apart]) == {"Reach level=hard": dict(zip(labels, (3, 1, 1), strict=True))}


def test_branches_from_different_steps_of_one_run_do_not_share_a_group(tmp_path: Path) -> None:
    for seed in range(2):
        evaluated(tmp_path, f"first{seed}", [0.0, 0.5], seed=seed)
    pairs = [(seed, step) for seed in range(2) for step in (200, 400)]
    runs = [branched(tmp_path, f"s{seed}-{step}", f"first{seed}", step, seed=seed) for seed, step in pairs]
    (groups,) = comparing.by_task(runs).values()
    found = {group.label: len(group.seeds) for group in groups}
    assert found == {'PPO (from ["first0", 200])': 2, 'PPO (from ["first0", 400])': 2}


def test_numbers_in_labels_have_three_digits_unless_they_would_be_equal(tmp_path: Path) -> None:
    rates = [0.000646642271741, 0.001, 0.00100001]
    runs = [evaluated(tmp_path, f"r{i}", [0.0], overrides={"learning_rate": rate}) for i, rate in enumerate(rates)]
    (groups,) = comparing.by_task(runs).values()
    said = ["0.000647", "0.001", "0.00100001"]
    assert [group.label for group in groups] == [f"PPO (learning_rate {rate})" for rate in said]


def test_long_labels_are_wrapped_in_the_legend_of_a_few(tmp_path: Path) -> None:
    """The field with the most values comes first, so that what differs is not cut."""
    rates = (0.000441, 0.000651)
    runs = [evaluated(tmp_path, f"r{i}", [0.0], total_steps=12_000, overrides={"learning_rate": rate, "gamma": 0.9})
            for i, rate in enumerate(rates)]  # fmt: skip
    runs.append(evaluated(tmp_path, "long", [0.0], total_steps=150_000))
    (groups,) = comparing.by_task(runs).values()
    said = [text.get_text() for text in comparing.figure(groups).axes[-1].get_legend().get_texts()]
    wrapped = [f"PPO (learning_rate {rate}, total_steps\n12000, gamma 0.9)" for rate in rates]
    assert said == [*wrapped, "PPO (total_steps 150000)"]


def test_long_labels_of_many_are_cut_in_the_legend_and_stay_distinct(tmp_path: Path) -> None:
    sizes = ([64, 64], [64, 65], [32], *([i] for i in range(1, 8)))
    runs = [evaluated(tmp_path, f"r{i}", [0.0], overrides={"policy_kwargs": {"log_std_init": -1.25, "net_arch": size}})
            for i, size in enumerate(sizes)]  # fmt: skip
    runs.append(evaluated(tmp_path, "a2c", [0.0], algo="A2C"))
    (groups,) = comparing.by_task(runs).values()
    said = [text.get_text() for text in comparing.figure(groups).axes[-1].get_legend().get_texts()]
    cut = 'PPO (policy_kwargs {"log_std_init": …'
    assert said == [cut, *(f"{cut} {i}" for i in range(2, 11)), "A2C"]
    assert groups[0].label.endswith('"net_arch": [64, 64]})'), "the table has the whole label"


def test_a_run_without_a_parent_is_from_scratch(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path, "first", [0.0, 0.5]), branched(tmp_path, "second", "first", 200)]
    (groups,) = comparing.by_task(runs).values()
    assert [group.label for group in groups] == ["PPO (from scratch)", 'PPO (from ["first", 200])']


def test_standings_match_numbers_worked_by_hand(tmp_path: Path) -> None:
    quick = [[0.0, 0.6, 0.9, 1.0], [0.0, 0.2, 0.9, 1.0], [0.1, 0.9, 1.0, 1.0]]
    slow = [[0.0, 0.0, 0.1, 0.2], [0.0, 0.1, 0.2, 0.4], [0.0, 0.1, 0.1, 0.9]]
    runs = [evaluated(tmp_path, f"q{i}", scores, seed=i) for i, scores in enumerate(quick)]
    runs += [evaluated(tmp_path, f"s{i}", scores, seed=i, algo="A2C") for i, scores in enumerate(slow)]
    table = comparing.standings(runs, usd_per_hour=200.0)
    assert list(table.index) == [("Reach", "PPO"), ("Reach", "A2C")]
    best, other = (row for _, row in table.iterrows())
    assert best.score == 1.0 and (best.low, best.high) == success_interval(1.0, 60), "three runs of 20 episodes"
    assert (other.low, other.high) == (0.0, 1.0), "0.5 ± 4.303 · 0.361 / √3"
    assert best.p == 1.0 and other.p == pytest.approx(0.137, abs=5e-3), "t = 0.5 / √(0.208² + 0.015²) = 2.4, df = 2"
    assert (other.score, other.worst) == (pytest.approx(0.5), 0.2)
    assert best.threshold == pytest.approx(0.9), "90 % of the way from 0, the median first score, to 1"
    assert (best.reached, best.steps, best.after_s) == (3, 400, 4.0), "steps 400, 400 and 200"
    assert (other.reached, other.steps, other.after_s) == (1, np.inf, np.inf), "two of three seeds never reach it"
    assert (best.seconds, best.steps_per_s, best.usd) == (pytest.approx(18.0), pytest.approx(100.0), pytest.approx(1.0))
    assert comparing.standings(runs, threshold=0.5).iloc[0].steps == 200, "steps 200, 400 and 200"


def test_the_seconds_of_all_sessions_add_up(tmp_path: Path) -> None:
    elapsed = {200: 3, 400: 5, 600: 4, 800: 18, 1000: 2, 2000: 4}  # cut after steps 400 and 800
    rows = [{"step": step, "time/time_elapsed": s, "eval/mean_return": step} for step, s in elapsed.items()]
    run = make_run(tmp_path, "cut", rows=0)
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = comparing.standings([run], threshold=700)
    assert table.seconds.tolist() == [5 + 18 + 4] and table.after_s.tolist() == [5 + 18]


def test_compare_shows_the_verdict(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path, f"q{i}", [0.0, 0.9, 1.0], seed=i) for i in range(3)]
    runs += [evaluated(tmp_path, f"s{i}", [0.0, 0.1, 0.2 + i / 10], seed=i, algo="A2C") for i in range(3)]
    page = comparing.compare(runs)
    said = "Reach: PPO is the best, with 100 %; A2C is worse. PPO is the first to reach 90 %, after 200 steps, 2 s."
    said += " With so few seeds this is a hint, not a proof."
    assert repr(page).startswith(said + "\n") and said in page._repr_html_()
    assert "100 % (94 % to 100 %)" in page.text and "data:image/png;base64,iVBOR" in page.body
    alike = comparing.compare([*runs[:1], evaluated(tmp_path, "sac", [0.0, 0.5, 0.8], algo="SAC")])
    assert "PPO and SAC cannot be told apart with so few seeds (best: 100 %)." in alike.text
    assert "One or two seeds do not show what other seeds would reach; train three or more." in alike.text
    assert "first to reach" not in alike.text, "a winner among runs that cannot be told apart"
    assert "% to " not in alike.text.split("train three or more.")[1], "one seed must have no interval"
    runs += [evaluated(tmp_path, f"t{i}", [0.0, 0.9, 0.9 + i / 20], seed=i, algo="TD3") for i in range(3)]
    assert "PPO and TD3 are not measurably different (best: 100 %); A2C is worse." in comparing.compare(runs).text
    many = [evaluated(tmp_path, f"g{i}", [0.0, 1 - i / 10], overrides={"gamma": 0.9 + i / 100}) for i in range(6)]
    named = "PPO (gamma 0.9), PPO (gamma 0.91) and 4 others cannot be told apart with so few seeds (best: 100 %)"
    assert named in comparing.compare(many).text
    assert "has measured anything" in comparing.compare([make_run(tmp_path, "new", rows=0)]).body


def test_a_run_that_is_not_finished_does_not_count_in_the_verdict(tmp_path: Path) -> None:
    ended = evaluated(tmp_path, "ended", [0.0, 0.5])
    half = evaluated(tmp_path, "half", [0.0, 0.9], algo="SAC")
    assert comparing.compare([ended, half]).text.startswith("Reach: SAC and PPO cannot be told apart with so few")
    set_status(half.path, state="interrupted")
    page = comparing.compare([ended, half])
    assert page.text.startswith("Reach: PPO reached 50 %.") and "Not finished: half. Their configs are" in page.text
    assert "PPO: ended. SAC: half." in page.text, "the runs must be named"
    assert comparing.compare([half]).text.startswith("Reach: SAC reached 90 %."), "nothing else is there"


def test_a_band_covers_the_steps_that_all_seeds_have(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path, "long", [0.0, 0.4, 0.8]), evaluated(tmp_path, "short", [0.2, 0.4], seed=1)]
    (group,) = comparing.by_task(runs)["Reach"]
    steps, values = group.band(0)
    assert steps.tolist() == [0, 200] and values.tolist() == [[0.0, 0.4], [0.2, 0.4]]
