"""The package index, asked by this environment's pip: the user's own settings (index, proxy, certificates) hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from spark_pipeline.errors import ImageError
from spark_pipeline.image.augment.augmentation import Wheel

_ASK_SECONDS = 300.0
_SIZE_SECONDS = 10.0
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Every torch since 2.6 has wheels for glibc 2.28 and newer only, so an image with vLLM has at least that; pip in the
# build looks at the image's own once more.
_NEWEST_GLIBC_MINOR = 28
_OLDEST_GLIBC_MINOR = 5
_OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")
_NETWORK = ("Retrying (Retry(", "ProxyError", "SSLError", "Could not fetch URL", "ConnectionError", "Max retries")
_NOTHING_FITS = ("No matching distribution found", "DO NOT MATCH THE HASHES")


class NothingFitsError(Exception):
    """The index has no wheel that satisfies a requirement and its hash; the text is pip's."""


@dataclass(frozen=True)
class Target:
    """Where the wheels are to run.

    Args:
        python: '3.12.3', as the image says it.
        architecture: Docker's name: 'arm64', 'amd64'.
    """

    python: str
    architecture: str

    @property
    def machine(self) -> str:
        return _MACHINES.get(self.architecture, self.architecture)

    @property
    def python_minor(self) -> str:
        return ".".join(self.python.split(".")[:2])

    def markers(self, extra: str = "") -> dict[str, str]:
        """What requirements may ask about the machine that they are for (PEP 508)."""
        return {
            "extra": extra,
            "implementation_name": "cpython",
            "implementation_version": self.python,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.python,
            "python_version": self.python_minor,
            "sys_platform": "linux",
        }

    def options(self) -> list[str]:
        """For pip, which would otherwise look for this machine and this Python."""
        minors = range(_NEWEST_GLIBC_MINOR, _OLDEST_GLIBC_MINOR - 1, -1)
        platforms = [*(f"manylinux_2_{minor}" for minor in minors), *_OLD_NAMES, "linux"]
        words = [word for platform in platforms for word in ("--platform", f"{platform}_{self.machine}")]
        return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", self.python_minor, *words]


@dataclass(frozen=True)
class Found:
    """A distribution that the index has for a target, and what it requires in turn."""

    wheel: Wheel
    requires: tuple[Requirement, ...]


def look_up(requirements: Sequence[str], target: Target) -> tuple[Found, ...]:
    """The newest wheel for each of the requirements; nothing is looked up of what these require.

    Raises:
        NothingFitsError: the index has none for one of them.
        ImageError: the index gave no answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        options = ["--dry-run", "--report", str(report), "--ignore-installed", "--no-deps"]
        options += ["--no-user", "--target", folder]  # pip wants a target where it resolves for another machine
        run_pip(["install", *options, *target.options(), *requirements], what=", ".join(requirements))
        content = json.loads(report.read_text(encoding="utf-8"))
    return tuple(_found(item) for item in content["install"])


def run_pip(words: Sequence[str], *, what: str, timeout: float = _ASK_SECONDS) -> None:
    """Run pip with these words.

    Raises:
        NothingFitsError: no wheel fits.
        ImageError: the index gave no answer in time, or pip failed otherwise.
    """
    argv = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(
            argv,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _no_answer(what, f"no answer within {timeout:.0f} s") from error
    if done.returncode == 0:
        return
    said = "\n".join(line for line in done.stderr.splitlines() if " is ignored: it is neither" not in line).strip()
    if any(word in said for word in _NETWORK):
        raise _no_answer(what, said[-800:])
    if any(word in said for word in _NOTHING_FITS):
        raise NothingFitsError(said)
    raise ImageError(
        f"pip could not get {what}",
        observed=said[-800:] or f"status {done.returncode}",
        remedy=f"{sys.executable} -m pip --version must work here; then run the same again",
    )


def _environment() -> Mapping[str, str]:
    """The user's, but for a list of versions that is meant for this machine."""
    return {**os.environ, "PIP_CONSTRAINT": os.devnull}


def _no_answer(what: str, observed: str) -> ImageError:
    return ImageError(
        f"the package index gave no answer about {what}",
        observed=observed,
        remedy="see whether `pip download ray` works on this machine: HTTPS_PROXY names a proxy, PIP_INDEX_URL another "
        "index, PIP_CERT its certificates",
    )


def _found(item: dict[str, Any]) -> Found:
    metadata, download = item["metadata"], item["download_info"]
    address = urlsplit(download["url"])
    filename = unquote(address.path.rpartition("/")[2])
    hashes = download.get("archive_info", {}).get("hashes", {})
    if "sha256" not in hashes:
        raise ImageError(
            f"the package index gives no sha256 of {filename}",
            observed=f"hashes: {', '.join(hashes) or 'none'}",
            remedy="use an index that does, see PIP_INDEX_URL",
        )
    wheel = Wheel(
        name=canonicalize_name(metadata["name"]),
        version=metadata["version"],
        filename=filename,
        sha256=hashes["sha256"],
        size_bytes=_size(download["url"]),
    )
    try:
        requires = tuple(Requirement(text) for text in metadata.get("requires_dist", ()))
    except InvalidRequirement as error:
        raise ImageError(
            f"what {wheel} requires cannot be read",
            observed=str(error).splitlines()[0],
            remedy="see whether a newer release exists; `pip download` of it may work all the same",
        ) from error
    return Found(wheel, requires)


def _size(url: str) -> int | None:
    """Only to be told in plans: an index that does not answer this is no failure."""
    address = urlsplit(url)
    try:
        if address.scheme == "file":
            return Path(unquote(address.path)).stat().st_size
        question = urllib.request.Request(url, method="HEAD")  # noqa: S310 - what pip would fetch
        with urllib.request.urlopen(question, timeout=_SIZE_SECONDS) as answer:  # noqa: S310
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None
