"""The image from the head to other nodes, over the fabric: only the layers that a node lacks, to all nodes at once.

Two launchers in use today send all 3.7 GB where one small layer differs (34 and 54 s, shared/facts/rivals_measured.md),
one of them by way of a temporary file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from spark_pipeline.errors import ImageDiffersError, ImageError
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.host import Completed, Host, shell_text
from spark_pipeline.fleet.progress import Meter, Progress, human_bytes
from spark_pipeline.image import send_program
from spark_pipeline.image.layers import LayerId
from spark_pipeline.image.transfer import Transfer, groups

# A slow disk writes 20 MB/s; below that something is wrong. The engine needs a while before the first byte.
_SLOWEST_BYTES_PER_SECOND = 20e6
_START_SECONDS = 900
_TELL_SECONDS = 10
_DISK_FULL = "no space left on device"


@dataclass(frozen=True)
class Sent:
    """How an image came to a node.

    Args:
        sent_bytes: that went over the fabric to this node.
        full_bytes: that would have gone if nothing had been left out.
        seconds: from the start of `docker save` to the end of `docker load`.
    """

    node: str
    sent_bytes: int
    full_bytes: int
    seconds: float


@dataclass(frozen=True)
class Parcel:
    """What is sent, and from where.

    Args:
        references: names that the image has on every node afterwards; the first is the pipeline's own.
        ways: node -> ssh words that, run on the head, reach it over the fabric.
        arrived: what a node's engine holds under the pipeline's own name.
    """

    head: Host
    image: ImageFacts
    references: tuple[str, ...]
    ways: Mapping[str, Sequence[str]]
    arrived: Callable[[str], ImageFacts | None]


class _End(BaseModel):
    """How `docker load` ended on one node."""

    status: int
    said: str


class _Line(BaseModel):
    """One line of send_program.py's output."""

    read: int = 0
    sent: int = 0
    left_out: int = 0
    error: str = ""
    done: dict[str, _End] | None = None


def send_command(
    references: Sequence[str], leave_out: Sequence[LayerId], loads: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """What runs on the head; its program, send_program.py, comes on standard input.

    Args:
        references: names that the image gets.
        leave_out: layers that none of the targets needs.
        loads: node -> words that start `docker load` there.
    """
    order = {
        "references": list(references),
        "leave_out": {layer.chain_id: layer.diff_id for layer in leave_out},
        "targets": {node: list(words) for node, words in loads.items()},
    }
    return ("python3", "-", json.dumps(order, separators=(",", ":")))


def load_command(way: Sequence[str]) -> tuple[str, ...]:
    """`docker load` at the end of an ssh way."""
    return (*way, "docker", "load", "--quiet")


def shown(references: Sequence[str], leave_out: Sequence[LayerId], loads: Mapping[str, Sequence[str]]) -> str:
    """`send_command` as a person would type it, were there a program that leaves layers out."""
    without = f" | [without {len(leave_out)} layers that are there]" if leave_out else ""
    targets = [shell_text(words) for words in loads.values()]
    sink = targets[0] if len(targets) == 1 else f"tee {' '.join(f'>({target})' for target in targets)}"
    return f"{shell_text(['docker', 'save', *references])}{without} | {sink}"


def distribute(parcel: Parcel, transfers: Sequence[Transfer], progress: Progress) -> tuple[Sent, ...]:
    """Bring the image to every node of `transfers`, and prove that it is the same there.

    A node that refuses an image with layers left out (Docker's containerd store does) is sent everything.

    Raises:
        ImageError: the image could not be read on the head, or loaded on a node.
        ImageDiffersError: it was loaded, and is not the same.
    """
    sent: list[Sent] = []
    for group in groups(transfers):
        refused: list[Transfer] = []
        for wanted, end, how in _stream(parcel, group, progress):
            refusal = _refusal(parcel, wanted.node, end)
            if refusal is None:
                sent.append(how)
            elif wanted.leave_out and _DISK_FULL not in refusal.observed:
                progress(f"{refusal}\n  sending everything to {wanted.node}")
                refused.append(replace(wanted, leave_out=()))
            else:
                raise refusal
        if refused:
            sent += distribute(parcel, refused, progress)
    return tuple(sent)


def _refusal(parcel: Parcel, node: str, end: _End) -> ImageError | None:
    """Why the image did not arrive; None when it did: same fingerprint under the pipeline's name."""
    image = parcel.image
    if end.status != 0:
        full = _DISK_FULL in end.said
        return ImageError(
            f"docker load of {image.reference} failed",
            node=node,
            observed=f"status {end.status}: {end.said or 'it printed nothing'}",
            remedy="docker image prune on that node" if full else f"see whether `docker load` works on {node}",
        )
    arrived = parcel.arrived(node)
    if arrived is not None and arrived.fingerprint == image.fingerprint:
        return None
    return ImageDiffersError(
        f"{image.reference} is not the same after it was copied",
        node=node,
        observed=f"fingerprint {image.fingerprint} on {parcel.head.name}, "
        f"{arrived.fingerprint if arrived else 'no image'} on {node}",
        remedy=f"docker image rm {parcel.references[0]} on {node}, then run the same again",
    )


def _stream(parcel: Parcel, group: Sequence[Transfer], progress: Progress) -> list[tuple[Transfer, _End, Sent]]:
    """One `docker save` on the head into the `docker load` of every node of the group."""
    image, skipped = parcel.image, group[0].leave_out
    loads = {wanted.node: load_command(parcel.ways[wanted.node]) for wanted in group}
    names = ", ".join(loads)
    progress(
        f"{image.reference} ({human_bytes(image.size_bytes)}) from {parcel.head.name} to {names}: "
        f"{len(image.layers) - len(skipped)} of {len(image.layers)} layers are missing there"
    )
    what = f"{image.reference} to {names}"
    meter: Meter | None = None
    last, silent_seconds = _Line(), 0

    def on_line(text: str) -> None:
        nonlocal last, meter, silent_seconds
        before, last = last.read, _Line.model_validate_json(text)
        if last.read == before:
            # Before its first byte an engine writes the whole image to a directory of its own; after the last one,
            # the others still unpack what they got.
            silent_seconds += 1
            if silent_seconds % _TELL_SECONDS == 0:
                doing = f"{names}: unpacking" if last.read else f"{parcel.head.name}: gathering the layers"
                progress(f"{what}: {doing} ({silent_seconds} s)")
            return
        silent_seconds = 0
        meter = meter or Meter(what, image.size_bytes, progress)
        meter.set(min(last.read, image.size_bytes))

    completed = parcel.head.stream(
        send_command(parcel.references, skipped, loads),
        on_line=on_line,
        input=Path(send_program.__file__).read_text(encoding="utf-8"),
        timeout=_START_SECONDS + image.size_bytes / _SLOWEST_BYTES_PER_SECOND,
        check=False,
    )
    if completed.status != 0 or last.done is None:
        raise _unreadable(parcel, completed, last)
    done = last.done
    return [(wanted, done[wanted.node], Sent(wanted.node, last.sent, last.read, completed.seconds)) for wanted in group]


def _unreadable(parcel: Parcel, completed: Completed, last: _Line) -> ImageError:
    full = _DISK_FULL in last.error
    return ImageError(
        f"{parcel.image.reference} could not be read",
        node=parcel.head.name,
        observed=last.error or completed.stderr[-800:] or f"status {completed.status}",
        remedy="docker image prune: reading takes the image's size once more in Docker's directory"
        if full
        else f"docker save {parcel.references[0]} | wc -c on that node shows it again",
    )
