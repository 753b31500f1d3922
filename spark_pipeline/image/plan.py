"""From what the nodes hold to what is to be done: pure, printable, with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.image.augment.context import build_command
from spark_pipeline.image.augment.plan import commands as build_commands
from spark_pipeline.image.choice import ImageChoice
from spark_pipeline.image.distribute import load_command, send_command, shown
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.transfer import Transfer, groups

STAGE = "vllm_image"
# `localhost/`: should a node ever lack it, no public registry is asked for a name that anybody could register there.
_OWN_NAME = "localhost/spark-pipeline/engine"


def own_tag(fingerprint: str) -> str:
    """The pipeline's name for an image: made of what is in it, so it never means anything else."""
    return f"{_OWN_NAME}:{fingerprint[:16]}"


def names_of(choice: ImageChoice, image: ImageFacts) -> tuple[str, ...]:
    """What the image is called on every node: the pipeline's name, then the declared one, where that has a tag. One
    that was built here is called by the pipeline's names alone: the declared one is its base's."""
    if choice.augmentation is not None:
        return own_tag(image.fingerprint), choice.augmentation.tag
    tagged = Reference.parse(choice.declared).tagged
    return (own_tag(image.fingerprint), *((tagged,) if tagged else ()))


@dataclass(frozen=True)
class Holding:
    """What one node has of the chosen image.

    Args:
        source: a name or id under which it holds exactly that image; None when it does not hold it.
        unnamed: those of its names that are missing there, or stand for another image.
        transfer: what must come; None when it is there.
    """

    node: str
    source: str | None
    unnamed: tuple[str, ...]
    transfer: Transfer | None = None


@dataclass(frozen=True)
class ImagePlan:
    """What is to be done.

    Args:
        image: as the head holds it; None while it must still be built.
        holdings: head first; empty while it must still be built: what the others lack is not known before.
        engine: what is inside; None when it has not been asked yet.
    """

    choice: ImageChoice
    image: ImageFacts | None
    holdings: tuple[Holding, ...]
    engine: EngineFacts | None

    @property
    def retags(self) -> tuple[tuple[str, str, str], ...]:
        """(node, name or id, new name) of each `docker tag`."""
        return tuple(
            (holding.node, holding.source, name)
            for holding in self.holdings
            if holding.source is not None
            for name in holding.unnamed
        )

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        return tuple(holding.transfer for holding in self.holdings if holding.transfer is not None)

    @property
    def changes(self) -> bool:
        return bool(self.image is None or self.retags or self.transfers)


def describe(plan: ImagePlan, head: str, ways: Mapping[str, Sequence[str]]) -> StagePlan:
    """The plan as it is printed.

    Args:
        head: name of the head.
        ways: node -> ssh words that reach it from the head over the fabric.
    """
    choice, image = plan.choice, plan.image
    origin = f"registry digest {choice.digest}" if choice.digest else "from no registry"
    reasons = [f"{choice.declared}, {choice.way}; on the head, {origin}"]
    commands: list[Command] = []
    if image is None:
        assert choice.augmentation is not None
        reasons.append(f"built on {head}: {choice.augmentation.reason}")
        reasons.append(
            "it is inspected there before it goes to any other node; what they lack is known after the build"
        )
        commands.append(Command(head, build_command(choice.augmentation), shown=build_commands(choice.augmentation)))
        return StagePlan(STAGE, True, tuple(reasons), tuple(commands))
    if plan.engine is not None:
        versions = ", ".join(f"{name} {version}" for name, version in plan.engine.versions().items())
        nnodes = "knows" if plan.engine.supports_nnodes else "does not know"
        reasons.append(f"inside: {versions}; vLLM {nnodes} --nnodes")
    commands += [Command(node, ("docker", "tag", source, name)) for node, source, name in plan.retags]
    reasons += [_standing(holding, image) for holding in plan.holdings]
    names = names_of(choice, image)
    for group in groups(plan.transfers):
        loads = {wanted.node: load_command(ways[wanted.node]) for wanted in group}
        argv = send_command(names, group[0].leave_out, loads)
        commands.append(Command(head, argv, shown=shown(names, group[0].leave_out, loads)))
    return StagePlan(STAGE, plan.changes, tuple(reasons), tuple(commands))


def _standing(holding: Holding, image: ImageFacts) -> str:
    if holding.transfer is not None:
        missing = len(image.layers) - len(holding.transfer.leave_out)
        return (
            f"{holding.node}: {missing} of {len(image.layers)} layers are missing "
            f"({human_bytes(image.size_bytes)} in all)"
        )
    if holding.unnamed:
        return f"{holding.node}: has it, not yet under {', '.join(holding.unnamed)}"
    return f"{holding.node}: has it (fingerprint {image.fingerprint[:16]})"
