"""What compatibility_report writes down: the questions, the answers, and the way that was chosen."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import Field

from spark_pipeline.cluster.memory import Layout
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.answer import Part
from spark_pipeline.image.candidates import Candidate
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.strategy import Judged, Option, chosen
from spark_pipeline.image.verdict import Verdict
from spark_pipeline.spec.base import Record
from spark_pipeline.spec.secrets import without_secret, words_without_secrets
from spark_pipeline.weights.model_facts import ModelFacts


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
    """Everything that was asked about one deployment, before a byte of weights.

    Args:
        fits: the declared nodes have the memory.
        problem, remedy: why it cannot be served as declared, and what helps; '' when it can.
    """

    deployment: str
    model: ModelFacts
    layouts: tuple[Layout, ...]
    fits: bool
    candidates: tuple[CandidateFacts, ...]
    options: tuple[Option, ...]
    problem: str
    remedy: str
    run_id: str
    made_at: datetime

    @property
    def choice(self) -> Option | None:
        return chosen(self.options)


def report_path(session: Session) -> Path:
    return session.state_dir / "compatibility.json"


def candidate_facts(candidate: Candidate, judged: Judged) -> CandidateFacts:
    """One candidate as it is reported."""
    found = CandidateFacts(declared=candidate.declared, digest=candidate.digest, against=judged.against or judged.waits)
    if (image := candidate.on_head) is not None:
        found = found.model_copy(
            update={
                "fingerprint": image.fingerprint,
                "platform": f"{image.os}/{image.architecture}",
                "size_bytes": image.size_bytes,
                "entrypoint": words_without_secrets(image.entrypoint),
                "command": words_without_secrets(image.command),
                "working_dir": image.working_dir,
                "user": image.user,
                "environment": {name: without_secret(name, value) for name, value in image.environment.items()},
            }
        )
    if (answer := judged.answer) is not None:
        found = found.model_copy(
            update={
                "engine": answer.engine,
                "installed_as": answer.installed_as,
                "directory": answer.directory,
                "verdict": judged.verdict,
            }
        )
    return found
