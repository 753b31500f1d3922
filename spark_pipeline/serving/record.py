"""What serves, and what was good last: data/state/<deployment>/serving.json and last_good.json."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import Field

from spark_pipeline.cluster.generation import Generation
from spark_pipeline.errors import StateError
from spark_pipeline.fleet.session import Session
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record
from spark_pipeline.spec.project import Project

SERVING = "serving.json"
LAST_GOOD = "last_good.json"


class ServingRecord(Record):
    """An endpoint that was proven: the right model id, and one real completion."""

    generation: Generation
    url: str
    """Base of the API as the head's ssh address gives it, without /v1."""
    model_id: str
    ready_seconds: float
    """From being told what to serve to the first completion."""
    container_ids: tuple[str, ...]
    """In rank order: a container that was replaced has another id."""
    run_id: str
    served_at: datetime = Field(default_factory=lambda: datetime.now(UTC))


def write_record(session: Session, record: ServingRecord) -> None:
    """Commit: what serves now is also what was good last."""
    store.write(session.state_dir / LAST_GOOD, record)
    store.write(session.state_dir / SERVING, record)


def forget(session: Session) -> None:
    """Nothing serves any more; what was good last stays known."""
    (session.state_dir / SERVING).unlink(missing_ok=True)


def find_record(project: Project, deployment: str) -> ServingRecord | None:
    """What serves according to the record, without asking any machine; None if nothing was deployed."""
    return store.read(project.state_dir(deployment) / SERVING, ServingRecord)


def read_record(session: Session) -> ServingRecord:
    """Raises StateError where nothing was deployed yet."""
    record = find_record(session.project, session.deployment.name)
    if record is None:
        raise StateError(
            f"deployment {session.deployment.name} does not serve",
            observed=f"no {session.state_dir / SERVING}",
            remedy=f"materialize {session.deployment.name}/serving_endpoint first",
        )
    return record
