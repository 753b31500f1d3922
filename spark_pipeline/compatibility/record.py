"""What compatibility_report writes down: the questions, the answers, and the way that was chosen."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import Field

from spark_pipeline.fleet.session import Session
from spark_pipeline.image.answer import Part
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.strategy import Option, chosen
from spark_pipeline.image.verdict import Verdict
from spark_pipeline.spec.base import Record
from spark_pipeline.weights.model_facts import ModelFacts


class LayoutFit(Part):
    """The model spread over so many nodes: what each needs, what the tightest has."""

    nodes: int
    needs_bytes: int
    has_bytes: int
    node: str
    fits: bool
    text: str


class CandidateFacts(Part):
    """One candidate as it was found.

    Args:
        fingerprint, platform, size_bytes, entrypoint, command, working_dir, user: of the image on the head; empty
            where it is not.
        environment: that the image sets; what looks like a secret is hidden.
        installed_as, directory: how and where its vLLM is installed.
        against: why it was not asked, or cannot be used; '' when it was asked.
    """

    declared: str
    digest: str | None
    fingerprint: str = ""
    platform: str = ""
    size_bytes: int = 0
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""
    environment: dict[str, str] = Field(default_factory=dict)
    engine: EngineFacts | None = None
    installed_as: str = ""
    directory: str = ""
    verdict: Verdict | None = None
    against: str = ""


class CompatibilityReport(Record):
    """Everything that was asked about one deployment, before a byte of weights."""

    deployment: str
    model: ModelFacts
    layouts: tuple[LayoutFit, ...]
    declared_nodes: int
    candidates: tuple[CandidateFacts, ...]
    options: tuple[Option, ...]
    problem: str
    run_id: str
    made_at: datetime

    @property
    def choice(self) -> Option | None:
        return chosen(self.options)


def report_path(session: Session) -> Path:
    return session.state_dir / "compatibility.json"
