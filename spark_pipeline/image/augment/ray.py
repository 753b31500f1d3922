"""Which Ray fits an image that has none: pure."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from spark_pipeline.image.answer import ImageAnswer

PREFERRED = "2.53.0"  # tried with vLLM 0.32 on two nodes (lab), and what the scenario's newer image brings


@dataclass(frozen=True)
class RayRelease:
    """A release, and the Pythons (3.x) that its wheels for Linux, x86-64 and Arm, are built for: asked of the index
    in November 2026."""

    version: str
    oldest_minor: int
    newest_minor: int

    def runs_on(self, minor: int) -> bool:
        return self.oldest_minor <= minor <= self.newest_minor


# Best first: the tried one, then newer to older.
RELEASES = (
    RayRelease(PREFERRED, 10, 13),
    RayRelease("2.60.0", 10, 14),
    RayRelease("2.55.1", 10, 14),
    RayRelease("2.51.2", 9, 13),
    RayRelease("2.48.0", 9, 13),
)


@dataclass(frozen=True)
class RayChoice:
    """The Ray for an image.

    Args:
        version: None where none fits.
        extras: of the distribution, that vLLM asks for ('cgraph').
        reason: why this one, or why none.
    """

    version: str | None
    extras: tuple[str, ...]
    reason: str

    @property
    def requirement(self) -> str:
        """'ray[cgraph]==2.53.0'."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"ray{extras}=={self.version}"


def ray_version(answer: ImageAnswer) -> RayChoice:
    """The Ray that vLLM's own requirement and the image's Python allow. vLLM itself requires one up to 0.17."""
    required = _requirement(answer)
    allowed = required.specifier if required else SpecifierSet()
    extras, dropped = _extras(required, answer.engine.cuda)
    whose = f"vLLM {answer.engine.vllm} requires {required}" if required else "vLLM names no version"
    python = answer.engine.python
    major, minor = (int(part) for part in python.split(".")[:2])
    fits = [release for release in RELEASES if allowed.contains(release.version)]
    runs = [release for release in fits if major == 3 and release.runs_on(minor)]
    if runs:
        return RayChoice(runs[0].version, extras, f"{whose}, and it has a wheel for Python {python}{dropped}")
    exact = [item.version for item in allowed if item.operator == "==" and "*" not in item.version]
    if exact and not fits:  # a release that this table does not know: the index will tell whether there is a wheel
        return RayChoice(exact[0], extras, whose)
    if fits:
        pythons = ", ".join(
            f"{release.version} for 3.{release.oldest_minor} to 3.{release.newest_minor}" for release in fits
        )
        return RayChoice(None, extras, f"no Ray has a wheel for the image's Python {python}: {pythons}")
    known = ", ".join(release.version for release in RELEASES)
    return RayChoice(None, extras, f"{whose}, and none of the known releases ({known}) satisfies that")


def _extras(required: Requirement | None, cuda: str | None) -> tuple[tuple[str, ...], str]:
    """What vLLM asks for of Ray's extras, and a word about one that cannot be of use: `cgraph` is CuPy for CUDA 12,
    130 MB that no other CUDA and no build for CPUs can load."""
    extras = tuple(sorted(required.extras)) if required else ()
    if "cgraph" not in extras or (cuda or "").startswith("12."):
        return extras, ""
    has = f"CUDA {cuda}" if cuda else "no CUDA"
    return tuple(extra for extra in extras if extra != "cgraph"), f"; without cgraph, CuPy for CUDA 12: it has {has}"


def _requirement(answer: ImageAnswer) -> Requirement | None:
    """What vLLM says about Ray; nothing where it does not, or only in an extra."""
    for text in answer.requirements:
        try:
            found = Requirement(text)
        except InvalidRequirement:
            continue
        if found.name.lower() == "ray" and (found.marker is None or "extra" not in str(found.marker)):
            found.marker = None
            return found
    return None
