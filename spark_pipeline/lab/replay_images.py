"""The images of scenario.md, from real releases: for asking what is in them, and one that really serves (replay/).

    vllm-node     vLLM 0.14.1 in site-packages with Ray and no entrypoint of its own: knows no Qwen3.5
    vllm-qwen35   vLLM 0.17.0 as a source tree under /opt/vllm with Ray, entrypoint serves by itself: knows it
    vllm-wrapper  vLLM 0.32.0 without Ray, entrypoint serves by itself: the one that can serve here

Built on the head when first asked for, never by `lab up` or the demo. All stand on the engine image's layers, so the
five together take about 0.6 GB more.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from spark_pipeline.lab.images import HEAD, ImageTag, build, building, engine_image, has, recipe_of
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.progress import Say
from spark_pipeline.lab.wheels import fetching, served

ReplayName = Literal["vllm-node", "vllm-node-noray", "vllm-qwen35", "vllm-qwen35-noray", "vllm-wrapper"]
REPLAY_NAMES: tuple[ReplayName, ...] = get_args(ReplayName)

_FOLDER = Path(__file__).parent / "replay"


@dataclass(frozen=True)
class _Layer:
    """One Dockerfile on top of another image.

    Args:
        file: NAME.Dockerfile in the folder; NAME.txt beside it, if there is one, lists the wheels that it installs.
        reference: what the image is called.
        below: the layer that it stands on; None: the engine image.
    """

    file: str
    reference: str
    below: _Layer | None


_BASE = _Layer("base", "lab-replay-base:0.32.0", None)
_NODE = _Layer("node", "vllm-node:0.14.1", _BASE)
_QWEN35 = _Layer("qwen35", "vllm-qwen35:0.17.0", _BASE)
_LAYERS: dict[ReplayName, _Layer] = {
    "vllm-node": _NODE,
    "vllm-node-noray": _Layer("noray", "vllm-node:0.14.1-noray", _NODE),
    "vllm-qwen35": _QWEN35,
    "vllm-qwen35-noray": _Layer("noray", "vllm-qwen35:0.17.0-noray", _QWEN35),
    "vllm-wrapper": _Layer("wrapper", "vllm-wrapper:0.32.0", None),
}


def replay_image(lab: Lab, progress: Say, name: ReplayName) -> ImageTag:
    """One of the replay's images on the head: built in a minute or less, found in no time when it is there.

    Raises:
        LabError: the lab is not up, wheels cannot be had, or a build failed.
    """
    engine = engine_image(lab, progress)
    wanted = _tag(_LAYERS[name], engine)
    if has(lab, wanted):
        return wanted
    with building(lab, progress):
        return _ensure(lab, progress, _LAYERS[name], engine)


def _tag(layer: _Layer, engine: ImageTag) -> ImageTag:
    """A changed engine or a changed file of the folder gives every image another recipe."""
    return ImageTag(layer.reference, recipe_of(_FOLDER, {"engine": engine.recipe, "image": layer.reference}))


def _ensure(lab: Lab, say: Say, layer: _Layer, engine: ImageTag) -> ImageTag:
    wanted = _tag(layer, engine)
    if has(lab, wanted):
        return wanted
    with ExitStack() as stack:
        requirements = _FOLDER / f"{layer.file}.txt"
        # On their way while what is below is built.
        download = stack.enter_context(fetching(requirements, lab.paths, say)) if requirements.exists() else None
        below = engine if layer.below is None else _ensure(lab, say, layer.below, engine)
        arguments = {"BASE": below.reference}
        if download is not None:
            arguments["WHEELS"] = stack.enter_context(served(download.wait(say), lab.node(HEAD).plan))
        build(lab, wanted, _FOLDER, arguments, say, dockerfile=f"{layer.file}.Dockerfile")
    return wanted
