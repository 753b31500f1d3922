"""What a Python has installed, before and after: standard library only, any Python since 3.9."""

import hashlib
import importlib
import importlib.metadata
import os
import re
import sys
import sysconfig
from pathlib import Path

# Made by looking: byte code is written beside every module that is imported.
CACHE = "__pycache__"


def distributions():
    """'name in place' -> [version, digest of the list of its files]."""
    importlib.invalidate_caches()
    found = {}
    for item in importlib.metadata.distributions(path=places()):
        name = item.metadata["Name"]
        if name:  # a folder that an interrupted installation left behind has none
            place = Path(getattr(item, "_path", "")).parent
            record = item.read_text("RECORD") or item.read_text("installed-files.txt") or ""
            known = [item.version, hashlib.sha256(record.encode()).hexdigest()]
            found.setdefault(f"{normal(name)} in {place}", known)
    return found


def normal(name):
    """One spelling for 'Typing_Extensions' and 'typing-extensions'."""
    return re.sub(r"[-_.]+", "-", name).lower()


def places():
    """The folders of the search path, but this program's own, and the root, which only a lost setting puts there."""
    own = str(Path(__file__).resolve().parent)
    real = [Path(entry).resolve() for entry in sys.path if entry]
    return [str(entry) for entry in dict.fromkeys(real) if entry.is_dir() and str(entry) not in (own, "/")]


def files(more):
    """Path -> [size, time of the last change] of all that these folders, the programs' and `more` hold."""
    found = {}
    waiting = [*places(), *(str(Path(item).resolve()) for item in (sysconfig.get_path("scripts"), *more))]
    seen = set()
    while waiting:
        folder = waiting.pop()
        if folder in seen or not Path(folder).is_dir():
            continue
        seen.add(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != CACHE:
                        waiting.append(entry.path)
                else:
                    state = entry.stat(follow_symlinks=False)
                    found[entry.path] = [state.st_size, state.st_mtime_ns]
    return found


def take(*more):
    """Everything that must be the same afterwards. `more`: folders that are on no search path."""
    return {"distributions": distributions(), "files": files(more)}


def differences(before, after, allowed=()):
    """What was there before and is not the same now, in words; additions are none.

    `allowed`: files that are meant to change.
    """
    said = []
    old, new = before["distributions"], after["distributions"]
    for key, (version, record) in sorted(old.items()):
        name, _, place = key.partition(" in ")
        if key not in new:
            elsewhere = [other for other in new if other.startswith(f"{name} in ")]
            where = f"moved to {elsewhere[0].partition(' in ')[2]}" if elsewhere else "removed"
            said.append(f"{name} {version} in {place} was {where}")
        elif new[key][0] != version:
            said.append(f"{name} {version} in {place} became {new[key][0]}")
        elif new[key][1] != record:
            said.append(f"{name} {version} in {place} was installed anew with other files")
    hidden = shadowed(old, new)
    said += [f"{name} {version} in {place} is now hidden by another one in {by}" for name, version, place, by in hidden]
    for path, state in sorted(before["files"].items()):
        if path in allowed:
            continue
        if path not in after["files"]:
            said.append(f"the file {path} was removed")
        elif after["files"][path] != state:
            said.append(f"the file {path} was changed")
    return said


def shadowed(old, new):
    """Distributions that an added one of the same name now comes before, or after, on the search path."""
    found = []
    for key in new:
        name, _, place = key.partition(" in ")
        twins = [other for other in old if other.startswith(f"{name} in ")]
        if key not in old and twins and all(twin in new for twin in twins):
            found.append((name, old[twins[0]][0], twins[0].partition(" in ")[2], place))
    return found
