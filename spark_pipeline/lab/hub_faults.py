"""What can go wrong with a hub, on demand: ROOT/faults.json is read again with each request.

    {"faults": [{"kind": "cut", "repo": "lab/tiny", "path": "*.safetensors", "after_bytes": 1000, "times": 1}]}

A fault is matched by repository and path (shell patterns) and concerns the files themselves, as it does when a
mirror or a proxy goes wrong: what the API says about the files (sizes, digests) stays true. `times` ends a fault
after so many requests, which is how a retry gets its success.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FAULTS_FILE = "faults.json"


class Fault(BaseModel):
    """One thing that goes wrong for the requests that match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["unavailable", "slow", "cut", "stall", "flip", "wrong_size", "gated", "ignore_range"]
    repo: str = Field(default="*", description="Shell pattern for owner/name.")
    path: str = Field(default="*", description="Shell pattern for the file's path in the repository.")
    times: int | None = Field(default=None, gt=0, description="How many GETs it spoils; None: all.")
    status: Literal[503, 429] = Field(default=503, description="unavailable: out of order, or too many requests.")
    retry_after_s: int = Field(default=1, description="unavailable: what the answer says in Retry-After.")
    bytes_per_s: int = Field(default=100_000, gt=0, description="slow: how fast each connection is.")
    after_bytes: int = Field(
        default=0,
        description="cut: the connection ends after so many bytes of the body; stall: nothing more comes over it.",
    )
    offset: int | None = Field(default=None, description="flip: which byte of the file is wrong; None: the middle one.")
    size_delta: int = Field(default=-1, description="wrong_size: so many bytes more or fewer than the file has.")
    token: str = Field(default="", description="gated: the one token that gets the file; the empty one never does.")

    def concerns(self, repo: str, path: str) -> bool:
        return fnmatchcase(repo, self.repo) and fnmatchcase(path, self.path)


class _FaultsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    faults: list[Fault] = []


def write_faults(root: Path, faults: Sequence[Fault]) -> None:
    """Replace what goes wrong from the next request on; an empty list heals the hub."""
    unfinished = root / f".{FAULTS_FILE}"
    unfinished.write_text(_FaultsFile(faults=list(faults)).model_dump_json(indent=2, exclude_defaults=True) + "\n")
    unfinished.replace(root / FAULTS_FILE)


class FaultDesk:
    """Says which faults a request meets, and counts those that end after some times."""

    def __init__(self, root: Path) -> None:
        self._file = root / FAULTS_FILE
        self._lock = threading.Lock()
        self._met: Counter[Fault] = Counter()

    def faults_for(self, repo: str, path: str, *, counts: bool) -> dict[str, Fault]:
        """Kind -> fault for one file; with `counts` the request uses up one of a fault's `times`.

        Raises:
            ValueError: the control file is not valid; the server answers 500 with the reason.
        """
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return {}
        found: dict[str, Fault] = {}
        with self._lock:
            for fault in _FaultsFile.model_validate(json.loads(text)).faults:
                if not fault.concerns(repo, path) or (fault.times is not None and self._met[fault] >= fault.times):
                    continue
                found[fault.kind] = fault
                if counts:
                    self._met[fault] += 1
        return found
