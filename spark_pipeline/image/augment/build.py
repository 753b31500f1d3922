"""The build on the head: a Dockerfile, wheels and our programs as one stream into `docker build`."""

from __future__ import annotations

import json
import re
from collections import deque
from pathlib import Path

from spark_pipeline.errors import ImageError
from spark_pipeline.fleet.cancel import to_the_end
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import Progress, heartbeat, human_bytes
from spark_pipeline.image.augment.augmentation import LABEL_ADDED, LABEL_BASE, LABEL_KEY, Augmentation, Side
from spark_pipeline.image.augment.context import (
    build_command,
    building,
    context,
    labels,
    sides,
    source_tag,
)
from spark_pipeline.image.augment.wheels import fetch
from spark_pipeline.image.transfer import room_on

_ASK_SECONDS = 60.0
_BUILD_SECONDS = 3600.0
_MARKER = re.compile(r"spark-pipeline-augment (\{.*\})")
_KEPT_LINES = 15
_ROUNDS = 10  # of removing: an image goes only after those that were built on it
# The context, its layer, and what is unpacked of it: Ray's wheel of 70 MB becomes 250 MB.
_ROOM_FACTOR = 6


def find(host: Host, augmentation: Augmentation) -> ImageFacts | None:
    """The image, if `host` holds it already."""
    image = Docker(host).image(augmentation.tag)
    if image is None:
        return None
    wanted = labels(augmentation)
    same = all(image.labels.get(key) == wanted[key] for key in (LABEL_KEY, LABEL_BASE, LABEL_ADDED))
    return image if same else None


def build(
    host: Host,
    base: ImageFacts,
    augmentation: Augmentation,
    cache_dir: Path,
    progress: Progress,
    donor: ImageFacts | None = None,
) -> ImageFacts:
    """The image, built on `host` unless it is there. Cancelled or failed, it leaves nothing there.

    Args:
        base, donor: as `host` holds them.

    Raises:
        ImageError: the build would change what the base has, or failed otherwise; with what it said.
        MachineError: the node could not be asked.
    """
    images = (base, *((donor,) if donor else ()))
    if len(images) != len(sides(augmentation)):
        raise ValueError("a graft needs its donor, and nothing else has one")
    if (there := find(host, augmentation)) is not None:
        progress(f"{augmentation.tag} is on {host.name} already: nothing was built")
        return there
    fetch(augmentation.files, cache_dir, progress)
    content = context(augmentation, cache_dir)
    _refuse_without_room(host, augmentation, len(content))
    try:
        for side, image in zip(sides(augmentation), images, strict=True):
            host.run(["docker", "tag", image.image_id, source_tag(side)], timeout=_ASK_SECONDS)
        _run(host, augmentation, content, progress)
        return _checked(host, base, augmentation)
    finally:
        to_the_end(lambda: _tidy(host, augmentation))


def discard(host: Host, tag: str) -> None:
    """Remove an image that was built, such as one that failed its inspection. The base stays.

    Raises:
        ImageError: it is still there: a container uses it.
    """
    done = host.run(["docker", "image", "rm", tag], timeout=_ASK_SECONDS, check=False)
    if done.status != 0 and Docker(host).image(tag) is not None:
        raise ImageError(
            f"{tag} could not be removed",
            node=host.name,
            observed=done.stderr[-500:],
            remedy=f"docker ps --all --filter ancestor={tag} on that node shows who uses it",
        )


def _run(host: Host, augmentation: Augmentation, content: bytes, progress: Progress) -> None:
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    refused = ""

    def on_line(line: str) -> None:
        nonlocal refused
        found = _MARKER.search(line)
        if found is None:
            last.append(line)
            return
        said = _document(found[1])
        refused = said.get("error", "") or refused
        if "say" in said:
            progress(said["say"])

    what = f"building {augmentation.tag} on {host.name} from {augmentation.base.declared} ({human_bytes(len(content))})"
    # Both streams: the old builder prints to one of them, BuildKit to the other.
    argv = ["sh", "-c", 'exec "$@" 2>&1', "sh", *build_command(augmentation)]
    with heartbeat(what, progress):
        done = host.stream(argv, on_line=on_line, input=content, timeout=_BUILD_SECONDS, check=False)
    if done.status != 0:
        raise _failed(host, augmentation, refused, "\n".join(line for line in last if line.strip()))


def _document(text: str) -> dict[str, str]:
    """One of our programs' lines. BuildKit repeats them cut off when a step fails."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _failed(host: Host, augmentation: Augmentation, refused: str, said: str) -> ImageError:
    added = augmentation.added[0]
    if refused:
        remedy = "take an image whose packages allow it; or declare backend: mp, which needs no Ray"
        if augmentation.donor is not None:
            remedy = "take the donor as it is: it knows the architecture"
    elif "no space left on device" in said:
        remedy = "docker image prune there, or give Docker a larger disk"
    else:
        remedy = f"see whether `docker build` works on {host.name}"
    return ImageError(
        f"{added} could not be added to {augmentation.base.declared}",
        node=host.name,
        observed=refused or said[-1500:] or "docker build printed nothing",
        remedy=remedy,
    )


def _checked(host: Host, base: ImageFacts, augmentation: Augmentation) -> ImageFacts:
    """The image that came out: on top of the base's layers, run in the same way."""
    image = find(host, augmentation)
    if image is None:
        raise ImageError(
            f"{augmentation.tag} was built, and is not there",
            node=host.name,
            observed=f"docker image inspect {augmentation.tag}: not with the labels that it was built with",
            remedy="did somebody remove or tag images by hand? Run the same again",
        )
    differs = [
        f"{name} {old!r} became {new!r}"
        for name, old, new in (
            ("layers", base.layers, image.layers[: len(base.layers)]),
            ("entrypoint", base.entrypoint, image.entrypoint),
            ("command", base.command, image.command),
            ("environment", dict(base.environment), dict(image.environment)),
            ("work directory", base.working_dir, image.working_dir),
            ("user", base.user, image.user),
        )
        if old != new
    ]
    if differs:
        discard(host, augmentation.tag)
        raise ImageError(
            f"the image made from {augmentation.base.declared} is not run as that is",
            node=host.name,
            observed="; ".join(differs),
            remedy="has the base ONBUILD instructions? Take another base",
        )
    return image


def _tidy(host: Host, augmentation: Augmentation) -> None:
    """Take away what a build leaves on the way: containers of a step that was interrupted, images that nobody can
    name, and the names that the Dockerfile used."""
    docker = Docker(host)
    label = {LABEL_KEY: building(augmentation.key)}
    if containers := docker.containers(label):
        docker.remove([container.container_id for container in containers])
    listing = ["docker", "image", "ls", "--quiet", "--no-trunc", "--filter", "dangling=true"]
    listing += ["--filter", f"label={LABEL_KEY}={label[LABEL_KEY]}"]
    for _ in range(_ROUNDS):
        left = list(dict.fromkeys(host.run(listing, timeout=_ASK_SECONDS).stdout.split()))
        if not left:
            break
        host.run(["docker", "image", "rm", *left], timeout=_ASK_SECONDS, check=False)
    for side in sides(augmentation):
        _forget_source(host, side)


def _forget_source(host: Host, side: Side) -> None:
    """A source that has no other name keeps ours: without it, Docker would remove the image itself."""
    ask = ["docker", "image", "inspect", "--format", "{{len .RepoTags}}", source_tag(side)]
    names = host.run(ask, timeout=_ASK_SECONDS, check=False).stdout.strip()
    if names.isdigit() and int(names) > 1:
        host.run(["docker", "image", "rm", source_tag(side)], timeout=_ASK_SECONDS, check=False)


def _refuse_without_room(host: Host, augmentation: Augmentation, context_bytes: int) -> None:
    room, needed = room_on(host), _ROOM_FACTOR * context_bytes
    if room.free_bytes < needed:
        raise ImageError(
            f"no room to build {augmentation.tag}",
            node=host.name,
            observed=f"{human_bytes(room.free_bytes)} free in {room.directory}, some {human_bytes(needed)} needed",
            remedy="docker image prune there, or give Docker a larger disk",
        )
