"""Threads that share a piece of work with their caller, called upon thousands of times a second."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Answers = SimpleQueue[BaseException | None]
Jobs = SimpleQueue[tuple[Callable[[], object], Answers] | None]


class Helpers:
    """`count` threads, asleep until `run`.

    The standard library's pool makes a Future of each call, with locks of its own: calling upon 15 threads takes it
    0.36 ms, these 0.06, of a step that lasts one or two.
    """

    def __init__(self, count: int) -> None:
        self._jobs: Jobs = SimpleQueue()
        threads = [threading.Thread(target=_serve, args=(self._jobs,), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        self.close = weakref.finalize(self, _dismiss, self._jobs, threads)
        """Ends the threads; also called when nobody holds this any more, and before Python ends."""

    def run(self, work: Callable[[], object], *others: Callable[[], object]) -> None:
        """Call `work` here and at the same time `others`, as many as there are threads, in these; return when all have
        come back. What any of them raises is raised here."""
        answers: Answers = SimpleQueue()
        called = 0
        try:
            for other in others:
                self._jobs.put((other, answers))
                called += 1
            work()
        finally:
            failures = [error for _ in range(called) if (error := answers.get()) is not None]
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
        del job, work, answers  # while asleep, keep nothing alive


def _dismiss(jobs: Jobs, threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
