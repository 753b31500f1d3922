"""A head and its peers, all of them this machine. Over a real fabric, between real machines: lab/test_weights.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_pipeline.errors import (
    CommandTimeoutError,
    DeclarationError,
    LeaseHeldError,
    MachineError,
    SparkPipelineError,
    VerificationError,
)
from spark_pipeline.fleet.cancel import Cancelled
from spark_pipeline.fleet.host import Completed, Words
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.fleet.parallel import each
from spark_pipeline.spec.fleet import Fleet
from spark_pipeline.weights import replicate as module
from spark_pipeline.weights import rsync, stage
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.node.messages import AbsentFile, Report, Request
from spark_pipeline.weights.node_program import call, request
from spark_pipeline.weights.plan import NodePlan
from spark_pipeline.weights.plan import plan as decide
from spark_pipeline.weights.replicate import replicate
from spark_pipeline_tests.doubles import ScriptedHost

NAMES = ("head", "one", "two", "three")
FLEET = Fleet.model_validate(
    {
        "name": "sparks",
        "accelerator": "nvidia",
        "weights_dir": "/home/aurora/models",
        "nodes": [
            {"name": name, "ssh": {"host": f"10.0.0.{number}", "user": "aurora"}, "fabric": f"127.0.0.{number}"}
            for number, name in enumerate(NAMES, 1)
        ],
    }
)
MANIFEST = Manifest(
    repo="a/b",
    commit="c" * 40,
    files=tuple(ManifestFile(path=f"{part}.bin", size_bytes=10**9, sha256="0" * 64) for part in range(4)),
)


def lacking_all(manifest: Manifest, *names: str) -> list[NodePlan]:
    size = manifest.size_bytes
    return [NodePlan(name, (), (), manifest.wanted, size, size, 2 * size, seal=True) for name in names]


def session_of(host: Callable[[str], Any], said: list[str], guard: Callable[[], None] = lambda: None) -> Any:
    return SimpleNamespace(
        fleet=FLEET,
        head=host("head"),
        connection=SimpleNamespace(host=host),
        project=SimpleNamespace(known_hosts=None),
        progress=said.append,
        guard=guard,
    )


class Machine(LocalHost):
    """This machine as one node, with a weights directory of its own. Peer 'two' begins to fetch when another one is
    done, and finds the head still serving."""

    first_is_done = threading.Event()
    head_has_ended = threading.Event()

    def __init__(self, name: str, root: Path) -> None:
        super().__init__(name)
        self.weights_dir = root / name

    def stream(self, argv: Words, *, input: str | bytes | None = None, **more: Any) -> Completed:
        assert isinstance(input, bytes)
        operation = argv[-1]
        if (self.name, operation) == ("two", "download"):
            assert self.first_is_done.wait(30)
            assert not self.head_has_ended.wait(1)
        here = input.replace(FLEET.weights_dir.encode(), str(self.weights_dir).encode())
        completed = super().stream(argv, input=here, **more)
        if operation == "done":
            self.first_is_done.set()
        if operation == "serve":
            self.head_has_ended.set()
        return completed


def test_the_head_serves_until_the_last_peer_is_done(tmp_path, manifest_of, monkeypatch) -> None:
    monkeypatch.setattr(module, "prepare_fabric", lambda *_: None)
    monkeypatch.setattr(Machine, "first_is_done", threading.Event())
    monkeypatch.setattr(Machine, "head_has_ended", threading.Event())
    machines: dict[str, Any] = {name: Machine(name, tmp_path) for name in NAMES}
    files = {"config.json": b"{}", "model.bin": os.urandom(300_000)}
    manifest = manifest_of(files)

    def place(name: str) -> Path:
        return machines[name].weights_dir / manifest.repo / manifest.commit

    place("head").mkdir(parents=True)
    for path, content in files.items():
        (place("head") / path).write_bytes(content)
    proven = call(machines["head"], request("verify", manifest, FLEET.weights_dir), progress=print)
    assert not proven.unproven

    peers = ("one", "two", "three")
    copied = replicate(session_of(machines.__getitem__, []), manifest, lacking_all(manifest, *peers), {})

    for name in peers:
        assert copied[name].copied_bytes == manifest.size_bytes
        assert {path: (place(name) / path).read_bytes() for path in files} == files


@dataclass
class Scripted:
    """Peers that fetch whatever they are told to, at once, and a fabric that a test gives its troubles."""

    asked: list[Request] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    trouble: BaseException | None = None
    prepared: int = 0

    def call(self, host: Any, asked: Request, *, on_port: Callable[[int], None] | None = None, **_: Any) -> Report:
        self.asked.append(asked)
        if on_port:
            on_port(1)
        return Report(downloaded_bytes=MANIFEST.size_bytes)

    def prepare_fabric(self, *_: object) -> None:
        self.prepared += 1
        if self.trouble:
            raise self.trouble

    def replicate(self, guard: Callable[[], None] = lambda: None, **more: Any) -> dict[str, int]:
        def host(name: str) -> ScriptedHost:
            return ScriptedHost(name).on("python3", ..., times=None)

        session = session_of(host, self.said, guard)
        copied = replicate(session, MANIFEST, lacking_all(MANIFEST, "one", "two"), {}, **more)
        return {name: result.copied_bytes for name, result in copied.items()}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted()
    monkeypatch.setattr(module, "call", made.call)
    monkeypatch.setattr(module, "prepare_fabric", made.prepare_fabric)
    return made


COPIED = {"one": MANIFEST.size_bytes, "two": MANIFEST.size_bytes}


@pytest.mark.parametrize(
    "trouble",
    [
        MachineError("known_hosts could not be written", node="head", observed="no space", remedy="free some"),
        CommandTimeoutError("mv did not end in time", node="head", observed="silent", remedy="see the load"),
        DeclarationError("fleet sparks: node one is local", remedy="give it an `ssh:` block"),
    ],
)
def test_what_only_a_login_needs_is_said_and_ends_no_copy(scripted: Scripted, trouble: SparkPipelineError) -> None:
    scripted.trouble = trouble

    assert scripted.replicate() == COPIED

    told = sorted(line for line in scripted.said if "need no login" in line)
    assert [line.partition(" ")[0] for line in told] == ["[one]", "[two]"]
    for line in told:
        assert trouble.what in line
        assert trouble.remedy in line
        assert "()" not in line


def test_a_later_round_of_copies_does_not_look_for_it_again(scripted: Scripted) -> None:
    scripted.trouble = MachineError("known_hosts could not be written")

    assert scripted.replicate(is_first=False) == COPIED
    assert scripted.prepared == 0


def test_a_run_that_is_given_up_ends_while_it_looks(scripted: Scripted) -> None:
    scripted.trouble = Cancelled()

    with pytest.raises(Cancelled):
        scripted.replicate()


def test_no_proxy_stands_between_a_peer_and_the_head(scripted: Scripted) -> None:
    scripted.replicate()

    assert {asked.operation: asked.source and asked.source.direct for asked in scripted.asked} == {
        "serve": True,
        "download": True,
        "done": True,
    }


def test_nothing_is_served_once_the_lease_is_lost(scripted: Scripted) -> None:
    def guard() -> None:
        raise LeaseHeldError("the lease of fleet sparks was lost")

    with pytest.raises(LeaseHeldError):
        scripted.replicate(guard)
    assert scripted.asked == []


def test_of_two_rounds_only_the_first_is_told_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[bool] = []
    whole = Report(free_bytes=10**12, sealed=MANIFEST.sha256)
    reports = {
        "head": whole,
        "one": Report(free_bytes=10**12, absent=tuple(AbsentFile(f"{n}.bin", 0) for n in range(4))),
    }
    session = session_of(ScriptedHost, [])
    monkeypatch.setattr(stage, "prove", lambda *_, **__: {})
    monkeypatch.setattr(stage, "replicate", lambda *_, is_first: rounds.append(is_first) or {})

    with pytest.raises(VerificationError, match="again and again"):
        stage._apply(session, decide(MANIFEST, "/d", reports), reports, {}, rehash=False)

    assert rounds == [True, False]


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
    session = session_of(lambda _: head, [])
    by_name = {node.node: node for node in lacking_all(MANIFEST, *NAMES[1:])}

    taken = rsync.places()
    each(by_name, lambda name: rsync.copy_by_rsync(session, MANIFEST, by_name[name], taken))

    assert head.started == 3 * rsync.STREAMS
    assert 1 < head.most <= rsync.HEAD_STREAMS
