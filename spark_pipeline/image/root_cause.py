"""The real exception in what an inspection printed, and whether it says anything about the model: pure.

vLLM inspects a class in a process of its own and says "failed to be inspected", whatever happened there. What that
process printed holds warnings, tracebacks that were only logged, and the one that ended it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD = re.compile(r"^.*?Traceback \(most recent call last\):\s*$")
_DIRECT = "The above exception was the direct cause of the following exception:"
_WHILE = "During handling of the above exception, another exception occurred:"
_TAIL_LINES = 25
_LINE_CHARACTERS = 500
# A container without a GPU and driver cannot do these; that says nothing about the model.
_NO_GPU = re.compile(
    r"libcuda\.so|libnvidia-ml\.so|NVMLError|NVML Shared Library|No CUDA GPUs are available|no CUDA-capable device"
    r"|Found no NVIDIA driver|\b0 active drivers|Failed to infer device type|Device string must not be empty"
    r"|UnspecifiedPlatform|CUDA driver version is insufficient|cudaErrorNoDevice|cudaErrorInsufficientDriver"
    r"|CUDA unknown error|accelerator device when none is available|No HIP GPUs are available"
)
_NO_ROOM = re.compile(r"^MemoryError|No space left on device|Cannot allocate memory|Read-only file system")


@dataclass(frozen=True)
class RootCause:
    """Why something could not be imported or inspected.

    Args:
        error: "ImportError: cannot import name 'MambaStateCopyFunc' from ...": the innermost cause, in one line.
        traceback: its last lines.
        environment: why this says nothing about the model, such as a GPU that the container does not have; '' else.
    """

    error: str
    traceback: str
    environment: str = ""


@dataclass(frozen=True)
class _Block:
    """One exception: the lines of its traceback, its own line, and how it belongs to the one before."""

    lines: tuple[str, ...]
    error: str
    link: str


def root_cause(text: str) -> RootCause:
    """Read what a failed inspection printed. Text without a traceback is given back by its last line."""
    chain = _last_chain(_blocks(text))
    if not chain:
        lines = [line for line in text.splitlines() if line.strip()]
        return _cause(lines[-1].strip() if lines else "it said nothing", lines, [lines[-1] if lines else ""])
    root = len(chain) - 1
    while root > 0 and chain[root].link == _DIRECT:
        root -= 1
    return _cause(chain[root].error, chain[root].lines, [block.error for block in chain])


def _cause(error: str, lines: list[str] | tuple[str, ...], said: list[str]) -> RootCause:
    environment = ""
    if any(_NO_GPU.search(line) for line in said):
        environment = f"the container that asks has no GPU: {error}"
    elif any(_NO_ROOM.search(line) for line in said):
        environment = f"the container that asks has not enough room: {error}"
    return RootCause(error[:_LINE_CHARACTERS], "\n".join(lines[-_TAIL_LINES:]), environment)


def _blocks(text: str) -> list[_Block]:
    """Every traceback in the text."""
    lines = text.splitlines()
    found: list[_Block] = []
    link, ignored, number = "", False, 0
    while number < len(lines):
        line = lines[number]
        if _HEAD.match(line):
            end = number + 1
            while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
                end += 1
            if end < len(lines) and not ignored:
                error = lines[end].strip()
                if error.endswith(":") and end + 1 < len(lines):  # the message begins on the next line
                    error = f"{error} {lines[end + 1].strip()}"
                found.append(_Block(tuple(lines[number : end + 1]), error, link))
            link, ignored, number = "", False, end + 1
            continue
        if line.strip() in (_DIRECT, _WHILE):
            link = line.strip()
        elif line.startswith("Exception ignored in"):  # while a process ends: not what ended it
            ignored = True
        number += 1
    return found


def _last_chain(blocks: list[_Block]) -> list[_Block]:
    """The exception that ended it, and those that it came from; tracebacks before were only logged."""
    start = len(blocks) - 1
    while start > 0 and blocks[start].link:
        start -= 1
    return blocks[max(start, 0) :]
