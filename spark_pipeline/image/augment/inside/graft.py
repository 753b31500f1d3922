"""Runs in the build: brings model files of one vLLM into another and registers them there. Standard library only.

`graft.py list` in the base notes which modules it has; `collect` in the donor gathers the modules of the architectures
and those that they import and the base lacks; `apply` in the base puts them in and adds lines to its registry.py.
Whether they work there is not asked here: vLLM's own inspection says that of the image that comes out.
"""

import ast
import json
import shutil
import sys
from pathlib import Path

import report
import snapshot

HERE = Path(__file__).resolve().parent
MODELS = "model_executor/models"
REGISTRY = MODELS + "/registry.py"
# Where an architecture goes whose table the base does not have.
TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_VLLM_MODELS")


def note(order):
    base = Path(order["base_directory"])
    has = sorted(path.relative_to(base).as_posix() for path in base.rglob("*.py"))
    (HERE / "listing.json").write_text(json.dumps(has), encoding="utf-8")


def collect(order):
    donor = Path(order["donor_directory"])
    has = set(json.loads((HERE / "listing.json").read_text(encoding="utf-8")))
    carried = needed(donor, [name_of(place) for place in order["entries"].values()], has)
    for path in carried:
        target = HERE / "files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(donor / path, target)
    tree = ast.parse((donor / REGISTRY).read_text(encoding="utf-8"))
    found = {name: table for table, node in tables(tree) for name in keys(node) if name in order["entries"]}
    (HERE / "graft.json").write_text(json.dumps({"files": carried, "tables": found}), encoding="utf-8")
    report.say(f"the donor gives {', '.join(carried)}")


def apply(order):
    base = Path(order["base_directory"])
    graft = json.loads((HERE / "graft.json").read_text(encoding="utf-8"))
    before = snapshot.take(str(base))
    for path in graft["files"]:
        target = base / path
        if target.exists():
            raise report.Refused(f"{target} is there already")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / "files" / path, target)
    registry = base / REGISTRY
    text = registry.read_text(encoding="utf-8")
    for name, place in order["entries"].items():
        text = register(text, name, place, graft["tables"].get(name, ""))
    compile(text, str(registry), "exec")
    registry.write_text(text, encoding="utf-8")
    for stale in registry.parent.glob("__pycache__/registry.*.pyc"):
        stale.unlink()
    changed = snapshot.differences(before, snapshot.take(str(base)), allowed=(str(registry.resolve()),))
    if changed:
        raise report.Refused("it would change what the base has: " + "; ".join(changed[:8]))
    report.say(f"{len(graft['files'])} files were put in, {len(order['entries'])} architectures registered")
    shutil.rmtree(HERE)


def name_of(place):
    """'qwen3_5:Class' -> 'vllm.model_executor.models.qwen3_5'. A module with a dot is named in full."""
    module = place.partition(":")[0]
    return module if "." in module else "vllm.model_executor.models." + module


def file_of(root, module):
    """Where a module of vllm lies below its folder; None where it is none, or not there."""
    if module.partition(".")[0] != "vllm":
        return None
    path = "/".join(module.split(".")[1:])
    places = (f"{path}.py", f"{path}/__init__.py") if path else ("__init__.py",)
    return next((place for place in places if (root / place).is_file()), None)


def needed(donor, modules, has):
    """The files of these modules and of all that they import, as far as the base lacks them."""
    carried, waiting, seen = [], list(modules), set()
    for module in modules:
        if file_of(donor, module) is None:
            raise report.Refused(f"the donor's registry names {module}, and {donor} has no such module")
    while waiting:
        module = waiting.pop()
        path = file_of(donor, module)
        if module in seen or path is None or path in has:
            continue
        seen.add(module)
        carried.append(path)
        waiting += imports(donor, module, path)
    return sorted(carried)


def imports(root, module, path):
    """Full names that a module imports, from anywhere in its text; `from x import y` may mean a module x.y."""
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            full = ".".join([*start, *([node.module] if node.module else [])])
            found += [full, *(f"{full}.{item.name}" for item in node.names)]
    # Importing a.b.c imports a and a.b, too.
    return [name.rsplit(".", cut)[0] for name in found for cut in range(name.count(".") + 1)]


def tables(tree):
    """(name, dictionary) of every table that is written out in a module."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(getattr(node, "value", None), ast.Dict):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value


def keys(dictionary):
    return [key.value for key in dictionary.keys if isinstance(key, ast.Constant)]


def register(text, name, place, table):
    """registry.py with one more line: in the table that the donor has it in, else in the first that is known."""
    found = dict(tables(ast.parse(text)))
    chosen = next((item for item in (table, *TABLES) if item in found), None)
    if chosen is None:
        raise report.Refused(f"the base's registry.py has none of the tables {', '.join((table, *TABLES))}")
    start = found[chosen]
    lines = text.splitlines(keepends=True)
    module, _, classname = place.partition(":")
    line = lines[start.lineno - 1].encode()
    cut = start.col_offset + 1
    entry = f"\n    {json.dumps(name)}: ({json.dumps(module)}, {json.dumps(classname)}),"
    lines[start.lineno - 1] = (line[:cut] + entry.encode() + line[cut:]).decode()
    written = "".join(lines)
    if name not in keys(dict(tables(ast.parse(written)))[chosen]):
        raise report.Refused(f"{name} could not be written into {chosen} of the base's registry.py")
    return written


if __name__ == "__main__":
    work = {"list": note, "collect": collect, "apply": apply}[sys.argv[1]]
    report.run(lambda: work(json.loads((HERE / "order.json").read_text(encoding="utf-8"))))
