"""Runs in the build, on the Python that serves: installs the wheels beside this program, and nothing else may change.

Standard library only.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import report
import snapshot

SAID_CHARACTERS = 1500
HERE = Path(__file__).resolve().parent


def main():
    order = json.loads((HERE / "order.json").read_text(encoding="utf-8"))
    before = snapshot.take()
    report.say(f"the base has {len(before['distributions'])} distributions and {len(before['files'])} files")
    install(order)
    after = snapshot.take()
    if changed := snapshot.differences(before, after):
        raise report.Refused("it would change what the base has: " + "; ".join(changed[:8]))
    for name, version in order["expected"].items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        if found != version:
            raise report.Refused(f"{name} {version} was installed, and {sys.executable} finds {found}")
    for program in order["programs"]:
        find(program)
    added = len(after["distributions"]) - len(before["distributions"])
    report.say(f"{added} distributions were added, none of the others was changed, moved or removed")
    shutil.rmtree(HERE)


def install(order):
    """pip out of its wheel: many images have none, and Debian's refuses to install. No setting of the image counts:
    some pin versions in a constraints file, or name an index that cannot be reached from here."""
    wheels = [str(HERE / "wheels" / name) for name in order["wheels"]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment.update(PIP_CONFIG_FILE=os.devnull, PYTHONDONTWRITEBYTECODE="1")
    pip = [sys.executable, str(HERE / "wheels" / order["installer"] / "pip")]
    options = ["--isolated", "--no-index", "--no-deps", "--no-cache-dir", "--no-input", "--break-system-packages"]
    options += ["--disable-pip-version-check", "--root-user-action", "ignore", "--no-warn-script-location"]
    report.say(f"installing {len(wheels)} wheels under {sys.executable}")
    done = subprocess.run(
        [*pip, "install", *options, *wheels],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise report.Refused(f"pip ended with status {done.returncode}: {done.stdout[-SAID_CHARACTERS:].strip()}")


def find(program):
    """See that a program is on the PATH; the folder that pip put it in may not be. The ranks run words on PATH."""
    if shutil.which(program):
        return
    made = Path(sysconfig.get_path("scripts"), program)
    if (vllm := shutil.which("vllm")) and made.exists():
        beside = Path(vllm).with_name(program)
        if not (beside.exists() or beside.is_symlink()):
            beside.symlink_to(made)
    if not shutil.which(program):
        path = os.environ.get("PATH")
        raise report.Refused(f"{program} was installed as {made}, which is not on the image's PATH {path}")


if __name__ == "__main__":
    report.run(main)
