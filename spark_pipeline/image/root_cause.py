"""The real exception in what an inspection printed, and whether it says anything about the image: pure.

vLLM inspects a class in a process of its own and says "failed to be inspected", whatever happened there. What that
process printed holds warnings, tracebacks that were only logged, and the one that ended it; or nothing, where it was
killed.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

_HEAD = re.compile(r"^.*?Traceback \(most recent call last\):\s*$")
_DIRECT = "The above exception was the direct cause of the following exception:"
_WHILE = "During handling of the above exception, another exception occurred:"
_TAIL_LINES = 25
_LINE_CHARACTERS = 500
# How Python ends what it prints of an exception, when there is no traceback before (a syntax error of the first file).
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)(:.*)?$")
# A container without a GPU and driver cannot do these; that says nothing about the model.
_NO_GPU = re.compile(
    r"libcuda\.so|libnvidia-|libnvcuvid|libnvoptix|NVMLError|NVML Shared Library|No CUDA GPUs are available"
    r"|no CUDA-capable device|Found no NVIDIA driver|\b0 active drivers|Failed to infer device type"
    r"|Device string must not be empty|UnspecifiedPlatform|CUDA driver version is insufficient|cudaErrorNoDevice"
    r"|cudaErrorInsufficientDriver|CUDA unknown error|accelerator device when none is available"
    r"|No HIP GPUs are available"
)
# What the node or the container could not give at that moment. A static TLS block is the image's own affair.
_NOT_NOW = re.compile(
    r"^MemoryError|[Cc](annot|an't|ould not) allocate memory(?! in static TLS)|std::bad_alloc|[Oo]ut of memory"
    r"|No space left on device|Disk quota exceeded|Too many open files|can't start new thread|Killed$"
    r"|Resource temporarily unavailable|Read-only file system|Input/output error|No usable temporary directory"
    r"|Stale file handle|failed to map segment|Network is unreachable|Temporary failure in name resolution"
    r"|Name or service not known"
)
# Errors of an image for GPUs that are the same with and without one: what is not there, or is no Python.
_OF_THE_IMAGE = re.compile(
    r"^(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|TabError|NameError)(:|$)"
    r"|^AttributeError: (partially initialized )?module \S+ has no attribute "
)
_OF_THE_SYSTEM = re.compile(
    r"^(OSError|PermissionError|TimeoutError|InterruptedError|BlockingIOError|BrokenPipeError|EOFError|Connection\w*Error)"
    r"(:|$)"
)


class Says(StrEnum):
    """What a failure says, and so how long its answer may be kept."""

    BROKEN = "the image is broken"
    NO_GPU = "nothing, and would not without a GPU"
    NOT_NOW = "nothing this time"

    @property
    def final(self) -> bool:
        """The answer would be the same another time, so that it need not be asked again."""
        return self is not Says.NOT_NOW


@dataclass(frozen=True)
class RootCause:
    """Why something could not be imported or inspected.

    Args:
        error: "ImportError: cannot import name 'MambaStateCopyFunc' from ...": the innermost cause, in one line.
        traceback: its last lines.
        says: what that means for the image.
        inconclusive: why it says nothing about the image; '' where it does.
    """

    error: str
    traceback: str
    says: Says
    inconclusive: str = ""


@dataclass(frozen=True)
class _Block:
    """One exception: the lines of its traceback, its own line, and how it belongs to the one before."""

    lines: tuple[str, ...]
    error: str
    link: str


def root_cause(text: str, status: int | None = None, *, for_gpus: bool = False) -> RootCause:
    """Read what a failed import or inspection printed in a container without a GPU.

    Args:
        status: how the process ended whose output this is, as Python tells it; None where it is not known.
        for_gpus: the image is made for GPUs. The ways to fail without one are many, so only what is certainly the
            image's own counts against it; of an image for processors everything does that is not known to be otherwise.
    """
    chain = _last_chain(_blocks(text))
    if chain:
        root = len(chain) - 1
        while root > 0 and chain[root].link == _DIRECT:
            root -= 1
        error, lines, said = chain[root].error, chain[root].lines, [block.error for block in chain]
    else:
        lines = tuple(line for line in text.splitlines() if line.strip())
        error = lines[-1].strip() if lines else "it said nothing"
        said = [error]
    ended = killed(status)
    if not ended and not chain and not _EXCEPTION.match(error):
        ended = "it ended without an exception" + (f", status {status}" if status is not None else "")
    says, why = (Says.NOT_NOW, f"{ended}; the last it said: {error}") if ended else _judge(error, said, for_gpus)
    return RootCause(error[:_LINE_CHARACTERS], "\n".join(lines[-_TAIL_LINES:]), says, why[: 2 * _LINE_CHARACTERS])


def killed(status: int | None) -> str:
    """How a process was ended by a signal, in words; '' where it ended by itself, or its end is not known."""
    number = 0 if status is None else -status if status < 0 else status - 128 if 128 < status < 160 else 0
    if not number:
        return ""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = str(number)
    memory = " (no memory left on the node or within the probe's limit: free some, then ask again)"
    return f"it was ended by the signal {name}{memory if number == signal.SIGKILL else ''}"


def not_now(text: str) -> bool:
    """Whether a line of this says that the node could not give what was needed just then."""
    return any(_NOT_NOW.search(line.strip()) for line in text.splitlines())


def _judge(error: str, said: list[str], for_gpus: bool) -> tuple[Says, str]:
    """What an exception says, and why nothing where it says nothing.

    Args:
        said: its line, and those of the exceptions that it led to.
    """
    if any(_NO_GPU.search(line) for line in said):
        return Says.NO_GPU, f"the container that asks has no GPU: {error}"
    if any(_NOT_NOW.search(line) for line in said):
        return Says.NOT_NOW, f"the node or the container could not give what it needs: {error}"
    if not for_gpus or _OF_THE_IMAGE.match(error):
        return Says.BROKEN, ""
    if _OF_THE_SYSTEM.match(error):
        return Says.NOT_NOW, f"this need not be the image's fault: {error}"
    return Says.NO_GPU, f"without a GPU this may be no fault of the image: {error}"


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
