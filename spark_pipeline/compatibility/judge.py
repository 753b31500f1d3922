"""Every candidate asked, in the declared order: the ones on the head, and of the others only those that are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_pipeline.errors import ImageError, ImageSilentError
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.answer import ProbeResult
from spark_pipeline.image.candidates import Candidate, Machine, Pin, ask_registry, look, pull, wanted_candidates
from spark_pipeline.image.facts import probe
from spark_pipeline.image.strategy import Judged, chosen, options
from spark_pipeline.image.verdict import Wanted, judge


@dataclass(frozen=True)
class Asked:
    """One candidate, where it is, and what it answered.

    Args:
        to_pull: it would have to be pulled to be asked, and nothing may be changed now (`spark-pipeline plan`).
    """

    candidate: Candidate
    judged: Judged
    to_pull: bool = False

    @property
    def declared(self) -> str:
        return self.candidate.declared


def ask_all(
    session: Session, pin: Pin | None, wanted: Wanted, nodes: Sequence[Machine], *, may_pull: bool
) -> tuple[Asked, ...]:
    """Judge the candidates.

    One that the head does not hold is pulled only when no candidate before it can be used, and only after its registry
    said that it is made for these nodes.

    Raises:
        RegistryError: the registry of a preferred candidate gave no answer.
        ImageSilentError: an image gave no answer: a fault that passes must not lead to another image.
        ImageNotFoundError: no candidate can have the digest that is asked for.
        ImageError: a preferred candidate cannot be pulled.
        MachineError: a node could not be asked.
    """
    found: list[Asked] = []
    for candidate in look(session, wanted_candidates(session, pin), nodes):
        works = _working(session, found, wanted)
        asked = _ask(session, candidate, works, wanted, nodes, may_pull=may_pull)
        if asked.judged.against:
            session.progress(f"{candidate.declared}: {asked.judged.against}")
        elif asked.judged.verdict is not None:
            session.progress(f"{candidate.declared}: {asked.judged.verdict.kind}: {asked.judged.verdict.why}")
        found.append(asked)
    return tuple(found)


def _ask(
    session: Session,
    candidate: Candidate,
    works: str | None,
    wanted: Wanted,
    nodes: Sequence[Machine],
    *,
    may_pull: bool,
) -> Asked:
    image = candidate.on_head
    if image is None:
        if works is not None:
            return Asked(candidate, Judged(candidate.declared, waits=f"not on the head, and not needed: {works} works"))
        candidate = ask_registry(candidate, nodes)
        if candidate.remote is not None and not candidate.against:
            if not may_pull:
                size = human_bytes(candidate.remote.size_bytes or 0)
                waits = (
                    f"not on the head; its registry has it ({candidate.digest}, {size} to pull), asked after the pull"
                )
                return Asked(candidate, Judged(candidate.declared, waits=waits), to_pull=True)
            image = pull(session, candidate)
            candidate = replace(candidate, on_head=image)
    if candidate.against or image is None:
        return Asked(candidate, Judged(candidate.declared, against=candidate.against))
    return Asked(candidate, _probed(session, candidate.declared, image, wanted))


def _probed(session: Session, declared: str, image: ImageFacts, wanted: Wanted) -> Judged:
    try:
        result = probe(session.head, image, session.project, session.progress, wanted)
    except ImageSilentError:
        raise
    except ImageError as error:
        said = error.observed.splitlines()[-1:] or ["it said nothing"]
        return Judged(declared, against=f"{error.what} ({said[0]}); {error.remedy}")
    return judged(declared, result, wanted)


def judged(declared: str, result: ProbeResult, wanted: Wanted) -> Judged:
    """The verdict about an image that answered."""
    return Judged(declared, result.answer, judge(result.answer, result.inspections, wanted))


def _working(session: Session, found: Sequence[Asked], wanted: Wanted) -> str | None:
    """A candidate asked so far that can be used in some way; None where there is none yet."""
    option = chosen(options(session.deployment, [asked.judged for asked in found], wanted))
    return option.candidate if option is not None else None
