"""Dagster's log as a newcomer wants to read it: what each stage says, when it starts and ends, and every error.

Dagster prints about fifteen lines of its own a step. What is not recognised is shown as it is: better a line too many
than a hidden error.
"""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(
    r"\S+ \S+ [+-]\d{4} - dagster - (?P<level>[A-Z]+) - \S+ - [0-9a-f-]{36} - (?:(?P<pid>\d+) - )?(?P<rest>.*)"
)
_EVENT = re.compile(r"(?:(?P<step>\w+) - )?(?P<event>[A-Z_]+) - (?P<text>.*)")
_SAID = re.compile(r"(?P<step>\w+) - (?P<text>.*)")
_SECONDS = re.compile(r"in ([\d.]+\w+)\.$")
# Of a failed run Dagster prints what its failed step printed already.
_REPEATED = ("RUN_FAILURE",)
# Not an error: somebody pressed Ctrl-C, or ended the run in the UI.
_INTERRUPTED = "dagster._core.errors.DagsterExecutionInterruptedError"


class DagsterLog:
    """Feed it line by line; it gives back what to show instead."""

    def __init__(self) -> None:
        self._hiding = False
        self._ours = False

    def readable(self, line: str) -> str | None:
        """The line for a person, None where there is nothing to say."""
        line = _COLOUR.sub("", line.rstrip("\n"))
        match = _LINE.fullmatch(line)
        if match is None:
            return self._below(line)
        self._hiding = self._ours = False
        if match["pid"] is None:
            said = _SAID.fullmatch(match["rest"])
            return f"{_name(said['step'])}: {said['text']}" if said else match["rest"]
        event = _EVENT.fullmatch(match["rest"])
        if event is None:
            return match["rest"]
        return self._event(match["level"], event)

    def _event(self, level: str, event: re.Match[str]) -> str | None:
        name = _name(event["step"] or "")
        if event["event"] == "STEP_START":
            return f"{name}: begins"
        if event["event"] == "STEP_SUCCESS":
            seconds = _SECONDS.search(event["text"])
            return f"{name}: done" + (f" in {seconds[1]}" if seconds else "")
        if event["event"] == "STEP_FAILURE":
            return f"{name}: FAILED"
        if event["event"] in _REPEATED:
            self._hiding = True
            return None
        return event["text"] if level in ("WARNING", "ERROR", "CRITICAL") else None

    def _below(self, line: str) -> str | None:
        """A line that belongs to the one before. Under an error of ours, which says what to do, no traceback."""
        if line.startswith("dagster._core.definitions.events.Failure: "):
            self._ours = True
            line = line.partition(": ")[2]
        if line.startswith(_INTERRUPTED):
            self._hiding = True
            return "interrupted"
        if self._ours and line.startswith("Stack Trace:"):
            self._hiding = True
        return None if self._hiding or not line.strip() else line


def _name(step: str) -> str:
    """`tiny__model_weights` is the step of asset `tiny/model_weights`."""
    return step.replace("__", "/", 1)
