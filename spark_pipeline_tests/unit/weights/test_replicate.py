"""How many copies go at once. What they copy, and over what: lab/test_weights.py."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from spark_pipeline.fleet.host import Completed, Words
from spark_pipeline.fleet.parallel import each
from spark_pipeline.spec.fleet import Fleet
from spark_pipeline.weights import rsync
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.plan import NodePlan

NAMES = ("head", "one", "two", "three")
FLEET = Fleet.model_validate(
    {
        "name": "sparks",
        "accelerator": "nvidia",
        "weights_dir": "/home/aurora/models",
        "nodes": [
            {"name": name, "ssh": {"host": f"10.0.0.{number}", "user": "aurora"}, "fabric": f"10.0.1.{number}"}
            for number, name in enumerate(NAMES, 1)
        ],
    }
)
MANIFEST = Manifest(
    repo="a/b",
    commit="c" * 40,
    files=tuple(ManifestFile(path=f"{part}.bin", size_bytes=10**9, sha256="0" * 64) for part in range(4)),
)


class CountingHost:
    """A head that counts the commands that run on it at the same time."""

    name = "head"

    def __init__(self) -> None:
        self.started = self.running = self.most = 0
        self._lock = threading.Lock()

    def stream(self, argv: Words, **_: Any) -> Completed:
        with self._lock:
            self.started += 1
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.2)
        with self._lock:
            self.running -= 1
        return Completed(tuple(argv), 0, "", "", 0.2)


def test_copies_to_several_peers_leave_sessions_of_the_head_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsync, "prepare_fabric", lambda *_: None)
    head = CountingHost()
    project = SimpleNamespace(known_hosts=None)
    session: Any = SimpleNamespace(fleet=FLEET, head=head, connection=None, project=project, progress=lambda _: None)
    size = MANIFEST.size_bytes
    planned = [NodePlan(name, (), (), MANIFEST.wanted, size, size, 2 * size, seal=True) for name in NAMES[1:]]
    by_name = {node.node: node for node in planned}

    taken = rsync.places()
    each([node.node for node in planned], lambda name: rsync.copy_by_rsync(session, MANIFEST, by_name[name], taken))

    assert head.started == 3 * rsync.STREAMS
    assert 1 < head.most <= rsync.HEAD_STREAMS
