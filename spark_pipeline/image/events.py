"""What the programs that run inside an image say, line by line: one record for each kind.

probe_program.py says `engine` or `no_engine`. inspect_program.py says the rest: `import_failed`, or `registered` and
then one answer for each architecture, and `ended` where it did not come to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from spark_pipeline.image import inspect_program, probe_program
from spark_pipeline.image.answer import InstalledAs, Part, PythonFound


class NoEngine(Part):
    """There is no package vllm."""

    kind: Literal["no_engine"]
    pythons: tuple[PythonFound, ...]


class Engine(Part):
    """What is known of the engine without importing it, see image/answer.py.

    Args:
        programs: what the words python3, vllm and ray run; None: not on PATH.
        texts: of the modules that hold vLLM's and transformers' tables; '' where one is not there.
    """

    kind: Literal["engine"]
    pythons: tuple[PythonFound, ...]
    programs: dict[str, str | None]
    packages: dict[str, str]
    installed_as: InstalledAs
    version: str | None
    requirements: tuple[str, ...]
    cuda: str | None
    nccl: str | None
    has_ray_package: bool
    supports_nnodes: bool
    texts: dict[str, str]


class Failure(Part):
    """Why something could not be done.

    Args:
        text: the traceback, or all that vLLM's own inspecting process printed.
        status: how that process ended, as Python tells it (-9: killed); None where there was none.
    """

    text: str
    status: int | None


class ImportFailed(Part):
    """vLLM could not be imported."""

    kind: Literal["import_failed"]
    failure: Failure
    seconds: float


class Registered(Part):
    """vLLM was imported, and has these of the architectures."""

    kind: Literal["registered"]
    architectures: tuple[str, ...]


class Inspected(Part):
    """vLLM could look at the class."""

    kind: Literal["inspected"]
    architecture: str
    seconds: float


class InspectionFailed(Part):
    """vLLM has the architecture, and could not look at the class."""

    kind: Literal["inspection_failed"]
    architecture: str
    failure: Failure
    seconds: float


class NotRegistered(Part):
    """vLLM does not have the architecture; what transformers says of it. See image/answer.py, Inspection."""

    kind: Literal["not_registered"]
    architecture: str
    transformers_class: bool
    backend_compatible: bool | None
    seconds: float


class TransformersFailed(Part):
    """vLLM does not have the architecture, and transformers could not be asked."""

    kind: Literal["transformers_failed"]
    architecture: str
    failure: Failure
    seconds: float


class Ended(Part):
    """The inspecting program came to no end.

    Args:
        step: what it was doing.
        status: with which the process ended; None: it was still at it, and its time was over.
        limit_seconds: that each step has.
        log: the end of what was printed.
    """

    kind: Literal["ended"]
    step: str
    status: int | None
    limit_seconds: float
    log: str


Event = (
    NoEngine
    | Engine
    | ImportFailed
    | Registered
    | Inspected
    | InspectionFailed
    | NotRegistered
    | TransformersFailed
    | Ended
)

_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
_MARKERS = (probe_program.MARKER, inspect_program.MARKER)


def events(text: str) -> Iterator[Event]:
    """What stands behind the markers in all that a container printed. A line that something else got into is none."""
    for line in text.splitlines():
        for marker in _MARKERS:
            if line.startswith(marker):
                try:
                    yield _EVENT.validate_json(line.removeprefix(marker))
                except ValidationError:
                    continue
