"""EnvPool contender of `rollouts.py`, for a separate Python environment: imports only EnvPool and numpy.

Prints EnvPool's version. Then reads the seconds of each turn from stdin, one number per line, and prints the `step`
calls per second of that turn, until stdin ends.
"""

from __future__ import annotations

import json
import sys
import time

import envpool
import numpy as np


def main(env_id: str, n: int, threads: int) -> None:
    env = envpool.make_gymnasium(env_id, num_envs=n, num_threads=threads, seed=0)
    env.reset()
    space = env.action_space
    actions = np.random.default_rng(0).uniform(-1, 1, (64, n, *space.shape)).astype(space.dtype)
    turn = 0
    print(json.dumps(envpool.__version__), flush=True)
    for line in sys.stdin:
        seconds, calls, start = float(line), 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            env.step(actions[turn % 64])
            turn, calls = turn + 1, calls + 1
        print(json.dumps(calls / elapsed), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
