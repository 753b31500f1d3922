"""A command as it is handed to a shell, and what ends it there.

It is started inside a small `sh` that first prints the id of its session, so that a time-out, Ctrl-C or a cancelled
Dagster run can end every process of that session on the node itself: closing an SSH channel ends nothing there.
`timeout` around the command is the safety net for the day when this process dies or the network does.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from spark_pipeline.fleet.host import shell_text

_GRACE_SECONDS = 15  # that `timeout` on the node waits longer than we do
SESSION_MARK = re.compile(rb"spark-pipeline-session (\d+)\n")
_START = (
    'printf "spark-pipeline-session %s\\n" $$; export LC_ALL=C.UTF-8; timeout -k 5 "$@"; exit $?'  # keeps 128+signal
)
# Ends the processes of session $1: TERM, two seconds later KILL. Prints those that are still there at the end.
END_SESSION = r"""
members() {
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        pid=${line%% *}
        set -- ${line##*) }
        [ "$4" = "$session" ] && [ "$1" != Z ] && printf '%s ' "$pid"
    done
}
session=$1 tries=0
pids=$(members)
[ -z "$pids" ] || kill -TERM $pids 2>/dev/null
while pids=$(members); [ -n "$pids" ] && [ $tries -lt 40 ]; do
    [ $tries -lt 20 ] || kill -KILL $pids 2>/dev/null
    sleep 0.1
    tries=$((tries + 1))
done
printf '%s' "$pids"
"""


@dataclass(frozen=True)
class Order:
    """What is to be run, and how long it may take."""

    node: str
    argv: tuple[str, ...]
    timeout: float
    input: bytes | None = None
    idle_timeout: float | None = None

    def text(self) -> str:
        """One line for a shell, whose first line of output matches SESSION_MARK."""
        allowance = str(math.ceil(self.timeout) + _GRACE_SECONDS)
        return "exec " + shell_text(["sh", "-c", _START, "sh", allowance, *self.argv])
