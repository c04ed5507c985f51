"""Benchmark of Mission's league: teams and defenders that learn in turns, each against all earlier ones and the rules.

    python tests/bench/league.py runs/league               # train missing runs, print who beats whom, and Elo ratings
    python tests/bench/league.py runs/league --report      # only the tables

Round 0 is `kit train --env Mission`, against the rules. In each later round, defenders learn against all teams so far,
and then the team learns on, in half of its games against the rules and in the others against all defenders so far.
Interrupted, run it again to continue.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import kit
from kit.config import STOCK
from kit.envs.play import play
from kit.machine.settings import one_thread
from kit.measure.elo import elo
from kit.runs.evaluation import TEST_SEED

ROUNDS = 3
GAMES = 224
TEAM_STEPS, DEFENDER_STEPS, FIRST_STEPS = 30_000_000, 8_000_000, 40_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--seed", type=int, default=400, help="for tests only; tune with seeds below 100")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    teams = [args.folder / f"team-{k}" for k in range(args.rounds + 1)]
    guards = [args.folder / f"defenders-{k}" for k in range(1, args.rounds + 1)]
    if not args.report:
        train(teams[0], args.seed, FIRST_STEPS)
        for k in range(1, args.rounds + 1):
            met = {"side": "defenders", "attackers": [f"{path}@best" for path in teams[:k]]}
            train(guards[k - 1], args.seed, DEFENDER_STEPS, guards[k - 2] if k > 1 else None, met)
            met = {"defenders": [*[STOCK] * k, *(f"{path}@best" for path in guards[:k])], "curriculum": False}
            train(teams[k], args.seed, TEAM_STEPS, teams[k - 1], met)
    report(teams, guards)


def train(path: Path, seed: int, steps: int, start: Path | None = None, options: dict[str, Any] | None = None) -> None:
    """Train a run, from the best policy of `start`, or resume it; do nothing if it is finished."""
    if path.exists():
        if kit.Run(path).status()["state"] != "finished":
            kit.resume(path)
        return
    origin: dict[str, Any] = {"env": "Mission", "threads": 1} if start is None else {"start_from": f"{start}@best"}
    kit.train(
        **origin, env_options=options or {}, total_steps=steps, seed=seed,
        run_name=path.name, runs_dir=str(path.parent),
    )  # fmt: skip


def report(teams: Sequence[Path], guards: Sequence[Path]) -> None:
    """Print the share of games won by each team against each of the defenders, and the ratings of all."""
    file = teams[0].with_name("games.json")
    known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    won = {}
    for team in (path for path in teams if path.exists()):
        for rival in (STOCK, *(path for path in guards if path.exists())):
            name = rival if isinstance(rival, str) else rival.name
            if f"{team.name} {name}" not in known:
                known[f"{team.name} {name}"] = share(team, rival)
                file.write_text(json.dumps(known, indent=1))
            won[team.name, name] = known[f"{team.name} {name}"]
    rivals = list(dict.fromkeys(rival for _, rival in won))
    print("| | " + " | ".join(rivals) + " |\n|---" + "|---:" * len(rivals) + "|")
    for team in dict.fromkeys(team for team, _ in won):
        print("| " + " | ".join([team, *(f"{won[team, rival]:.0%}" for rival in rivals)]) + " |")
    print("Elo: " + ", ".join(f"{name} {rating:.0f}" for name, rating in elo(won, GAMES).items()))


def share(team: Path, rival: str | Path) -> float:
    """Return the share of games that the best policy of `team` wins, on maps that training did not use."""
    defenders = rival if isinstance(rival, str) else kit.Run(rival).policy("best").as_actor()
    env = kit.make_vec("Mission", GAMES, seed=TEST_SEED, threads=1, env_options={"defenders": defenders})
    with one_thread():
        player = kit.Run(team).policy("best").as_actor()
        ends = [step.info["success"][step.ended] for step in play(env, player, env.reset(seed=TEST_SEED), 1)]
    env.close()
    return float(torch.cat(ends).float().mean())


if __name__ == "__main__":
    main()
