"""Threads that share a piece of work with their caller, called upon thousands of times a second."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock


class Helpers:
    """`count` threads, asleep until `run`.

    A pool of the standard library does the same with a Future for each call, a Python object with locks of its own,
    which costs 1 to 2 % of a step of 16 Ants.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_serve, args=(self._jobs,), name=f"{name}-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()
        self.close = weakref.finalize(self, _dismiss, self._jobs, self._threads)
        """Ends the threads; also called when nobody holds this any more, and before Python ends."""

    def run(
        self, work: Callable[[], object], *others: Callable[[], object], prepare: Callable[[], object] | None = None
    ) -> None:
        """Call `work` here and at the same time `others`, as many as there are threads, in these; return when all have
        come back. `prepare` is called first, while the threads are waking up, which takes them 25 us; if it fails, the
        others find nothing prepared. What any of them raises is raised here."""
        gate, called = Lock(), 0
        answers: Answers = SimpleQueue()
        try:
            with gate:
                for other in others:
                    self._jobs.put((other, gate, answers))
                    called += 1
                if prepare is not None:
                    prepare()
            work()
        finally:
            failures = [error for _ in range(called) if (error := answers.get()) is not None]
        if failures:
            raise failures[0]


Answers = SimpleQueue[BaseException | None]
Job = tuple[Callable[[], object], Lock, Answers]


def _serve(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        work, gate, answers = job
        with gate:  # until the work is prepared
            pass
        try:
            work()
        except BaseException as error:
            answers.put(error)
        else:
            answers.put(None)
        del job, work, gate, answers  # while asleep, keep nothing alive


def _dismiss(jobs: SimpleQueue[Job | None], threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
