"""Secrets never leave this machine: error texts and small text files are cleaned before anyone else sees them."""

from __future__ import annotations

import os
import re

_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)", re.IGNORECASE)
_PATTERNS = re.compile(
    r"hf_[A-Za-z0-9]{8,}"  # Hugging Face
    r"|(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}"  # AWS key ids
    r"|gh[pousr]_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|rpa_[A-Za-z0-9]{16,}|ya29\.[A-Za-z0-9_-]{16,}"
    r"|(?<=Bearer )[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=[?&])(?:X-Amz-[A-Za-z-]+|Signature|sig|token|Policy|Key-Pair-Id)=[^&\s\"']+"
    r"|(?<=://)[^/@\s:]+:[^/@\s]+(?=@)"  # user:password in a URL
)
HIDDEN = "***"


def redact(text: str) -> str:
    """`text` with every token, key, signature and secret environment value replaced by ***."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAME.search(name) and not value.startswith(("/", "~")):
            text = text.replace(value, HIDDEN)
    return _PATTERNS.sub(HIDDEN, text)


def redact_bytes(data: bytes) -> bytes:
    """The same for the bytes of a text file; anything that is not UTF-8 is returned as it is."""
    try:
        return redact(data.decode()).encode()
    except UnicodeDecodeError:
        return data


def one_line(error: BaseException, limit: int = 300) -> str:
    """An error as one clean line for a status file."""
    text = " ".join(str(error).split()) or type(error).__name__
    return redact(text if len(text) <= limit else text[: limit - 1] + "…")
