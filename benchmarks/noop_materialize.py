"""What a repeat costs when nothing changed: `make demo` against Dagster with the same number of empty assets.

python benchmarks/noop_materialize.py [ROUNDS]      needs the lab up and `make demo` done once; asked for: ratio <= 2

The empty assets stand in one file, as a newcomer to Dagster would write them, with its default executor; the same with
this project's executor (steps forked from a server that has the definitions loaded) shows what is Dagster's share. All
three run in turn in each round, so that a busy machine is equally busy for all.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ASSETS = 7  # six stages and the dashboard
EMPTY = """\
import dagster as dg

def chain(count):
    made = []
    for number in range(count):
        @dg.asset(name=f"empty_{{number}}", deps=made[-1:])
        def empty() -> dg.MaterializeResult:
            return dg.MaterializeResult()
        made.append(empty)
    return made

EXECUTOR = {executor}
defs = dg.Definitions(assets=chain({count}), executor=EXECUTOR)
"""
EXECUTORS = {
    "empty assets, Dagster's default": "None",
    "empty assets, steps forked as ours": (
        'dg.multiprocess_executor.configured({"max_concurrent": 2, "start_method": '
        '{"forkserver": {"preload_modules": ["spark_pipeline.definitions"]}}})'
    ),
}


def seconds(argv: list[str], home: Path) -> float:
    """Wall time of a command that must succeed."""
    environment = os.environ | {"DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore"}
    started = time.monotonic()
    done = subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return time.monotonic() - started


def main(rounds: int) -> None:
    """Print the median of each, and the ratio that the project promises."""
    dagster = str(Path(sys.executable).with_name("dagster"))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        shutil.copy(REPOSITORY / "dagster.yaml", home)
        commands = {}
        for index, (name, executor) in enumerate(EXECUTORS.items()):
            module = home / f"empty_{index}.py"
            module.write_text(EMPTY.format(executor=executor, count=ASSETS))
            commands[name] = [dagster, "asset", "materialize", "--select", "*", "-f", str(module)]
        demo = ["make", "--no-print-directory", "demo"]
        seconds(demo, REPOSITORY)  # whatever there was to do is done now
        taken: dict[str, list[float]] = {name: [] for name in [*commands, "make demo"]}
        for _ in range(rounds):
            for name, argv in commands.items():
                taken[name].append(seconds(argv, home))
            taken["make demo"].append(seconds(demo, REPOSITORY))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, values in taken.items():
        print(f"{name:34} median {medians[name]:6.1f} s   ({', '.join(f'{value:.1f}' for value in values)})")
    for name in commands:
        print(f"make demo / {name:34} {medians['make demo'] / medians[name]:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
