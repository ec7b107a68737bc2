"""What is written or shown has no credentials in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

WITH_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*)://([^/:@\s]*):(\S*)@", re.IGNORECASE)
"""An address with a password; one that was not encoded can have ``@`` and ``/`` in it."""
SECRET = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_KEY|CREDENTIALS?)$")
"""Ends of the names of environment variables whose values are nobody's business."""
SHORTEST = 8
"""Characters; a shorter value is no token, and may be part of any word."""
HIDDEN = "***"


def withheld(text: str) -> str:
    """`text` whose tracking addresses lost their passwords, which go to the environment.

    There MLflow (``http``, ``https``) and libpq (``postgresql``) look for them, and the jobs that
    are started from here inherit them. Addresses of another kind are left as they are.
    """
    return WITH_PASSWORD.sub(_to_environment, text)


def _to_environment(match: re.Match[str]) -> str:
    scheme, name, password = match[1], match[2], unquote(match[3])
    if scheme.lower() in ("http", "https"):
        os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(name)
        os.environ["MLFLOW_TRACKING_PASSWORD"] = password
        return f"{scheme}://"
    if scheme.lower().startswith("postgresql"):
        os.environ["PGPASSWORD"] = password
        return f"{scheme}://{name}@"
    return match[0]


def shown(text: str) -> str:
    """`text` as it may be shown: its addresses without a name and password."""
    return re.sub(r"//[^/:\s]*(:\S*)?@", "//", text)


def secrets_in(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names of the strings in `tree` that have secrets in them, and what may be shown."""
    for key, value in tree.items():
        if isinstance(value, list | tuple):
            value = {str(place): item for place, item in enumerate(value)}
        if isinstance(value, Mapping):
            yield from secrets_in(value, f"{prefix}{key}.")
        elif isinstance(value, str) and redacted(value) != value:
            yield f"{prefix}{key}", redacted(value)


def redacted(text: str) -> str:
    """`text` as it may be kept: without passwords in addresses, and values of the environment."""
    values = {value for name, value in os.environ.items() if SECRET.search(name)}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST:
            text = text.replace(value, HIDDEN)
    return WITH_PASSWORD.sub(lambda match: f"{match[1]}://", text)
