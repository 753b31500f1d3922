"""What the later stages need to know of the weights."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from spark_pipeline.errors import StateError
from spark_pipeline.fleet.session import Session
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record


class WeightsRecord(Record):
    """Verified files, the same on every node of the deployment.

    Args:
        revision: as declared; `commit` is what it meant.
        directory: absolute, the same on every node; read-only for everybody else.
        run_id: the run that proved them, at `verified_at` (UTC).
    """

    repo: str
    revision: str
    commit: str
    directory: str
    size_bytes: int
    files: int
    manifest_sha256: str
    run_id: str
    verified_at: datetime

    @property
    def marker(self) -> str:
        """A file that is there on a node only while the files beside it are complete; they are proven as long as the
        node's boot is the one that it names."""
        return f"{self.directory}/.spark_pipeline/complete.json"


def record_path(session: Session) -> Path:
    return session.state_dir / "weights.json"


def read_record(session: Session) -> WeightsRecord:
    """What `ensure` wrote last. Raises StateError where there is nothing."""
    record = store.read(record_path(session), WeightsRecord)
    if record is None:
        name = session.deployment.name
        raise StateError(
            f"no weights are recorded for {name}",
            observed=f"no {record_path(session)}",
            remedy=f"materialize {name}/model_weights first",
        )
    return record
