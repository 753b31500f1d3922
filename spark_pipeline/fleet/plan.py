"""What a stage means to do, in a form that can be printed, compared and tested."""

from __future__ import annotations

from dataclasses import dataclass

from spark_pipeline.fleet.host import shell_text


@dataclass(frozen=True)
class Command:
    """One command on one node, exactly as it will run.

    `shown`: the same command as a person would type it, where a word of it is a whole script.
    """

    node: str
    argv: tuple[str, ...]
    shown: str = ""

    def text(self) -> str:
        return f"{self.node}$ {self.shown or shell_text(self.argv)}"


@dataclass(frozen=True)
class StagePlan:
    """The printable side of a stage's plan.

    Args:
        stage: 'compatibility_report', 'model_weights', 'vllm_image', 'ray_cluster', 'serving_endpoint' or
            'benchmark_results'.
        changes: False when everything is already as it should be: applying it starts and copies nothing.
        reasons: why this and not something else, one sentence each.
        commands: what will run, in order; empty when nothing changes.
        table: what was weighed against each other; the first row is the head, empty where there was one way only.
    """

    stage: str
    changes: bool
    reasons: tuple[str, ...]
    commands: tuple[Command, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
