"""Which vLLM release first had each architecture, and which had it last: spark_pipeline/image/first_versions.json.

    .venv/bin/python tools/first_versions.py [--since 0.8.0] [--keep DIRECTORY]

For whoever maintains the project, once for each vLLM release. pip names the releases and their wheels; of each wheel
(0.3 GB and more) only the table of contents and registry.py are fetched, by range requests. What stands in the file
already is kept, and its releases are not asked for again.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import click
from packaging.version import Version

from spark_pipeline.image.registry_source import read_registry

OUTPUT = Path(__file__).parents[1] / "spark_pipeline" / "image" / "first_versions.json"
REGISTRY = "vllm/model_executor/models/registry.py"
# pip takes a wheel's platform by its very name, and vLLM changes it from release to release.
PLATFORMS = tuple(f"manylinux{tag}_x86_64" for tag in ("1", "2014", *(f"_2_{minor}" for minor in range(17, 42))))


class RangedFile(io.RawIOBase):
    """A file on a web server, read piece by piece."""

    def __init__(self, url: str) -> None:
        self.url, self.position = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:  # noqa: S310
            self.size = int(answer.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        end = min(self.position + len(buffer), self.size)
        if end <= self.position:
            return 0
        wanted = {"Range": f"bytes={self.position}-{end - 1}"}
        with urllib.request.urlopen(urllib.request.Request(self.url, headers=wanted), timeout=60) as answer:  # noqa: S310
            data = answer.read(end - self.position)
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


def releases(since: Version) -> list[Version]:
    """Every release since then that pip offers, oldest first."""
    argv = [sys.executable, "-m", "pip", "index", "versions", "vllm"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    listed = re.search(r"Available versions: (.*)", said)
    if listed is None:
        raise click.ClickException(f"pip names no versions of vllm: {said}")
    return sorted(version for text in listed.group(1).split(", ") if (version := Version(text)) >= since)


def wheel_url(version: Version) -> str:
    """Where pip would fetch this release from; it only resolves."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"),
                *("--only-binary", ":all:", "--python-version", "3.12", "--target", folder, "--report", str(report)),
                *(word for platform in PLATFORMS for word in ("--platform", platform)),
                f"vllm=={version}",
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        return json.loads(report.read_text(encoding="utf-8"))["install"][0]["download_info"]["url"]


def registry_text(version: Version) -> str:
    """registry.py of a release."""
    with zipfile.ZipFile(io.BufferedReader(RangedFile(wheel_url(version)), 256 * 1024)) as wheel:
        return wheel.read(REGISTRY).decode()


def merged(known: dict[str, Any], version: Version, architectures: list[str]) -> dict[str, Any]:
    """What is known, with one more release, newer than all that are in it."""
    first: dict[str, str] = dict(known["first"])
    last: dict[str, str] = {name: text for name, text in known["last"].items() if name not in architectures}
    before = known["releases"][-1] if known["releases"] else None
    for name in architectures:
        first.setdefault(name, str(version))
    if before is not None:
        for name in first:
            if name not in architectures:
                last.setdefault(name, before)
    return {"releases": [*known["releases"], str(version)], "first": first, "last": last}


@click.command(help=__doc__)
@click.option("--since", default="0.8.0", show_default=True, help="The oldest release to look at.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Put each registry.py there.")
def main(since: str, keep: Path | None) -> None:
    known: dict[str, Any] = {"releases": [], "first": {}, "last": {}}
    if OUTPUT.exists():
        known = json.loads(OUTPUT.read_text(encoding="utf-8"))
    for version in releases(Version(since)):
        if str(version) in known["releases"]:
            continue
        text = registry_text(version)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{version}.py").write_text(text, encoding="utf-8")
        found = read_registry(text)
        if found.problem:
            raise click.ClickException(f"vLLM {version}: {found.problem}")
        known = merged(known, version, sorted(found.architectures))
        write(known)
        click.echo(f"{version}: {len(found.architectures)} architectures")


def write(known: dict[str, Any]) -> None:
    ordered = {key: dict(sorted(value.items())) if isinstance(value, dict) else value for key, value in known.items()}
    OUTPUT.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
