"""What sensors and schedules compare with: what serves or, after a deployment that failed, what was good last."""

from __future__ import annotations

from dataclasses import dataclass

from spark_pipeline.cluster.generation import Generation
from spark_pipeline.cluster.record import last_number, read_generation
from spark_pipeline.image.record import ImageRecord
from spark_pipeline.image.record import find_record as find_image
from spark_pipeline.serving.record import LAST_GOOD, ServingRecord, find_record
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project


@dataclass(frozen=True)
class Deployed:
    """The last generations of one deployment.

    Args:
        good: serves, or served before `failed` took its place.
        failed: was started after it and does not serve; None where there is none.
        image: what the image stage recorded last.
    """

    good: Generation
    failed: Generation | None
    image: ImageRecord | None

    @property
    def newest(self) -> Generation:
        return self.failed or self.good


def find_deployed(project: Project, deployment: str) -> Deployed | str:
    """What is to be compared, or why there is nothing. Asks no machine.

    Both `spark-pipeline stop` and a deployment that failed leave no serving.json. They are told apart by the numbers of
    the generations, which are written before anything is started and are never used twice:

        newest number == the one that was good last ──> nobody started anything since: stopped on purpose
        newest number >  the one that was good last ──> that start failed, or was cancelled

    A `stop` after a failed start removes nothing and leaves no trace: the deployment counts as failed still, until it
    serves again. Whoever wants it to stay down switches the sensors off.

    Raises:
        StateError: a record is torn, or of another version.
    """
    state_dir = project.state_dir(deployment)
    serving = find_record(project, deployment)
    last = serving or store.read(state_dir / LAST_GOOD, ServingRecord)
    if last is None:
        return "nothing is deployed yet"
    number = last_number(state_dir)
    failed = read_generation(state_dir, number) if number > last.generation.number else None
    if serving is None and failed is None:
        return f"generation {last.generation.number} was good and was stopped: launch its deploy job to have it again"
    return Deployed(last.generation, failed, find_image(project, deployment))
