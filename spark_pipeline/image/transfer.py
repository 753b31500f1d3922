"""What a node lacks of an image, and whether there is room for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_pipeline.errors import ImageError
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.image.layers import LayerId, at_most_bytes, left_out

# `docker load` writes the stream to a temporary directory and unpacks it beside that: "no space left on device" was
# seen with images that would have fitted once (jetson-containers#218, isaac_ros_common#53).
_ROOM_FACTOR = 2
_ASK_SECONDS = 60


@dataclass(frozen=True)
class Room:
    """Free space where a node's Docker Engine keeps its images."""

    directory: str
    free_bytes: int


@dataclass(frozen=True)
class Transfer:
    """What one node needs.

    Args:
        leave_out: layers that it has already.
        needed_bytes: room that loading takes there, at most.
    """

    node: str
    leave_out: tuple[LayerId, ...]
    needed_bytes: int


def layers_on(host: Host) -> tuple[tuple[str, ...], ...]:
    """Diff ids of every image that a node has, those without a name included.

    None for an engine with the containerd store: it takes no image from which layers were left out.
    """
    store = host.run(["docker", "info", "--format", "{{json .DriverStatus}}"], timeout=_ASK_SECONDS).stdout
    if "io.containerd.snapshotter" in store:
        return ()
    found = host.run(["docker", "image", "ls", "--all", "--quiet", "--no-trunc"], timeout=_ASK_SECONDS).stdout.split()
    if not found:
        return ()
    inspect = ["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", *sorted(set(found))]
    # An image may be removed in between; the others are printed all the same.
    lines = host.run(inspect, timeout=_ASK_SECONDS, check=False).stdout.splitlines()
    return tuple(tuple(json.loads(line) or ()) for line in lines if line.strip())


def room_on(host: Host) -> Room:
    """Free space of a node's Docker Engine, for a user who may not look inside its directory."""
    root = host.run(["docker", "info", "--format", "{{.DockerRootDir}}"], timeout=_ASK_SECONDS).stdout.strip()
    free = host.run(["df", "--block-size=1", "--output=avail", root], timeout=_ASK_SECONDS).stdout.split()[-1]
    return Room(root, int(free))


def history_sizes(host: Host, reference: str) -> tuple[int, ...]:
    """Bytes that each step of the image's history added, newest first."""
    argv = ["docker", "history", "--human=false", "--format", "{{.Size}}", reference]
    return tuple(int(size) for size in host.run(argv, timeout=_ASK_SECONDS).stdout.split())


def transfer(node: str, image: ImageFacts, history: Sequence[int], present: Sequence[Sequence[str]]) -> Transfer:
    """What a node that has images of the layers `present` needs: pure."""
    skipped = left_out(image.layers, present)
    missing = len(image.layers) - len(skipped)
    size = at_most_bytes(missing, history, image.size_bytes) if skipped else image.size_bytes
    return Transfer(node, skipped, _ROOM_FACTOR * size)


def refuse_without_room(image: ImageFacts, transfers: Sequence[Transfer], rooms: Mapping[str, Room]) -> None:
    """Raises ImageError when the image cannot be unpacked on a node, before a byte is sent."""
    for wanted in transfers:
        room = rooms[wanted.node]
        if room.free_bytes < wanted.needed_bytes:
            raise ImageError(
                f"no room for {image.reference}",
                node=wanted.node,
                observed=f"{human_bytes(room.free_bytes)} free in {room.directory}, "
                f"{human_bytes(wanted.needed_bytes)} needed: loading takes twice the size of the layers that come",
                remedy="docker image prune on that node, or give Docker a larger disk",
            )


def refuse_without_room_to_read(image: ImageFacts, head: str, room: Room) -> None:
    """Raises ImageError when the head cannot read the image out: before the first byte of `docker save` its engine
    writes the whole image once more to a temporary directory beside its images, also what is then left out."""
    if room.free_bytes < image.size_bytes:
        raise ImageError(
            f"no room to read {image.reference} out",
            node=head,
            observed=f"{human_bytes(room.free_bytes)} free in {room.directory}, "
            f"{human_bytes(image.size_bytes)} needed: docker save takes the image's size once more while it runs",
            remedy="docker image prune on that node, or give Docker a larger disk",
        )


def groups(transfers: Sequence[Transfer]) -> tuple[tuple[Transfer, ...], ...]:
    """Nodes that lack the same layers are served by one stream: the image is read once for all of them."""
    alike: dict[tuple[LayerId, ...], list[Transfer]] = {}
    for wanted in transfers:
        alike.setdefault(wanted.leave_out, []).append(wanted)
    return tuple(tuple(group) for group in alike.values())
