"""What is built onto which image, as data and as commands."""

from __future__ import annotations

from pathlib import Path

from spark_pipeline.errors import AugmentError
from spark_pipeline.fleet.docker_objects import ImageFacts
from spark_pipeline.fleet.host import shell_text
from spark_pipeline.fleet.progress import Progress, human_bytes
from spark_pipeline.image.answer import ImageAnswer
from spark_pipeline.image.augment.augmentation import Augmentation, AugmentKind, Side
from spark_pipeline.image.augment.context import build_command, dockerfile, tag_commands, tag_of
from spark_pipeline.image.augment.resolve import resolve


def plan_ray(
    answer: ImageAnswer, base: ImageFacts, declared: str, reason: str, cache_dir: Path, progress: Progress
) -> Augmentation:
    """Ray for an image that has none. Asks the package index (once for an image), downloads nothing.

    Raises:
        ImageError: see resolve_ray.
    """
    resolved = resolve(answer, base.architecture, cache_dir, progress)
    return _tagged(
        Augmentation(
            kind=AugmentKind.RAY,
            base=_side(declared, base, answer),
            added=tuple(str(wheel) for wheel in resolved.wheels),
            reason=reason,
            wheels=resolved.wheels,
            installer=resolved.installer,
        )
    )


def plan_graft(
    base_answer: ImageAnswer,
    donor_answer: ImageAnswer,
    architecture: str,
    base: ImageFacts,
    donor: ImageFacts,
    declared: str,
    donor_declared: str,
    reason: str,
) -> Augmentation:
    """The donor's model files for one architecture, put into the base's vLLM and registered there.

    Architectures of sibling modules that the base lacks come along, such as the draft model in `qwen3_5_mtp` with
    `qwen3_5`. Which files these modules need is found out in the build, where they can be read.

    Raises:
        AugmentError: the donor's registry has no such architecture, or the base's has it.
    """
    known, offered = base_answer.registry.architectures, donor_answer.registry.architectures
    if architecture not in offered:
        raise AugmentError(
            f"{donor_declared} has no {architecture} to give",
            observed=f"its registry, of vLLM {donor_answer.engine.vllm}, has {len(offered)} others",
            remedy="name a donor whose vLLM knows the architecture (image.graft)",
        )
    if architecture in known:
        raise AugmentError(
            f"{declared} knows {architecture} already",
            observed=f"its registry says {known[architecture]}",
            remedy="take image.graft out of the declaration",
        )
    module = offered[architecture].partition(":")[0]
    entries = {
        name: place
        for name, place in offered.items()
        if name not in known and _belongs(place.partition(":")[0], module)
    }
    return _tagged(
        Augmentation(
            kind=AugmentKind.GRAFT,
            base=_side(declared, base, base_answer),
            added=tuple(f"{name}={place}" for name, place in sorted(entries.items())),
            reason=reason,
            donor=_side(donor_declared, donor, donor_answer),
            entries=entries,
        )
    )


def commands(augmentation: Augmentation) -> str:
    """What `build` runs on the head, for plans: the Dockerfile and the command that it goes into."""
    lines = [f"# {augmentation.reason}"]
    if augmentation.wheels:
        size = sum(wheel.size_bytes or 0 for wheel in augmentation.files)
        lines.append(f"# with {len(augmentation.files)} wheels, {human_bytes(size)}, in the build context")
    lines += [f"#   {line}" for line in dockerfile(augmentation).splitlines()]
    lines += [shell_text(words) for words in tag_commands(augmentation)]
    return "\n".join([*lines, f"[the context as a tar stream] | {shell_text(build_command(augmentation))}"])


def _belongs(module: str, wanted: str) -> bool:
    return module == wanted or module.startswith(f"{wanted}_")


def _side(declared: str, image: ImageFacts, answer: ImageAnswer) -> Side:
    return Side(
        declared=declared,
        fingerprint=image.fingerprint,
        python=answer.python,
        directory=answer.directory,
        vllm=answer.engine.vllm,
        user=image.user,
    )


def _tagged(augmentation: Augmentation) -> Augmentation:
    return augmentation.model_copy(update={"tag": tag_of(augmentation)})
