"""`spark-pipeline probe IMAGE [--model REPO[@REV]]`: one image, asked by itself, wherever a head holds it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import ValidationError

from spark_pipeline.compatibility.judge import judged
from spark_pipeline.compatibility.record import CandidateFacts, candidate_facts
from spark_pipeline.compatibility.stage import wanted_of
from spark_pipeline.errors import DeclarationError, ImageNotFoundError, RegistryError, SparkPipelineError
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.parallel import each
from spark_pipeline.fleet.progress import Progress, human_bytes
from spark_pipeline.image.answer import ImageAnswer
from spark_pipeline.image.candidates import Candidate, machine_of
from spark_pipeline.image.facts import probe
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.registry import remote_image
from spark_pipeline.image.strategy import Judged
from spark_pipeline.spec.deployment import Model
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.model_facts import ModelFacts, find_model_facts, model_facts
from spark_pipeline.weights.revision import ask, is_commit


@dataclass(frozen=True)
class ProbeReport:
    """What is known of one image and, if a model was named, of the two together.

    Args:
        fleet, node: where the image was found and asked.
    """

    fleet: str
    node: str
    image: CandidateFacts
    answer: ImageAnswer
    model: ModelFacts | None


def probe_image(
    project: Project, reference: str, model: Model | None, fleet: str | None, progress: Progress
) -> ProbeReport:
    """Find the image on a head, and ask it.

    Args:
        model: repository and revision to judge it for.
        fleet: whose head to ask; default: the fleets whose deployments name the image, else all of them.

    Raises:
        ImageNotFoundError: no head that could be asked holds it.
        ImageError: it cannot be asked, or has no vLLM.
        HubError, WeightsError: the model cannot be asked.
        MachineError: the only fleet there is to ask cannot be asked.
    """
    names = [project.fleet(fleet).name] if fleet else _fleets_of(project, reference)
    with _Heads(project, names) as heads, ThreadPoolExecutor(max_workers=1) as pool:
        asking = pool.submit(_model, project, model, progress) if model is not None else None
        name, image = heads.find(reference)
        facts = asking.result() if asking is not None else None
        wanted = wanted_of(facts) if facts is not None else None
        host = heads.connections[name].host(project.fleet(name).head.name)
        result = probe(host, image, project, progress, wanted)
    digest = Reference.parse(reference).digest_among(image.repo_digests)
    found = judged(reference, result, wanted) if wanted is not None else Judged(reference, result.answer)
    return ProbeReport(
        name, host.name, candidate_facts(Candidate(reference, digest, image), found), result.answer, facts
    )


def model_of(project: Project, text: str) -> Model:
    """`REPO[@REV]` as a model, on the hub that a deployment of that repository names.

    Raises:
        DeclarationError: it is none.
    """
    repo, _, revision = text.partition("@")
    hubs = [one.model.hub_url for one in project.deployments.values() if one.model.repo == repo]
    try:
        return Model(repo=repo, revision=revision or "main", hub_url=next((hub for hub in hubs if hub), None))
    except ValidationError as error:
        raise DeclarationError(
            "--model does not name a model",
            observed=text,
            remedy=error.errors()[0]["msg"].removeprefix("Value error, "),
        ) from error


class _Heads:
    """The heads of some fleets, asked at once; one that cannot be asked does not hide the others."""

    def __init__(self, project: Project, names: list[str]) -> None:
        self.connections = {name: FleetConnection(project.fleet(name), project.known_hosts) for name in names}

    def __enter__(self) -> _Heads:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.connections.values():
            connection.close()

    def find(self, reference: str) -> tuple[str, ImageFacts]:
        def look(name: str) -> ImageFacts | SparkPipelineError | None:
            connection = self.connections[name]
            try:
                return Docker(connection.host(connection.fleet.head.name)).image(reference)
            except SparkPipelineError as error:
                return error

        answers = each(self.connections, look)
        for name, answer in answers.items():
            if isinstance(answer, ImageFacts):
                return name, answer
        failed = {name: answer for name, answer in answers.items() if isinstance(answer, SparkPipelineError)}
        if len(failed) == len(answers) == 1:
            raise next(iter(failed.values()))
        lines = [f"{name}: {failed[name].what if name in failed else 'no such image on its head'}" for name in answers]
        lines.append(self._in_registry(reference, [name for name in answers if name not in failed]))
        raise ImageNotFoundError(
            f"{reference} is on no head", observed="\n".join(lines), remedy=f"docker pull {reference} on a head first"
        )

    def _in_registry(self, reference: str, names: list[str]) -> str:
        """What can be said before a pull: for which processors it is made, and how large it is."""
        architecture = "arm64"
        if names:
            head = self.connections[names[0]].fleet.head.name
            architecture = machine_of(self.connections[names[0]].host(head)).architecture
        try:
            remote = remote_image(reference, architecture)
        except (ImageNotFoundError, RegistryError) as error:
            return f"its registry: {error.what} ({error.observed})"
        size = f", {human_bytes(remote.size_bytes)} to pull" if remote.size_bytes else f", none for {architecture}"
        return f"its registry has it: {remote.digest} for {', '.join(remote.platforms)}{size}"


def _fleets_of(project: Project, reference: str) -> list[str]:
    """Those whose deployments name the image; all where none does."""
    wanted = Reference.parse(reference)
    declaring = {
        deployment.fleet
        for deployment in project.deployments.values()
        for declared in deployment.image.candidates
        if Reference.parse(declared).tagged == wanted.tagged
    }
    return sorted(declaring or project.fleets)


def _model(project: Project, model: Model, progress: Progress) -> ModelFacts:
    """A commit that was asked before needs no hub."""
    if is_commit(model.revision) and (known := find_model_facts(project, model.repo, model.revision)):
        return known
    hub = Hub.of(model)
    return model_facts(hub, ask(hub, model.repo, model.revision), project, progress)
