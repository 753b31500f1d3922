"""Bytes from this machine into a command on a node, without a copy in between: roots and build contexts."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence

from spark_pipeline.errors import LabError
from spark_pipeline.lab.commands import environment
from spark_pipeline.lab.node import Node
from spark_pipeline.lab.progress import Say, heartbeat


def pipe_into_node(
    node: Node, source: Sequence[str], argv: Sequence[str], *, say: Say, step: str, timeout_s: float
) -> str:
    """Run `source` here, give its output to `argv` on the node (as root), and return what that printed.

    The last line printed shows in the heartbeat: `docker build` says there what it does.

    Raises:
        LabError: the node does not run, one of the two failed, or the time is over; with the last lines.
    """
    init = node.init
    if init is None:
        raise LabError("the node does not run", node=node.plan.name, remedy="spark-pipeline lab up")
    enter = ["nsenter", f"--target={init.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "env", "-i"]
    enter += ["HOME=/root", "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    printed: list[str] = []
    last: deque[str] = deque(maxlen=25)
    feeder = subprocess.Popen(source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment())
    process = subprocess.Popen(
        [*enter, *argv],
        stdin=feeder.stdout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A group of its own: nsenter forks, and its child would outlive it.
        start_new_session=True,
    )
    assert feeder.stdout is not None
    assert process.stdout is not None
    feeder.stdout.close()  # ours; the feeder gets SIGPIPE when the command ends early
    limit = threading.Timer(timeout_s, _kill_group, [process])
    limit.start()
    try:
        with heartbeat(say, step) as beat:
            for line in process.stdout:
                printed.append(line)
                if text := line.strip():
                    last.append(text)
                    beat.doing = text[:150]
        status = process.wait()
    finally:
        limit.cancel()
        _kill_group(process)
        feeder.kill()
        feeder.wait()
        process.wait()
    if status != 0:
        raise LabError(
            f"{step} failed: {shlex.join(argv)}",
            node=node.plan.name,
            observed=f"status {status} (limit {timeout_s:.0f} s)\n" + "\n".join(last),
        )
    return "".join(printed)


def _kill_group(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
