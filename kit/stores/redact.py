"""Redact secrets (tokens, keys, signatures) from error messages and text files before they leave this machine.

Names, paths and ids must not change; otherwise a run could not be opened again. "pick-task-reach-ppo-baseline" contains
"sk-" but is no key; therefore only a whole word that is at least as long as a token is redacted. A Weights & Biases key
looks like a git commit and is recognised only if it is the value of an environment variable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"  # valid anywhere in YAML, JSON and URLs
TEXT = (".yaml", ".json", ".md")
EMPTIED = ("store", "tracker")
"""Config fields set to None if they contain a secret: "(hidden)" would be invalid; a run can resume without them."""
_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)", re.IGNORECASE)
_START = r"(?:(?<![A-Za-z0-9_-])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[bfnrt]))"
"""Start of a token: no letter, digit, hyphen or underscore before it; or an escape (%3D in a URL, \\n in JSON)."""
_MIXED = r"(?=[a-z]*[A-Z0-9])"
"""Lookahead: any lower-case letters, then a capital letter or digit. Excludes ordinary words."""
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


def redact(text: str, environment: bool = True) -> str:
    """Replace every token, key and signature in `text` by (hidden).

    `environment`: also replace the values of environment variables with a secret's name (such as *_TOKEN), if they have
    at least 12 characters.
    """
    if environment:
        for name, value in os.environ.items():
            if len(value) >= 12 and _SECRET_NAME.search(name) and not value.startswith(("/", "~")) and value in text:
                text = re.sub(rf"{_START}{re.escape(value)}(?![A-Za-z0-9_-])", HIDDEN, text)
    return _TOKENS.sub(HIDDEN, text)


def redact_bytes(data: bytes, name: str = "") -> bytes:
    """Redact the content of the file `name`; return bytes that are not UTF-8 unchanged."""
    try:
        return _config_text(data.decode()) if name == "config.yaml" else redact(data.decode()).encode()
    except UnicodeDecodeError:
        return data


def redact_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Redact the fields of a RunConfig.

    Values of environment variables are redacted only in mappings and lists: a plain field, such as the run's name, may
    equal such a value without being secret.
    """
    clean = {name: _values(value, environment=isinstance(value, dict | list)) for name, value in values.items()}
    return {name: None if name in EMPTIED and clean[name] != values[name] else clean[name] for name in clean}


def may_be_unredacted(whole: Any, redacted: Any) -> bool:
    """Whether `redacted` can be the redacted form of `whole`, and `whole` contains no "(hidden)"."""
    redacted_json, whole_json = (json.dumps(value, sort_keys=True) for value in (redacted, whole))
    pattern = re.escape(redacted_json).replace(re.escape(HIDDEN), ".+")
    return HIDDEN not in whole_json and re.fullmatch(pattern, whole_json) is not None


def _values(value: Any, environment: bool) -> Any:
    if isinstance(value, dict):
        return {_values(key, environment): _values(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [_values(each, environment) for each in value]
    return redact(value, environment) if isinstance(value, str) else value


def _config_text(text: str) -> bytes:
    """Redact the text of config.yaml, after parsing it, because YAML may wrap a line inside a token."""
    import yaml

    try:
        values = yaml.safe_load(text)
        clean = redact_config(values)
        return (text if clean == values else yaml.safe_dump(clean, sort_keys=False)).encode()
    except (yaml.YAMLError, AttributeError, RecursionError):  # not a config
        return redact(text).encode()


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return the error's message as one redacted line of at most `limit` characters."""
    text = redact(" ".join(str(error).split()) or type(error).__name__)
    return text if len(text) <= limit else text[: limit - 1] + "…"
