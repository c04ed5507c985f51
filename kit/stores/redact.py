"""Secrets never leave this machine: error texts and small text files are cleaned before anyone else sees them.

Names, paths and ids stay, or a run could not be opened again: "pick-task-reach-ppo-baseline" holds "sk-" and no key. So
a token must stand by itself and be as long as its kind. A bare key of Weights & Biases looks like a git commit; only
its environment variable gives it away.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"  # it may stand anywhere in YAML, JSON and URLs
TEXT = (".yaml", ".json", ".md")
EMPTIED = ("store", "tracker")
"""Fields of a config that cannot hold just any text, and that a resume can do without: with a secret they go."""
_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)", re.IGNORECASE)
_START = r"(?:(?<![A-Za-z0-9_-])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[bfnrt]))"
"""No letter, digit, hyphen or underscore before it, but for the end of an escape in a URL or in JSON."""
_MIXED = r"(?=[a-z]*[A-Z0-9])"
"""The letters and digits that follow are no mere word."""
_TOKENS = re.compile(
    r"(?<=://)[^/@\s:\"']*:[^/@\s\"']+(?=@)"  # user:password in a URL
    rf"|{_START}(?:"
    rf"(?:hf_|gh[pousr]_|github_pat_|rpa_){_MIXED}[A-Za-z0-9]{{20,}}(?:_[A-Za-z0-9]{{20,}})?"  # Hub, GitHub, RunPod
    rf"|sk-(?:proj-|ant-|or-|svcacct-|admin-)(?=[A-Za-z0-9_-]*?{_MIXED}[A-Za-z0-9]{{16}})[A-Za-z0-9_-]{{20,}}"
    rf"|sk-{_MIXED}[A-Za-z0-9]{{20,}}[A-Za-z0-9_-]*"  # OpenAI and its like
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])(?::[A-Za-z0-9/+=]{40})?"  # AWS: an id, perhaps with its secret
    r"|ya29\.[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"  # Google
    r"|glpat-(?=[a-z_-]*[A-Z0-9])[A-Za-z0-9_-]{20,}(?:\.[A-Za-z0-9]+)*"  # GitLab
    r"|xox[abeprs]-(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{16,}"  # Slack
    r")"
    r"|(?<=\b[Bb]earer )(?=[a-z]*[A-Z0-9._~+/=-][A-Za-z0-9])[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=[?&])(?:X-Amz-[A-Za-z-]+|Signature|sig|token|Policy|Key-Pair-Id)=[^&\s\"'<>]+"
)
_MARKS = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "rpa_", "sk-", "AKIA", "ASIA", "ya29.", "AIza",
          "glpat-", "xox", "earer ", "://", "?", "&")  # fmt: skip
"""Text without any of these holds no token. Looking for them takes a hundredth of the time, and metrics are long."""


def redact(text: str, environment: bool = True) -> str:
    """`text` with (hidden) for every token, key and signature and, with `environment`, for the value of a secret-named
    environment variable where it is a whole word of 12 characters or more."""
    if environment:
        for name, value in os.environ.items():
            if len(value) >= 12 and _SECRET_NAME.search(name) and not value.startswith(("/", "~")) and value in text:
                text = re.sub(rf"{_START}{re.escape(value)}(?![A-Za-z0-9_-])", HIDDEN, text)
    return _TOKENS.sub(HIDDEN, text) if any(mark in text for mark in _MARKS) else text


def redact_bytes(data: bytes, name: str = "") -> bytes:
    """The same for the bytes of the file `name`; anything that is not UTF-8 is returned as it is."""
    try:
        return _config_text(data.decode()) if name == "config.yaml" else redact(data.decode()).encode()
    except UnicodeDecodeError:
        return data


def redact_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same for RunConfig's fields. They hold what the run is called and made of, so a secret-named variable of the
    same value is no secret, but for what is in a mapping or a list."""
    clean = {name: _values(value, environment=isinstance(value, dict | list)) for name, value in values.items()}
    return {name: None if name in EMPTIED and clean[name] != values[name] else clean[name] for name in clean}


def restores(whole: Any, redacted: Any) -> bool:
    """Whether `redacted` can be what was left of `whole`, which holds nothing hidden."""
    left, full = (json.dumps(value, sort_keys=True) for value in (redacted, whole))
    pattern = re.escape(left).replace(re.escape(HIDDEN), ".+")
    return HIDDEN not in full and re.fullmatch(pattern, full) is not None


def _values(value: Any, environment: bool) -> Any:
    if isinstance(value, dict):
        return {_values(key, environment): _values(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [_values(each, environment) for each in value]
    return redact(value, environment) if isinstance(value, str) else value


def _config_text(text: str) -> bytes:
    """By values: YAML may break a text where a token ends."""
    import yaml

    try:
        values = yaml.safe_load(text)
        clean = redact_config(values)
        return (text if clean == values else yaml.safe_dump(clean, sort_keys=False)).encode()
    except (yaml.YAMLError, AttributeError, RecursionError):  # whatever it is, it is no config
        return redact(text).encode()


def one_line(error: BaseException, limit: int = 300) -> str:
    """An error as one clean line for a status file."""
    text = redact(" ".join(str(error).split()) or type(error).__name__)
    return text if len(text) <= limit else text[: limit - 1] + "…"
