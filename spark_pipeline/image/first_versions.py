"""Which vLLM release first had an architecture, and which had it last: known from the registries of all releases.

The table is made by tools/first_versions.py, whenever there is a new release.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("first_versions.json")


def first_version(architecture: str) -> str | None:
    """The first release that registers it; the oldest of the table may have had it from before. None: no release."""
    return _table()["first"].get(architecture)


def last_version(architecture: str) -> str | None:
    """The last release that registered it; None while the newest known one does, and where none does."""
    return _table()["last"].get(architecture)


def newest_release() -> str:
    """The newest release that the table knows of."""
    return _table()["releases"][-1]


@cache
def _table() -> dict[str, Any]:
    return json.loads(_TABLE.read_text(encoding="utf-8"))
