"""Every way from the candidates to a serving image, each possible with its price or ruled out with its reason: pure.

The order of preference is that of the risk: an image as somebody built and tried it comes before one that has to be
built, vLLM's own implementation before the Transformers backend, then the declared order of the candidates, then the
image's own Ray before vLLM's own multi-node mode, which it replaces since 0.11.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from spark_pipeline.image.answer import ImageAnswer, Part
from spark_pipeline.image.augment.ray import ray_version
from spark_pipeline.image.verdict import Kind, Verdict, Wanted
from spark_pipeline.spec.deployment import Backend, Deployment


class Way(StrEnum):
    """How a candidate could be used."""

    OWN_RAY = "as it is, with its own Ray"
    MP = "as it is, with vLLM's own multi-node mode"
    ONE_NODE = "as it is, on one node"
    RAY_LAYERED = "Ray layered on"
    GRAFT = "model files grafted in"
    TRANSFORMERS = "newer transformers"
    ANY = "in any way"


BUILT = (Way.RAY_LAYERED, Way.GRAFT, Way.TRANSFORMERS)


@dataclass(frozen=True)
class Judged:
    """One candidate and what is known of it.

    Args:
        against: why it could not be asked: it exists nowhere, is for another processor, holds no vLLM.
        waits: why it was not asked: it would have to be pulled, and an earlier candidate works.
    """

    declared: str
    answer: ImageAnswer | None = None
    verdict: Verdict | None = None
    against: str = ""
    waits: str = ""


class Option(Part):
    """One way for one candidate.

    Args:
        donor: the candidate that a graft takes its files from.
        why: what makes it possible, or what rules it out.
        cost: what it takes beyond starting it; '' where it is ruled out.
    """

    candidate: str
    way: Way
    donor: str | None = None
    possible: bool
    why: str
    cost: str = ""
    is_fallback: bool = False
    is_chosen: bool = False


def options(deployment: Deployment, candidates: Sequence[Judged], wanted: Wanted) -> tuple[Option, ...]:
    """All ways, in the candidates' order, the best of the possible ones marked as chosen (none, if none is)."""
    return _with_best([option for candidate in candidates for option in _of(deployment, candidate, candidates, wanted)])


def without(found: Sequence[Option], refused: Option, why: str) -> tuple[Option, ...]:
    """The same ways, one of them ruled out after all; the next best is chosen."""
    changed = {"possible": False, "why": why, "cost": ""}
    return _with_best([option.model_copy(update=changed) if option is refused else option for option in found])


def _with_best(found: Sequence[Option]) -> tuple[Option, ...]:
    best = min((option for option in found if option.possible), key=lambda option: _rank(option, found), default=None)
    return tuple(option.model_copy(update={"is_chosen": option is best}) for option in found)


def chosen(found: Sequence[Option]) -> Option | None:
    return next((option for option in found if option.is_chosen), None)


def _rank(option: Option, found: Sequence[Option]) -> tuple[bool, bool, int]:
    return option.is_fallback, option.way in BUILT, found.index(option)


def _of(deployment: Deployment, candidate: Judged, candidates: Sequence[Judged], wanted: Wanted) -> Iterator[Option]:
    several = deployment.parallel.world_size > 1
    ways = (Way.OWN_RAY, Way.MP, Way.RAY_LAYERED) if several else (Way.ONE_NODE,)
    answer, verdict = candidate.answer, candidate.verdict
    if answer is None or verdict is None:
        why = candidate.against or candidate.waits
        yield Option(candidate=candidate.declared, way=Way.ANY, possible=False, why=why)
        return
    known = _Known(deployment, candidate.declared, answer, verdict, wanted)
    for way in ways:
        yield known.as_it_is(way) if way is not Way.RAY_LAYERED else known.ray_layered()
    for donor in candidates:
        if donor.declared != candidate.declared and donor.answer is not None and donor.verdict is not None:
            yield known.graft(donor.declared, donor.answer, donor.verdict)
    yield known.newer_transformers()


@dataclass(frozen=True)
class _Known:
    """One candidate that answered."""

    deployment: Deployment
    declared: str
    answer: ImageAnswer
    verdict: Verdict
    wanted: Wanted

    def as_it_is(self, way: Way) -> Option:
        engine, backend = self.answer.engine, self.deployment.backend
        if against := self._graft_is_declared() or self._cannot_serve():
            return self._ruled_out(way, against)
        if way is Way.OWN_RAY:
            if backend is Backend.MP:
                return self._ruled_out(way, "backend: mp is declared")
            if engine.ray is None:
                return self._ruled_out(way, "the image has no Ray")
            return self._possible(way, f"Ray {engine.ray} is in the image; {self.verdict.why}", "nothing")
        if way is Way.MP:
            if backend is Backend.RAY:
                return self._ruled_out(way, "backend: ray is declared")
            if not engine.supports_nnodes:
                return self._ruled_out(way, f"vLLM {engine.vllm} knows no --nnodes (since 0.11.1)")
            return self._possible(way, f"vLLM {engine.vllm} knows --nnodes; {self.verdict.why}", "nothing")
        return self._possible(way, self.verdict.why, "nothing")

    def ray_layered(self) -> Option:
        way, engine = Way.RAY_LAYERED, self.answer.engine
        if against := self._graft_is_declared() or self._cannot_serve():
            return self._ruled_out(way, against)
        if engine.ray is not None:
            return self._ruled_out(way, f"not needed: Ray {engine.ray} is in the image")
        if self.deployment.backend is Backend.MP:
            return self._ruled_out(way, "backend: mp is declared")
        if self.deployment.image.augment == "never":
            return self._ruled_out(way, "augment: never is declared")
        choice = ray_version(self.answer)
        if choice.version is None:
            return self._ruled_out(way, choice.reason)
        return self._possible(
            way,
            f"Ray {choice.version}: {choice.reason}; {self.verdict.why}",
            "a build on the head: wheels of some 75 MB, one layer of some 250 MB to every peer",
        )

    def graft(self, donor: str, other: ImageAnswer, knows: Verdict) -> Option:
        declared = self.deployment.image.graft
        asked_for = declared is not None and (declared.base, declared.donor) == (self.declared, donor)
        if declared is not None and not asked_for:
            return self._ruled_out(Way.GRAFT, f"graft of {declared.base} is declared", donor)
        if self.verdict.kind is Kind.NATIVE and not asked_for:
            return self._ruled_out(Way.GRAFT, "not needed: its own vLLM knows the architecture", donor)
        if knows.kind is not Kind.NATIVE:
            return self._ruled_out(Way.GRAFT, f"{donor} has no working files to give: {knows.why}", donor)
        here, there = self.answer.engine.vllm, other.engine.vllm
        across = f"vLLM {here} here, {there} in {donor}"
        cost = "a build on the head, inspected there before the image goes anywhere"
        if asked_for:
            return self._possible(Way.GRAFT, f"asked for by name, although it may break: {across}", cost, donor)
        if self.deployment.image.augment == "never":
            return self._ruled_out(Way.GRAFT, "augment: never is declared", donor)
        if _minor(here) != _minor(there):
            return self._ruled_out(
                Way.GRAFT,
                f"{across}: model files use base classes of their own minor version, and files alone are not seen, as "
                "the registry is a table"
                f"; {self._transformers_conflict() or 'asked for by name (image.graft) it is built and inspected'}",
                donor,
            )
        return self._ruled_out(Way.GRAFT, f"{across}: built only when asked for by name (image.graft)", donor)

    def newer_transformers(self) -> Option:
        way, verdict = Way.TRANSFORMERS, self.verdict
        has = self.answer.engine.transformers or "none"
        if conflict := self._transformers_conflict():
            return self._ruled_out(way, conflict)
        if verdict.knows_model_type:
            return self._ruled_out(
                way, f"not needed: model type {self.wanted.model_type} is known (transformers {has})"
            )
        return self._ruled_out(
            way,
            f"it would replace transformers {has}, which the image was built and tried with: take an image with a "
            "newer one",
        )

    def _cannot_serve(self) -> str:
        if not self.verdict.serves:
            return self.verdict.why
        if not self.verdict.knows_model_type and self.wanted.has_remote_code:
            if "--trust-remote-code" in self.deployment.serve.args:
                return ""
            return (
                f"only the repository's own code knows model type {self.wanted.model_type}: read it, then declare "
                "--trust-remote-code under serve.args"
            )
        if not self.verdict.knows_model_type:
            return self._transformers_conflict() or (
                f"transformers {self.answer.engine.transformers} does not know model type {self.wanted.model_type}, "
                "nor does vLLM itself"
            )
        return ""

    def _graft_is_declared(self) -> str:
        declared = self.deployment.image.graft
        return f"graft of {declared.base} is declared" if declared is not None else ""

    def _transformers_conflict(self) -> str:
        """What the checkpoint needs against what this vLLM allows; both requirements by name."""
        if self.verdict.knows_model_type or not self.wanted.transformers_version:
            return ""
        required = requirement_on("transformers", self.answer.requirements)
        if required is None or _admits(required, self.wanted.transformers_version):
            return ""
        return (
            f"vLLM {self.answer.engine.vllm} requires {required}, and model type {self.wanted.model_type} is new to "
            f"transformers {self.answer.engine.transformers}: the checkpoint was written by "
            f"{self.wanted.transformers_version}"
        )

    def _possible(self, way: Way, why: str, cost: str, donor: str | None = None) -> Option:
        fallback = self.verdict.kind is Kind.TRANSFORMERS_FALLBACK
        return Option(
            candidate=self.declared, way=way, donor=donor, possible=True, why=why, cost=cost, is_fallback=fallback
        )

    def _ruled_out(self, way: Way, why: str, donor: str | None = None) -> Option:
        return Option(candidate=self.declared, way=way, donor=donor, possible=False, why=why)


def requirement_on(name: str, requirements: Sequence[str]) -> Requirement | None:
    """What is required of one distribution; the first line of it that holds without an extra."""
    for text in requirements:
        try:
            required = Requirement(text)
        except InvalidRequirement:
            continue
        if required.name.lower() == name and (required.marker is None or "extra" not in str(required.marker)):
            return Requirement(f"{required.name}{required.specifier}")
    return None


def _admits(required: Requirement, version: str) -> bool:
    try:
        return required.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True  # nothing is known of it, so nothing is ruled out by it


def _minor(version: str) -> tuple[int, ...]:
    try:
        return Version(version).release[:2]
    except InvalidVersion:
        return ()
