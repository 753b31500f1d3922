"""The Debian mirror to fetch from: the one this machine's own apt uses, so that none is written down here."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab.commands import run

OVERRIDE = "SPARK_PIPELINE_LAB_MIRROR"


@dataclass(frozen=True)
class AptSource:
    """One place apt fetches packages from."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def one_line_sources(text: str) -> Iterator[AptSource]:
    """Sources in the classic format: `deb [options] uri suite component...`."""
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words or words[0] != "deb":
            continue
        if words[1].startswith("["):
            end = next((index for index, word in enumerate(words) if word.endswith("]")), len(words))
            del words[1 : end + 1]
        if len(words) >= 3:
            yield AptSource(words[1], (words[2],), tuple(words[3:]))


def deb822_sources(text: str) -> Iterator[AptSource]:
    """Sources in the newer format: paragraphs of `Field: value`."""
    for paragraph in text.replace("\r", "").split("\n\n"):
        fields: dict[str, list[str]] = {}
        last: list[str] = []
        for line in paragraph.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0] in " \t":
                last.extend(line.split())
                continue
            name, _, value = line.partition(":")
            last = fields[name.strip().lower()] = value.split()
        if "deb" in fields.get("types", []) and "no" not in fields.get("enabled", []):
            for uri in fields.get("uris", []):
                yield AptSource(uri, tuple(fields.get("suites", [])), tuple(fields.get("components", [])))


def debian_mirror(sources: tuple[AptSource, ...], suites: tuple[str, ...]) -> str | None:
    """The first source that carries one of `suites` with component main; /debian at the end is preferred,
    because other archives use Debian's suite names too."""
    fitting = [s.uri for s in sources if "main" in s.components and set(suites) & set(s.suites)]
    return next((uri for uri in fitting if uri.rstrip("/").endswith("/debian")), fitting[0] if fitting else None)


def machine_sources(etc_apt: Path = Path("/etc/apt")) -> tuple[AptSource, ...]:
    """All sources of this machine's apt."""
    found: list[AptSource] = []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".list" and path.exists():
            found.extend(one_line_sources(path.read_text(errors="replace")))
        elif path.suffix == ".sources":
            found.extend(deb822_sources(path.read_text(errors="replace")))
    return tuple(found)


def find_mirror(etc_apt: Path = Path("/etc/apt"), release: Mapping[str, str] | None = None) -> str:
    """The mirror to give to debootstrap.

    Raises:
        LabError: this machine's apt names no Debian mirror and the override is not set.
    """
    if override := os.environ.get(OVERRIDE):
        return override
    release = platform.freedesktop_os_release() if release is None else release
    codename = release.get("VERSION_CODENAME", "")
    uri = debian_mirror(machine_sources(etc_apt), (codename, "stable", "testing", "unstable", "sid", "oldstable"))
    if uri and release.get("ID") == "debian":
        return _first_of_list(uri)
    raise LabError(
        "no Debian mirror is known to this machine's apt, and the nodes' root file system comes from one",
        observed=f"{release.get('PRETTY_NAME', 'unknown system')}; sources in {etc_apt}",
        remedy=f"name one: {OVERRIDE}=http://.../debian (and install debian-archive-keyring)",
    )


def _first_of_list(uri: str) -> str:
    """Cloud images name a local list of mirrors: mirror+file:/etc/apt/mirrors/debian.list."""
    if not uri.startswith("mirror+file:"):
        return uri
    lines = Path(uri.removeprefix("mirror+file:")).read_text().splitlines()
    return next(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))


def apt_proxy() -> str | None:
    """The proxy that apt uses; debootstrap fetches by other means and has to be told."""
    answer = run(["apt-config", "shell", "proxy", "Acquire::http::Proxy"], check=False).stdout.strip()
    return answer.removeprefix("proxy=").strip("'\"") or None
