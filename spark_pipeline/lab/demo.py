"""`make demo`: the virtual fleet up, every asset of deployment `tiny`, and proof that it answers. A repeat is quick."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from spark_pipeline.errors import SparkPipelineError
from spark_pipeline.fleet.host import shell_text
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.lab.content import prepare
from spark_pipeline.lab.dagster_log import DagsterLog
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.packages import ensure_packages
from spark_pipeline.lab.progress import Say, with_elapsed_time
from spark_pipeline.serving.record import ServingRecord, find_record
from spark_pipeline.spec.project import Project

DEPLOYMENT = "tiny"
SELECTION = f'group:"{DEPLOYMENT}" or key:"benchmark_dashboard"'
QUESTION = "Say something."
_ANSWER_SECONDS = 120


def main() -> int:
    """Exit status: 0 when the endpoint answered."""
    say = with_elapsed_time(lambda line: print(line, flush=True))
    project = Project.load()
    try:
        _bring_up(project, say)
    except SparkPipelineError as error:
        print(error, file=sys.stderr)
        return 1
    if _materialize(project.root, say) != 0:
        logs = project.state_dir(DEPLOYMENT) / "logs"
        print("\nthe run did not come to its end" + (f"; the engines' logs are in {logs}" if logs.is_dir() else ""))
        print(f"what runs now: .venv/bin/spark-pipeline status {DEPLOYMENT}; `make demo` again goes on from there")
        return 1
    record = find_record(project, DEPLOYMENT)
    if record is None:
        print(f"nothing serves, although the run succeeded: see {project.state_dir(DEPLOYMENT)}", file=sys.stderr)
        return 1
    try:
        answer = _ask(record)
    except (OSError, ValueError, LookupError) as error:
        print(f"{record.url} gives no chat completion: {error!r}", file=sys.stderr)
        return 1
    say("done")
    print(_summary(project, record, answer))
    return 0


def _bring_up(project: Project, say: Say) -> None:
    ensure_packages(say)
    lab = Lab()
    lab.up(2, say)
    prepare(lab, say)
    # The lab makes its nodes' keys itself: nobody has to compare fingerprints here, as one must on real machines.
    if any(key.changed for key in enroll(project.fleet("lab"), project.known_hosts, lambda _: None, replace=True)):
        say("host keys of fleet lab pinned")


def _materialize(root: Path, say: Say) -> int:
    """The documented command, its log made readable. Its exit status."""
    dagster = str(Path(sys.executable).with_name("dagster"))
    argv = ["asset", "materialize", "--select", SELECTION, "-m", "spark_pipeline.definitions"]
    say(shell_text(["dagster", *argv]))
    environment = os.environ | {"DAGSTER_HOME": str(root), "PYTHONWARNINGS": "ignore"}
    log = DagsterLog()
    with subprocess.Popen(
        [dagster, *argv],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Ctrl-C reaches this process alone, which passes it on to Dagster once: its steps must not be interrupted
        # behind its back.
        start_new_session=True,
    ) as process:
        while True:
            try:
                for line in process.stdout or ():
                    if (readable := log.readable(line)) is not None:
                        say(readable)
                break
            except KeyboardInterrupt:
                say("interrupted: waiting until what was started is removed")
                process.send_signal(signal.SIGINT)
    return process.returncode


def _ask(record: ServingRecord) -> str:
    """One chat completion over the network, as any client would ask."""
    body = {"model": record.model_id, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16}
    request = urllib.request.Request(  # noqa: S310 - http to the address that the pipeline itself recorded
        f"{record.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=_ANSWER_SECONDS) as answer:
        return json.load(answer)["choices"][0]["message"]["content"] or ""


def _summary(project: Project, record: ServingRecord, answer: str) -> str:
    from spark_pipeline.benchmark.history import newest, read
    from spark_pipeline.text import of_history

    body = {"model": record.model_id, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
    curl = f"curl -s {record.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    nodes = ", ".join(rank.node for rank in record.generation.ranks)
    points = newest(read(project.benchmarks_file(DEPLOYMENT)))
    return f"""
endpoint   {record.url}/v1
model      {record.model_id}, on {nodes} ({record.generation.backend})
           > {QUESTION}
           < {answer!r}   (random weights: real tokens, no sense)
           {curl}

{of_history(points)}

state      {project.state_dir(DEPLOYMENT)}
history    {project.benchmarks_file(DEPLOYMENT)}
page       {project.reports_dir / "benchmarks.html"}
look       .venv/bin/spark-pipeline status        what runs, read from the nodes
           make dev                               the Dagster UI on http://127.0.0.1:3000
stop       .venv/bin/spark-pipeline stop {DEPLOYMENT}     the endpoint
           .venv/bin/spark-pipeline lab down      the virtual fleet"""


if __name__ == "__main__":
    sys.exit(main())
