"""The declared candidates: where they are, whether these nodes can run them, and how one comes to the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_pipeline.errors import CommandFailedError, ImageError, ImageNotFoundError, RegistryError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import heartbeat, human_bytes
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.registry import RemoteImage, remote_image
from spark_pipeline.image.registry_client import NotAllowedError
from spark_pipeline.image.transfer import room_on

_ASK_SECONDS = 60
# 30 GB over a home's 50 Mbit/s take 80 minutes.
_PULL_SECONDS = 4 * 3600
# Layers are stored unpacked, beside the compressed ones on their way: images of engines grow to some 2.5 times.
_UNPACKED = 2.5
# `uname -m` and what Docker calls the same machine.
_DOCKER_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Machine:
    """A node's processor: `uname -m`."""

    node: str
    hardware: str

    @property
    def architecture(self) -> str:
        """In Docker's words; an unknown machine keeps its own."""
        return _DOCKER_ARCHITECTURE.get(self.hardware, self.hardware)


@dataclass(frozen=True)
class Candidate:
    """One declared candidate.

    Args:
        declared: the reference as declared.
        digest: the one that it must have, or that its registry or the head's Docker knows; None: in no registry.
        on_head: what the head's Docker Engine holds under it (under `name@digest` where a digest is asked for).
        remote: the registry's answer; None where it did not have to be asked, or said no.
        against: why it cannot be used, whatever is in it; '' when nothing is known against it.
    """

    declared: str
    digest: str | None
    on_head: ImageFacts | None
    remote: RemoteImage | None = None
    against: str = ""

    @property
    def pinned(self) -> str:
        """What is pulled: `name@digest` where a digest is known, else as declared."""
        return pinned(self.declared, self.digest)


@dataclass(frozen=True)
class Pin:
    """A digest that was seen: it is judged and deployed, even if the tag moves again in between.

    Args:
        image: the candidate whose tag it was seen behind; None: whichever candidate has it.
    """

    digest: str
    image: str | None = None


def wanted_candidates(session: Session, pin: Pin | None) -> tuple[tuple[str, str | None], ...]:
    """The declared references to consider, in order, each with the digest that it must have.

    Raises:
        ImageNotFoundError: none can have the digest that is asked for.
    """
    image = session.deployment.image
    if pin is None:
        return tuple((declared, None) for declared in image.candidates)
    if pin.image is not None and pin.image in image.candidates:
        # A graft needs both of its sides; the other one is taken as it is declared.
        sides = (image.graft.base, image.graft.donor) if image.graft is not None else ()
        return ((pin.image, pin.digest), *((side, None) for side in sides if side != pin.image))
    names = image.candidates if pin.image is None else ()
    found = tuple((name, pin.digest) for name in names if Reference.parse(name).digest in (None, pin.digest))
    if not found:
        raise ImageNotFoundError(
            f"no candidate can be at {pin.digest}",
            observed=f"declared: {', '.join(image.candidates)}" + (f"; asked for: {pin.image}" if pin.image else ""),
            remedy="declare the new digest under image.candidates, or declare by tag",
        )
    return found


def pinned(declared: str, digest: str | None) -> str:
    """What is looked for: the candidate at the digest that is asked for, else as it is declared."""
    return Reference.parse(declared).at(digest) if digest else declared


def machines(session: Session) -> tuple[Machine, ...]:
    """What the nodes of the deployment compute with, in rank order."""
    return tuple(session.connection.each([node.name for node in session.nodes], machine_of).values())


def machine_of(host: Host) -> Machine:
    return Machine(host.name, host.run(["uname", "-m"], timeout=_ASK_SECONDS).stdout.strip())


def look(session: Session, wanted: Sequence[tuple[str, str | None]], nodes: Sequence[Machine]) -> tuple[Candidate, ...]:
    """What the head holds of the candidates. No registry is asked.

    Args:
        wanted: reference and digest of each, see `wanted_candidates`.
    """
    docker = Docker(session.head)
    found: list[Candidate] = []
    for declared, digest in wanted:
        on_head = docker.image(pinned(declared, digest))
        if on_head is not None and digest is None:
            digest = Reference.parse(declared).digest_among(on_head.repo_digests)
        against = unfit(on_head.architecture, nodes) if on_head is not None else ""
        found.append(Candidate(declared, digest, on_head, against=against))
    return tuple(found)


def ask_registry(candidate: Candidate, nodes: Sequence[Machine]) -> Candidate:
    """What the registry of a candidate that the head does not hold says of it; a no rules it out.

    Raises:
        RegistryError: no answer. A fault that passes must not lead to another image than the one that is preferred.
    """
    try:
        remote = remote_image(candidate.pinned, nodes[0].architecture)
    except (ImageNotFoundError, NotAllowedError) as error:
        return replace(candidate, against=f"not on the head; {error.what} ({error.observed}): {error.remedy}")
    except RegistryError as error:
        raise RegistryError(
            f"whether candidate {candidate.declared} exists cannot be told now: {error.what}",
            observed=error.observed,
            remedy=f"{error.remedy}\nto do without it, take it out of image.candidates, or put another one first",
        ) from error
    against = next(
        (
            f"not on the head; its registry has it for {', '.join(remote.platforms)} only, {node.node} is "
            f"linux/{node.architecture} ({node.hardware})"
            for node in nodes
            if not remote.runs_on(node.architecture)
        ),
        "",
    )
    return replace(candidate, digest=remote.digest, remote=remote, against=against)


def unfit(architecture: str, nodes: Sequence[Machine]) -> str:
    """Why an image for this processor cannot run on these nodes; '' when it can."""
    for node in nodes:
        if architecture != node.architecture:
            return f"{architecture} image on {node.architecture} node {node.node} ({node.hardware})"
    return ""


def pull(session: Session, candidate: Candidate) -> ImageFacts:
    """Bring a candidate to the head, by digest. The declared tag stays where it is until the image is decided on: one
    that turns out broken must not take the name of the one that serves.

    Raises:
        ImageError: there is no room for it, or it cannot be pulled.
    """
    assert candidate.remote is not None
    docker = Docker(session.head)
    if (held := docker.image(candidate.pinned)) is not None:
        return held  # pulled before, and never given the tag
    size_bytes = candidate.remote.size_bytes or 0
    _refuse_without_room(session.head, candidate.pinned, size_bytes)
    session.guard()
    argv = pull_command(candidate)
    what = f"pulling {candidate.declared} ({human_bytes(size_bytes)}) on {session.head.name}"
    layers = 0

    def on_line(line: str) -> None:
        nonlocal layers
        if line.endswith(": Pull complete"):
            layers += 1
            session.progress(f"{what}: {layers} layers are there")

    with heartbeat(what, session.progress):
        try:
            session.head.stream(argv, on_line=on_line, timeout=_PULL_SECONDS)
        except CommandFailedError as error:
            raise _not_pulled(candidate, argv, error) from error
    image = docker.image(candidate.pinned)
    if image is None:
        raise ImageError(
            f"{candidate.pinned} was pulled, and is not there",
            node=session.head.name,
            observed=f"docker image inspect {candidate.pinned}: no such image",
            remedy=f"docker pull {candidate.pinned} on that node, then docker image ls --digests",
        )
    return image


def pull_command(candidate: Candidate) -> tuple[str, ...]:
    return ("docker", "pull", candidate.pinned)


def _refuse_without_room(head: Host, reference: str, compressed_bytes: int) -> None:
    needed = int(compressed_bytes * _UNPACKED)
    room = room_on(head)
    if room.free_bytes < needed:
        raise ImageError(
            f"no room to pull {reference}",
            node=head.name,
            observed=f"some {human_bytes(needed)} needed unpacked ({human_bytes(compressed_bytes)} to pull), "
            f"{human_bytes(room.free_bytes)} free at {room.directory}",
            remedy="docker image prune there, or give Docker a larger disk",
        )


def _not_pulled(candidate: Candidate, argv: Sequence[str], error: CommandFailedError) -> ImageError:
    if "server gave HTTP response to HTTPS client" in error.observed:
        registry = Reference.parse(candidate.declared).registry
        remedy = f'add "{registry}" to insecure-registries in /etc/docker/daemon.json there, or give it TLS'
    elif "no space left on device" in error.observed:
        remedy = "docker image prune there, or give Docker a larger disk"
    else:
        remedy = f"run it there to see it fail: {' '.join(argv)}; a private image needs docker login there"
    return ImageError(
        f"{candidate.pinned} could not be pulled", node=error.node, observed=error.observed, remedy=remedy
    )
