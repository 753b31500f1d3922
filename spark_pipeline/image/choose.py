"""Which of the candidates it is, and why none of the others: pure, from what the head and the registries answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_pipeline.errors import ImageError, ImageNotFoundError
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.image.reference import Reference

# `uname -m` and what Docker calls the same machine.
_DOCKER_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class RegistryAnswer:
    """What a registry said of one candidate.

    Args:
        digest: of its manifest; None when the registry did not give one.
        refusal: why not, in one line: not there, or not for this login. A registry that gave no answer is an error.
    """

    digest: str | None
    refusal: str = ""


@dataclass(frozen=True)
class Candidate:
    """One declared candidate, and what is known of it.

    Args:
        declared: the reference as declared.
        on_head: what the head's Docker Engine holds under it (under `name@digest` where a digest is asked for).
        remote: the registry's answer; None where it did not have to be asked.
    """

    declared: str
    on_head: ImageFacts | None
    remote: RegistryAnswer | None = None


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
class Choice:
    """The candidate to use.

    Args:
        declared: the reference as declared.
        on_head: its facts; None while it must still be pulled.
        pull: what to pull on the head; None when nothing is.
        digest: the registry's digest, as far as it is known.
        reasons: why this one, and why not those before it.
    """

    declared: str
    on_head: ImageFacts | None
    pull: str | None
    digest: str | None
    reasons: tuple[str, ...]


def pinned(declared: str, digest: str | None) -> str:
    """What is looked for: the candidate at the digest that is asked for, else as it is declared."""
    return Reference.parse(declared).at(digest) if digest else declared


def unfit(image: ImageFacts, machines: Sequence[Machine]) -> str:
    """Why this image cannot run on these nodes; '' when it can."""
    for machine in machines:
        if image.architecture != machine.architecture:
            return f"{image.architecture} image on {machine.architecture} node {machine.node} ({machine.hardware})"
    return ""


def choose(candidates: Sequence[Candidate], machines: Sequence[Machine], digest: str | None = None) -> Choice:
    """The first candidate that the head holds, or can pull.

    Args:
        candidates: in the declared order.
        machines: of every node that is to run it.
        digest: take this one and no other: the value that the image sensor saw behind a declared tag.

    Raises:
        ImageNotFoundError: no candidate is anywhere; lists what was asked and answered for each.
        ImageError: there are candidates, but none that these nodes can run.
    """
    against: list[str] = []
    misfits = False
    for candidate in candidates:
        wanted = pinned(candidate.declared, digest)
        if candidate.on_head is not None:
            if reason := unfit(candidate.on_head, machines):
                misfits = True
                against.append(f"{wanted}: {reason}")
                continue
            known = digest or Reference.parse(candidate.declared).digest_among(candidate.on_head.repo_digests)
            origin = f"registry digest {known}" if known else "from no registry"
            return Choice(
                candidate.declared, candidate.on_head, None, known, (*against, f"{wanted}: on the head, {origin}")
            )
        if candidate.remote is not None and candidate.remote.digest is not None:
            pull = pinned(candidate.declared, candidate.remote.digest)
            reason = f"{wanted}: not on the head; its registry has it: {candidate.remote.digest}"
            return Choice(candidate.declared, None, pull, candidate.remote.digest, (*against, reason))
        refusal = candidate.remote.refusal if candidate.remote else "its registry was not asked"
        against.append(f"{wanted}: not on the head; {refusal}")
    names = ", ".join(candidate.declared for candidate in candidates)
    asked_for = f" at {digest}" if digest else ""
    if misfits:
        raise ImageError(
            f"no candidate can run on these nodes: {names}{asked_for}",
            observed="\n".join(against),
            remedy="declare an image built for these machines under image.candidates",
        )
    raise ImageNotFoundError(
        f"no candidate is on the head or in a registry: {names}{asked_for}",
        observed="\n".join(against),
        remedy="check image.candidates, or bring one to the head: docker pull, docker load or docker build there",
    )
