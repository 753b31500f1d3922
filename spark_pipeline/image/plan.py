"""From what the nodes hold to what is to be done: pure, printable, with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.host import shell_text
from spark_pipeline.fleet.plan import Command, StagePlan
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.image.choose import Choice
from spark_pipeline.image.distribute import load_command, send_command, shown
from spark_pipeline.image.facts import probe_command
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.transfer import Transfer, groups

STAGE = "vllm_image"
# `localhost/`: should a node ever lack it, no public registry is asked for a name that anybody could register there.
_OWN_NAME = "localhost/spark-pipeline/engine"


def own_tag(fingerprint: str) -> str:
    """The pipeline's name for an image: made of what is in it, so it never means anything else."""
    return f"{_OWN_NAME}:{fingerprint[:16]}"


def names_of(choice: Choice, image: ImageFacts) -> tuple[str, ...]:
    """What the image is called on every node: the pipeline's name, then the declared one, where that has a tag."""
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
        holdings: head first; empty while the image must still be pulled: what the others lack is not known before.
        engine: what is inside; None when it has not been asked yet.
    """

    choice: Choice
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
        return bool(self.choice.pull or self.retags or self.transfers)


def describe(plan: ImagePlan, head: str, ways: Mapping[str, Sequence[str]]) -> StagePlan:
    """The plan as it is printed.

    Args:
        head: name of the head.
        ways: node -> ssh words that reach it from the head over the fabric.
    """
    choice = plan.choice
    reasons, commands = list(choice.reasons), []
    if choice.pull:
        commands += [Command(head, argv) for argv in pull_commands(choice)]
        reasons.append("what the other nodes lack of it is known only after the pull")
    probed = choice.on_head.reference if choice.on_head else (choice.pull or choice.declared)
    if plan.engine is None:
        argv = probe_command(probed, "sp-probe")
        commands.append(Command(head, argv, shown=_shown_probe(argv)))
        reasons.append("its engine was not asked yet: one container without GPU and network, gone when it ends")
    else:
        versions = ", ".join(f"{name} {version}" for name, version in plan.engine.versions().items())
        nnodes = "knows" if plan.engine.supports_nnodes else "does not know"
        reasons.append(f"inside: {versions}; vLLM {nnodes} --nnodes")
    commands += [Command(node, ("docker", "tag", source, name)) for node, source, name in plan.retags]
    if choice.on_head is not None:
        reasons += [_standing(holding, choice.on_head) for holding in plan.holdings]
        names = names_of(choice, choice.on_head)
        for group in groups(plan.transfers):
            loads = {wanted.node: load_command(ways[wanted.node]) for wanted in group}
            argv = send_command(names, group[0].leave_out, loads)
            commands.append(Command(head, argv, shown=shown(names, group[0].leave_out, loads)))
    return StagePlan(STAGE, plan.changes, tuple(reasons), tuple(commands))


def pull_commands(choice: Choice) -> tuple[tuple[str, ...], ...]:
    """The pull, by digest, and the declared tag put on what came."""
    assert choice.pull is not None
    tagged = Reference.parse(choice.declared).tagged
    return (
        ("docker", "pull", choice.pull),
        *((("docker", "tag", choice.pull, tagged),) if tagged else ()),
    )


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


def _shown_probe(argv: Sequence[str]) -> str:
    return shell_text(argv[:-1]) + ' "$(cat spark_pipeline/image/probe_program.py)"'
