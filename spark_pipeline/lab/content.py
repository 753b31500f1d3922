"""What the lab's hub and its head's Docker hold when somebody starts to use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.errors import LabError
from spark_pipeline.lab.hub_store import move_branch, publish, read_refs
from spark_pipeline.lab.images import ImageTag, engine_image
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.progress import Say
from spark_pipeline.lab.replay_model import NO_ARCHITECTURES, QWEN35_122B, no_architectures_files, qwen35_122b_files
from spark_pipeline.lab.tiny_models import TINY, TINY_QWEN35, tiny_files, tiny_qwen35_files

MODELS: dict[str, Callable[[int], dict[str, bytes]]] = {TINY: tiny_files, TINY_QWEN35: tiny_qwen35_files}
REVISIONS = (1, 2)


@dataclass(frozen=True)
class Published:
    """The commits of one repository, oldest first; branch main may point to any of them."""

    repo: str
    commits: tuple[str, ...]


def prepare_hub(root: Path, progress: Say) -> tuple[Published, ...]:
    """Publish two revisions of each tiny model. Branch main starts at the first and is never moved back."""
    found: list[Published] = []
    for repo, files in MODELS.items():
        commits = tuple(publish(root, repo, files(revision), branch=None) for revision in REVISIONS)
        if "main" not in read_refs(root, repo):
            move_branch(root, repo, "main", commits[0])
            progress(f"hub: {repo} published in {len(commits)} revisions, main is {commits[0][:12]}")
        found.append(Published(repo, commits))
    return tuple(found)


def publish_replay(root: Path) -> tuple[Published, ...]:
    """Publish what the replay asks about: a model of real size without its weights, one that names no architecture.

    On demand only. Takes a second the first time, half of it the second; branch main points to the one revision.
    """
    big = publish(root, QWEN35_122B, qwen35_122b_files())
    unnamed = publish(root, NO_ARCHITECTURES, no_architectures_files())
    return Published(QWEN35_122B, (big,)), Published(NO_ARCHITECTURES, (unnamed,))


def move_to_next(root: Path, repo: str) -> str:
    """Move branch main to the published revision after the one it is at, round and round. Returns the commit.

    Raises:
        LabError: the hub has no such repository.
    """
    published = {found.repo: found.commits for found in prepare_hub(root, lambda _: None)}
    if repo not in published:
        raise LabError(f"the lab's hub has no {repo}", remedy=f"one of: {', '.join(sorted(published))}")
    commits = published[repo]
    now = read_refs(root, repo)["main"]
    commit = commits[(commits.index(now) + 1) % len(commits)] if now in commits else commits[0]
    move_branch(root, repo, "main", commit)
    return commit


def prepare(lab: Lab, progress: Say) -> ImageTag:
    """Everything the main journey needs: models on the hub, vLLM on the head. Under a second when it is there.

    Raises:
        LabError: the lab is not up, or the image cannot be built.
    """
    prepare_hub(lab.paths.hub, progress)
    return engine_image(lab, progress)
