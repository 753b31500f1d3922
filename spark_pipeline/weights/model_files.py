"""Which files of a repository a server reads: config.json, and the weights among everything else that lies there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_pipeline.errors import WeightsError
from spark_pipeline.fleet.progress import human_bytes
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.hub_files import read_file
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.model_config import ModelConfig, architectures, parse_config, says_quantization

CONFIG = "config.json"
# NVIDIA's ModelOpt writes its quantization here; older checkpoints of it say nothing in config.json.
QUANTIZATION = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
# One model in several files: NAME-00002-of-00005.gguf.
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
# What a trainer leaves behind, which no server loads.
_OF_TRAINING = ("training_args.", "optimizer.", "scheduler.", "scaler.", "rng_state")


@dataclass(frozen=True)
class WeightFiles:
    """The files that a server reads its weights from."""

    files: tuple[ManifestFile, ...]
    are_safetensors: bool

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def read_config(hub: Hub, manifest: Manifest) -> ModelConfig:
    """What config.json says.

    Raises:
        HubError: the hub refuses, or cannot be reached.
        WeightsError: there is none, or it is not JSON, or names no architecture.
    """
    if not _has(manifest, CONFIG):
        raise WeightsError(
            f"{manifest.repo} has no {CONFIG}",
            observed=f"{len(manifest.files)} files at {manifest.commit}, such as "
            + ", ".join(file.path for file in manifest.files[:3]),
            remedy="vLLM reads from it what to build: name the repository that these weights were made from, or a "
            "revision that has one",
        )
    config = _read_json(hub, manifest, CONFIG)
    if not architectures(config):
        raise WeightsError(
            f"{CONFIG} of {manifest.repo} names no architectures",
            observed=f"architectures: {json.dumps(config.get('architectures'))[:200]}, model_type: "
            f"{json.dumps(config.get('model_type'))[:200]}",
            remedy="vLLM would serve it as an embedding model, which answers no chat: name a repository or revision "
            "whose config.json says them, or have its owner add them",
        )
    quantization = None
    if not says_quantization(config) and _has(manifest, QUANTIZATION):
        quantization = _read_json(hub, manifest, QUANTIZATION)
    return parse_config(config, quantization)


def weight_files(hub: Hub, manifest: Manifest) -> WeightFiles:
    """The weights as vLLM picks them: safetensors before .bin, .pt and .gguf, at the top of the repository; with an
    index the files that it names and no others.

    Several .gguf files are often the same model in several sizes, each in one file or in numbered parts: the smallest
    counts, as the one that is served is not known here.

    Raises:
        HubError: the hub refuses, or cannot be reached.
        WeightsError: the index cannot be used, or there are no weights where a server looks.
    """
    if _has(manifest, INDEX):
        return WeightFiles(_indexed(manifest, _read_json(hub, manifest, INDEX)), are_safetensors=True)
    at_the_top = [file for file in manifest.files if "/" not in file.path and not file.path.startswith(_OF_TRAINING)]
    for suffix in (".safetensors", ".bin", ".pt"):
        found = [file for file in at_the_top if file.path.endswith(suffix)]
        # The same weights once more, in Mistral's own layout.
        others = [file for file in found if not file.path.startswith("consolidated")]
        if found:
            return WeightFiles(tuple(others or found), are_safetensors=suffix == ".safetensors")
    if found := [file for file in manifest.files if file.path.endswith(".gguf")]:
        return WeightFiles(_smallest_variant(found), are_safetensors=False)
    raise WeightsError(
        f"{manifest.repo} has no weights where a server looks for them",
        observed=f"no {INDEX}, and no .safetensors, .bin or .pt at the top of the repository at {manifest.commit}",
        remedy="see the repository on the hub: its weights lie in folders, or it is not a language model",
    )


def _smallest_variant(found: Sequence[ManifestFile]) -> tuple[ManifestFile, ...]:
    variants: dict[str, list[ManifestFile]] = {}
    for file in found:
        variants.setdefault(_PART.sub("", file.path), []).append(file)
    return tuple(min(variants.values(), key=lambda files: sum(file.size_bytes for file in files)))


def _indexed(manifest: Manifest, index: Mapping[str, Any]) -> tuple[ManifestFile, ...]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not all(isinstance(name, str) for name in weight_map.values()):
        raise _unusable(manifest, INDEX, "no weight_map of tensors and files in it")
    named = set(weight_map.values())
    files = tuple(file for file in manifest.files if file.path in named)
    if lacking := sorted(named - {file.path for file in files}):
        raise WeightsError(
            f"{INDEX} of {manifest.repo} names files that the repository does not have",
            observed=f"{len(lacking)} of {len(named)}, such as {', '.join(lacking[:3])}; there are "
            f"{human_bytes(manifest.size_bytes)} at {manifest.commit}",
            remedy="no server can load it: name another model.revision, or wait until its owner has uploaded all",
        )
    return files


def _read_json(hub: Hub, manifest: Manifest, path: str) -> Mapping[str, Any]:
    try:
        content = json.loads(read_file(hub, manifest, path))
    except ValueError as error:
        raise _unusable(manifest, path, str(error)) from None
    if not isinstance(content, Mapping):
        raise _unusable(manifest, path, f"it holds a JSON {type(content).__name__}, not an object")
    return content


def _unusable(manifest: Manifest, path: str, observed: str) -> WeightsError:
    return WeightsError(
        f"{path} of {manifest.repo} cannot be used",
        observed=f"{observed} (at {manifest.commit})",
        remedy="the file itself is wrong, on the hub: name another model.revision, or tell the repository's owner",
    )


def _has(manifest: Manifest, path: str) -> bool:
    return any(file.path == path for file in manifest.files)
