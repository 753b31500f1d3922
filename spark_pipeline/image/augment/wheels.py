"""Wheels on the orchestrator: fetched once, checked by their hash, kept by their content."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import parse_wheel_filename

from spark_pipeline.errors import ImageError
from spark_pipeline.fleet.progress import Progress, heartbeat, human_bytes
from spark_pipeline.image.augment.augmentation import Wheel
from spark_pipeline.image.augment.package_index import NothingFitsError, run_pip

_FETCH_SECONDS = 1800.0
_LARGE_BYTES = 5_000_000  # fetched alone, so that an interruption costs one of them


def wheel_file(cache_dir: Path, wheel: Wheel) -> Path:
    """Where a wheel lies."""
    return cache_dir / "files" / wheel.sha256 / wheel.filename


def fetch(wheels: Sequence[Wheel], cache_dir: Path, progress: Progress) -> Path:
    """The folder in which every one of the wheels lies, as `wheel_file` says; those that are there are not fetched.

    Raises:
        ImageError: the index gave no answer, or other bytes than those that were resolved.
    """
    missing = [wheel for wheel in wheels if not wheel_file(cache_dir, wheel).is_file()]
    if not missing:
        return cache_dir
    total = sum(wheel.size_bytes or 0 for wheel in missing)
    cache_dir.mkdir(parents=True, exist_ok=True)
    with heartbeat(f"fetching {len(missing)} wheels, {human_bytes(total)}", progress):
        for group in _groups(missing):
            _fetch(group, cache_dir)
    return cache_dir


def _groups(wheels: Sequence[Wheel]) -> list[list[Wheel]]:
    small = [wheel for wheel in wheels if wheel.size_bytes is not None and wheel.size_bytes < _LARGE_BYTES]
    alone = [[wheel] for wheel in wheels if wheel not in small]
    return [*([small] if small else []), *alone]


def _fetch(wheels: Sequence[Wheel], cache_dir: Path) -> None:
    """Into a folder of its own, and from there each file whole under its hash: two runs do not meet."""
    names = ", ".join(str(wheel) for wheel in wheels)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".incoming-") as folder:
        wanted = Path(folder, "requirements.txt")
        wanted.write_text("".join(f"{wheel} --hash=sha256:{wheel.sha256}\n" for wheel in wheels), encoding="utf-8")
        options = ["--no-deps", "--require-hashes", "--ignore-requires-python", "--dest", folder]
        words = ["download", *options, *_platform_options(wheels), "--requirement", str(wanted)]
        try:
            run_pip(words, what=names, timeout=_FETCH_SECONDS)
        except NothingFitsError as error:
            raise _other_bytes(names, str(error)) from error
        for wheel in wheels:
            came = Path(folder, wheel.filename)
            found = _sha256(came) if came.is_file() else "no such file"
            if found != wheel.sha256:
                raise _other_bytes(wheel.filename, f"sha256 {found}, resolved was {wheel.sha256}")
            place = wheel_file(cache_dir, wheel)
            place.parent.mkdir(parents=True, exist_ok=True)
            came.rename(place)


def _platform_options(wheels: Sequence[Wheel]) -> list[str]:
    """The wheels' own tags, so that pip takes them for this machine's."""
    tags = {tag for wheel in wheels for tag in parse_wheel_filename(wheel.filename)[3]}
    platforms = sorted({tag.platform for tag in tags if tag.platform != "any"})
    abis = sorted({tag.abi for tag in tags if tag.platform != "any"})
    minors = [int(tag.interpreter[3:]) for tag in tags if tag.interpreter.startswith("cp3") and tag.interpreter[3:]]
    words = [word for name in platforms for word in ("--platform", name)]
    words += [word for abi in abis for word in ("--abi", abi)]
    if minors:
        words += ["--implementation", "cp", "--python-version", f"3.{max(minors)}"]
    return ["--only-binary", ":all:", *words]


def _other_bytes(what: str, observed: str) -> ImageError:
    return ImageError(
        f"the package index no longer has the bytes of {what} that were resolved",
        observed=observed[-800:],
        remedy="remove the folder `resolved` beside the wheels, then run the same again: it is resolved anew",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
