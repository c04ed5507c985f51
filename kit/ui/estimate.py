"""The live label of the training panel: what the form asks for, checked, and how long it will take on this machine."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable

from kit.config import RunConfig
from kit.measure import advice, speed
from kit.measure.auto import resolve

Tell = Callable[[str, bool], None]
"""Given a sentence and whether the request is valid."""

MEASURING = "Measuring this machine for a few seconds… you can press Train already."
SETTLE_S = 0.4
"""After the last key stroke, before anything costly begins."""


class Estimator:
    """Answers the newest question only. All work is done in threads and in a process that `cancel` ends."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._question = 0
        self._process: subprocess.Popen[str] | None = None

    def ask(self, config: RunConfig) -> None:
        """Check `config` and estimate its duration; the answers come to `tell`."""
        question = self.cancel()
        timer = threading.Timer(SETTLE_S, self._answer, (question, config))
        timer.daemon = True
        timer.start()

    def cancel(self) -> int:
        """Forget the question that is being worked on. The number of the next one."""
        with self._lock:
            self._question += 1
            if self._process is not None:
                self._process.kill()
                self._process = None
            return self._question

    def _answer(self, question: int, config: RunConfig) -> None:
        try:
            resolved = resolve(config)
            known = speed.cached(resolved)
            if known is None:
                self._say(question, MEASURING, True)
                known = self._measure(question, resolved)
            if known is not None:
                self._say(question, _sentence(resolved, known), True)
        except Exception as error:
            unmeasured = isinstance(error, speed.NotMeasured)
            self._say(question, str(error) or type(error).__name__, unmeasured)

    def _measure(self, question: int, config: RunConfig) -> speed.Speed | None:
        with self._lock:
            if question != self._question:
                return None
            self._process = process = speed.probe_apart(config)
        try:
            return speed.answer(process, config)
        except speed.NotMeasured:
            if question != self._question:  # it was cancelled
                return None
            raise

    def _say(self, question: int, sentence: str, valid: bool) -> None:
        if question == self._question:
            self._tell(sentence, valid)


def _sentence(config: RunConfig, known: speed.Speed) -> str:
    takes = advice.estimate(config, known)
    return f"{takes[0].upper()}{takes[1:]}, with {config.n_envs} worlds on {config.device}."
