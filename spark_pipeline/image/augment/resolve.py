"""Which wheels an image lacks for Ray, for the image's own platform and Python; what it has is kept as it is.

pip cannot do this alone: told by constraints what the image has, it looks for those very versions on an index, which
knows no 2.9.1+cu130 and no git build. So pip answers about single distributions, and the way from one to the next,
where what the image has is held against what is required, is gone here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from spark_pipeline.errors import AugmentError, StateError
from spark_pipeline.fleet.progress import Progress, heartbeat
from spark_pipeline.image.answer import ImageAnswer
from spark_pipeline.image.augment.augmentation import Wheel
from spark_pipeline.image.augment.package_index import Found, NothingFitsError, Target, look_up
from spark_pipeline.image.augment.ray import ray_version
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record

LookUp = Callable[[Sequence[str]], tuple[Found, ...]]
_ROUNDS = 25  # Ray needs four; more means that two distributions keep excluding each other
_REMEDY = (
    "take an image whose packages allow it, or declare backend: mp where its vLLM knows --nnodes: that needs no Ray"
)


class Resolved(Record):
    """Kept under the cache: the same image gets the same wheels, whatever is released in between.

    Args:
        installer: pip, for the image's Python.
    """

    wheels: tuple[Wheel, ...]
    installer: Wheel


@dataclass(frozen=True)
class Held:
    """What the image has, and what its vLLM requires."""

    packages: Mapping[str, str]
    requirements: tuple[Requirement, ...]
    vllm: str

    @classmethod
    def of(cls, answer: ImageAnswer) -> Held:
        packages = {str(canonicalize_name(name)): version for name, version in answer.packages.items()}
        return cls(packages, tuple(_readable(answer.requirements)), answer.engine.vllm)

    def satisfies(self, required: Requirement) -> bool:
        """A version that nobody can compare (a build from git) rules nothing out."""
        try:
            version = Version(self.packages[canonicalize_name(required.name)])
        except InvalidVersion:
            return True
        return required.specifier.contains(version, prereleases=True)

    def why(self, name: str) -> str:
        """'; vLLM 0.14.1 requires protobuf<4', where it says so."""
        said = [str(item) for item in self.requirements if canonicalize_name(item.name) == name and item.specifier]
        return f"; vLLM {self.vllm} requires {', '.join(said)}" if said else ""


def resolve_ray(answer: ImageAnswer, architecture: str, cache_dir: Path, progress: Progress) -> tuple[Wheel, ...]:
    """Ray and those of its dependencies that the image lacks; what the image has stays as it is.

    Args:
        architecture: Docker's name: 'arm64', 'amd64'.
        cache_dir: where what was resolved before is kept, so that a tag does not move with every release on an index.

    Raises:
        AugmentError: no Ray fits, or something that the image has conflicts with it.
        ImageError: the index gave no answer.
    """
    return resolve(answer, architecture, cache_dir, progress).wheels


def resolve(answer: ImageAnswer, architecture: str, cache_dir: Path, progress: Progress) -> Resolved:
    """See `resolve_ray`; with the pip that installs them."""
    choice = ray_version(answer)
    if choice.version is None:
        raise AugmentError("no Ray can be layered on this image", observed=choice.reason, remedy=_REMEDY)
    target = Target(answer.engine.python, architecture)
    identity = json.dumps([choice.requirement, target.python_minor, architecture, sorted(answer.packages.items())])
    kept = cache_dir / "resolved" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
    try:
        known = store.read(kept, Resolved)
    except StateError:  # of another version of this program
        known = None
    if known is not None:
        return known
    with heartbeat(f"asking the package index what {choice.requirement} needs that the image lacks", progress):
        found = settle(Requirement(choice.requirement), Held.of(answer), target, lambda names: look_up(names, target))
        try:
            (pip,) = look_up(["pip"], target)
        except NothingFitsError as error:
            raise _nothing_fits(target, str(error)) from error
    resolved = Resolved(wheels=tuple(item.wheel for item in found), installer=pip.wheel)
    store.write(kept, resolved)
    return resolved


def settle(root: Requirement, held: Held, target: Target, ask: LookUp) -> tuple[Found, ...]:
    """What is missing, `root` first. Each is the newest that all requirements allow; one that does not go with what
    the image has makes way for an older one.

    Args:
        ask: gives the newest wheel for each of the requirements.

    Raises:
        ImageError: it cannot be done; both requirements of the conflict are named.
    """
    root_name = canonicalize_name(root.name)
    excluded: dict[str, SpecifierSet] = {}
    found: dict[str, Found] = {}
    conflict = ""
    wanted: Mapping[str, Requirement] = {root_name: root}
    for _ in range(_ROUNDS):
        found |= _newly(wanted, found, ask, target, conflict)
        walk = _walk(root, held, target, found)
        if not walk.conflicts and walk.missing.keys() <= found.keys():
            fits = all(_fits(found[name], item) for name, item in walk.missing.items())
            if fits:
                others = sorted(name for name in walk.missing if name != root_name)
                return tuple(found[name] for name in (root_name, *others))
        for name, conflict in walk.conflicts.items():
            if name == root_name:
                raise _conflicts(root, conflict)
            version = found.pop(name).wheel.version
            excluded[name] = excluded.get(name, SpecifierSet()) & SpecifierSet(f"!={version}")
        wanted = {name: _but(item, excluded.get(name)) for name, item in walk.missing.items()}
    raise _conflicts(root, conflict or f"no end after {_ROUNDS} rounds")


@dataclass
class _Walk:
    """What follows from what was found so far.

    Args:
        missing: name -> all that is required of a distribution that the image lacks, in one.
        conflicts: name of a found distribution -> what the image has that it does not go with.
    """

    missing: dict[str, Requirement]
    conflicts: dict[str, str]


def _walk(root: Requirement, held: Held, target: Target, found: Mapping[str, Found]) -> _Walk:
    walk = _Walk({canonicalize_name(root.name): root}, {})
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [canonicalize_name(root.name)]
    while waiting:
        name = waiting.pop(0)
        extras = frozenset(walk.missing[name].extras)
        if name not in found or (name, extras) in done:
            continue
        done.add((name, extras))
        for required in _active(found[name], extras, target):
            needed = canonicalize_name(required.name)
            if needed not in held.packages:
                walk.missing[needed] = _both(walk.missing.get(needed), required)
                waiting.append(needed)
            elif not held.satisfies(required):
                has = f"the image has {needed} {held.packages[needed]}{held.why(needed)}"
                bare = f"{required.name}{required.specifier}"
                walk.conflicts[name] = f"{name} {found[name].wheel.version} requires {bare}; {has}"
    return walk


def _active(item: Found, extras: frozenset[str], target: Target) -> list[Requirement]:
    """What holds on this machine, with these extras asked for."""
    return [
        required
        for required in item.requires
        if required.marker is None
        or any(required.marker.evaluate(target.markers(extra)) for extra in ("", *sorted(extras)))
    ]


def _newly(
    wanted: Mapping[str, Requirement], found: Mapping[str, Found], ask: LookUp, target: Target, conflict: str
) -> dict[str, Found]:
    """What is looked up now: what was not found yet, or is not good enough any more."""
    lacking = [item for name, item in wanted.items() if name not in found or not _fits(found[name], item)]
    if not lacking:
        return {}
    try:
        answers = ask([f"{item.name}{item.specifier}" for item in lacking])
    except NothingFitsError as error:
        raise _nothing_fits(target, str(error), conflict) from error
    return {canonicalize_name(item.wheel.name): item for item in answers}


def _fits(item: Found, required: Requirement) -> bool:
    return required.specifier.contains(item.wheel.version, prereleases=True)


def _both(one: Requirement | None, other: Requirement) -> Requirement:
    """A requirement that asks for what both ask for, with no marker: it was looked at."""
    extras = {*(one.extras if one else ()), *other.extras}
    named = f"[{','.join(sorted(extras))}]" if extras else ""
    specifier = other.specifier & one.specifier if one else other.specifier
    return Requirement(f"{canonicalize_name(other.name)}{named}{specifier}")


def _but(required: Requirement, excluded: SpecifierSet | None) -> Requirement:
    return required if excluded is None else _both(required, Requirement(f"{required.name}{excluded}"))


def _readable(texts: Sequence[str]) -> list[Requirement]:
    found: list[Requirement] = []
    for text in texts:
        try:
            found.append(Requirement(text))
        except InvalidRequirement:
            continue
    return found


def _conflicts(root: Requirement, conflict: str) -> AugmentError:
    return AugmentError(
        f"{root} cannot be layered on this image without changing what it has", observed=conflict, remedy=_REMEDY
    )


def _nothing_fits(target: Target, said: str, conflict: str = "") -> AugmentError:
    words = said.splitlines()[-1] if said else "no matching distribution"
    return AugmentError(
        f"the package index has no wheel for Python {target.python_minor} on {target.machine} that this image can take",
        observed="\n".join(text for text in (conflict, words) if text),
        remedy=_REMEDY,
    )
