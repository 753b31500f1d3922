"""Starts the program of weights/node on a node and understands what it says.

It travels over standard input with its request: nothing is installed, no old copy is ever run, one round trip. The
command stays short enough to read; the token is in the request, never among the words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from signal import Signals
from typing import Any

from spark_pipeline.errors import CommandFailedError, HubError, SparkPipelineError, VerificationError, WeightsError
from spark_pipeline.fleet.host import Completed, Host
from spark_pipeline.fleet.progress import Progress
from spark_pipeline.weights.hub import GATED_REMEDY
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.node.messages import Inventory, Report, Request

INSPECT_SECONDS = 120.0
_SHORT = ("inspect", "inventory", "remove", "done")
# 120 GB over a slow line take a day. Silence is what ends a call: the program gives a sign of life every second.
WORK_SECONDS = 3 * 24 * 3600.0
SILENCE_SECONDS = 60.0

# In the order of their imports.
_MODULES = (
    "messages",
    "proofs",
    "layout",
    "shards",
    "verify",
    "siblings",
    "inventory",
    "answers",
    "part",
    "download",
    "serve",
    "main",
)
_START = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
_LOAD = """
import sys, types
for name, source in SOURCES:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main())
"""
# 126 and 127: the shell found no python3 that it could start. An older one stumbles over a word or a module.
_NO_PYTHON = (126, 127)
_OLD_PYTHON = re.compile(r"^(SyntaxError|ImportError|ModuleNotFoundError)\b", re.MULTILINE)
_USUAL_CAUSE = {
    Signals.SIGKILL: "usually by the kernel, out of memory: see dmesg, and what else fills that node's memory",
    Signals.SIGBUS: "a file was cut short, or its disk failed, while it was read: run again; it comes again: see dmesg",
    Signals.SIGTERM: "somebody, or a shutdown of the node, ended it: run again",
}


def command(operation: str) -> tuple[str, ...]:
    """The words that start it; -I: nothing of the user's own Python gets in. The last two only tell `ps` what it is."""
    return ("python3", "-I", "-X", "utf8", "-c", _START, "spark_pipeline weights", operation)


@cache
def program() -> bytes:
    """All its modules as one text that makes them importable under their own names."""
    folder = resources.files("spark_pipeline.weights.node")
    sources = [
        (f"spark_pipeline.weights.node.{name}", (folder / f"{name}.py").read_text(encoding="utf-8"))
        for name in _MODULES
    ]
    text = f"SOURCES = {sources!r}\n{_LOAD}".encode()
    return str(len(text)).encode() + b"\n" + text


def request(operation: str, manifest: Manifest, weights_dir: str, **more: Any) -> Request:
    """What the program is to do about one model."""
    return Request(
        operation=operation,
        weights_dir=weights_dir,
        repo=manifest.repo,
        commit=manifest.commit,
        manifest_sha256=manifest.sha256,
        files=manifest.wanted,
        **more,
    )


def ask_inventory(host: Host, weights_dir: str) -> Inventory:
    """Every revision on a node. Raises what `call` raises."""
    return Inventory.from_fields(_exchange(host, Request("inventory", weights_dir, "", "", "", ())))


def remove_revision(host: Host, weights_dir: str, repo: str, commit: str) -> Inventory:
    """Remove one revision from a node; what is left. Raises what `call` raises."""
    return Inventory.from_fields(_exchange(host, Request("remove", weights_dir, repo, commit, "", ())))


def call(
    host: Host,
    request: Request,
    *,
    progress: Progress,
    on_bytes: Callable[[int], None] = lambda _: None,
    on_port: Callable[[int], None] = lambda _: None,
) -> Report:
    """Run one operation on a node to its end.

    Args:
        progress: gets the program's notes, the node's name before each.
        on_bytes: gets the bytes done so far, about once a second.
        on_port: gets the port of operation 'serve', once it listens.

    Raises:
        HubError, VerificationError, WeightsError: the program's own findings.
        MachineError: and its children, from the host.
    """
    return Report.from_fields(_exchange(host, request, progress=progress, on_bytes=on_bytes, on_port=on_port))


def _exchange(
    host: Host,
    request: Request,
    *,
    progress: Progress = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
    on_port: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """The fields of the program's result."""
    last: dict[str, Any] = {}

    def listen(line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return
        match event.pop("event", None):
            case "progress":
                on_bytes(event["bytes"])
            case "note":
                progress(f"[{host.name}] {event['text']}")
            case "serving":
                on_port(event["port"])
            case "result" | "problem" as name:
                last[name] = event

    is_long = request.operation not in _SHORT
    completed = host.stream(
        command(request.operation),
        on_line=listen,
        input=program() + request.to_json().encode(),
        timeout=WORK_SECONDS if is_long else INSPECT_SECONDS,
        idle_timeout=SILENCE_SECONDS if is_long else None,
        check=False,
    )
    if "problem" in last:
        raise _error(host.name, request, **last["problem"])
    if completed.status != 0 or "result" not in last:
        raise _unfinished(host.name, completed)
    return last["result"]


def _unfinished(node: str, completed: Completed) -> CommandFailedError:
    """The program ended without a word of its own: no Python, a signal, or a fault of ours."""
    status, said = completed.status, completed.stderr[-1500:] or "it printed nothing"
    ended = f"status {status}"
    if status in _NO_PYTHON or _OLD_PYTHON.search(said):
        remedy = "it needs python3 (3.10 or later) with its standard library on the node"
    elif signal := _signal(status):
        ended = f"killed by signal {signal.value} ({signal.name})"
        remedy = _USUAL_CAUSE.get(signal, "see dmesg on that node, then run again")
    else:
        remedy = "where python3 is 3.10 or later this is a fault of the pipeline: report it with the lines above"
    return CommandFailedError(
        "the weights program did not do its work", node=node, observed=f"{ended}: {said}", remedy=remedy
    )


def _signal(status: int) -> Signals | None:
    """What ended it: 128 and the number from a shell, as on every node; less than 0 where the shell was killed too."""
    try:
        return Signals(-status if status < 0 else status - 128)
    except ValueError:
        return None


def _error(node: str, request: Request, kind: str, what: str, observed: str) -> SparkPipelineError:
    directory = f"{request.weights_dir}/{request.repo}/{request.commit}"
    match kind:
        case "gated":
            return HubError(what, node=node, observed=observed, remedy=GATED_REMEDY)
        case "vanished" | "hub":
            remedy = (
                "see that the node reaches the hub and the hub is well; the next run goes on where this one stopped"
            )
            return HubError(what, node=node, observed=observed, remedy=remedy)
        case "certificate":
            remedy = "see the node's clock and its ca-certificates, and whether a proxy stands between"
            return HubError(what, node=node, observed=observed, remedy=remedy)
        case "bytes":
            remedy = f"run again; bad files are kept in {directory}/.spark_pipeline/bad"
            return VerificationError(what, node=node, observed=observed, remedy=remedy)
        case "model":
            remedy = "the files are exactly the hub's: choose another revision"
            return VerificationError(what, node=node, observed=observed, remedy=remedy)
        case "space":
            remedy = f"free some room below {request.weights_dir}; the next run goes on where this one stopped"
            return WeightsError(what, node=node, observed=observed, remedy=remedy)
        case "fabric":
            remedy = "see `ip -br address` on that node: is the address that the fleet declares as its `fabric:` there?"
            return WeightsError(what, node=node, observed=observed, remedy=remedy)
        case _:
            return WeightsError(what, node=node, observed=observed, remedy=f"see to {directory} on that node")
