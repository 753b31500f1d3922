"""What a model is, without its weights: config.json and the headers of its safetensors files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from spark_pipeline.errors import StateError
from spark_pipeline.fleet.progress import Progress, human_bytes
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.headers import Tensor, read_headers
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.model_config import ModelConfig, extra_head_layers, is_extra_head
from spark_pipeline.weights.model_files import WeightFiles, read_config, weight_files

# Raise it when the same files would give other facts: what an older program kept is asked anew then.
FACTS_VERSION = 1


class DtypeShare(BaseModel):
    """All tensors of one data type. `parameters` are stored elements: a packed format holds several weights in one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str
    tensors: int
    parameters: int
    size_bytes: int


class ModelFacts(Record):
    """One repository at one commit.

    Args:
        architectures: as config.json names them.
        model_type: '' where config.json names none.
        transformers_version: that the checkpoint was written with; '' where it does not say.
        quantization: method and format, such as 'fp8 e4m3'; '' for an unquantised model.
        dtypes: largest share first; empty where the weights are not safetensors.
        size_bytes: of all tensors in the files that a server reads; sized by bytes, never by parameters.
        size_evidence: 'headers', or 'file sizes' where there are no safetensors.
        layers, kv_heads, head_dim, context_tokens: None where config.json does not say.
        extra_head_layers: layers for speculative decoding (MTP); `extra_head_bytes`: of their tensors, a part of
            `size_bytes` that is loaded only when speculative decoding is asked for.
        has_remote_code: config.json's auto_map names classes of the repository's own.
        attention_layers: those whose KV cache grows with every token: `layers` without the linear ones, Mamba's and
            those with a sliding window. None where the layers' caches differ in a way that is not understood.
        latent_dim: with latent attention (MLA, as DeepSeek has it) the elements that a layer keeps for each token,
            for all heads together and on every rank; None for other models.
    """

    repo: str
    commit: str
    architectures: tuple[str, ...]
    model_type: str
    transformers_version: str
    quantization: str
    dtypes: tuple[DtypeShare, ...]
    size_bytes: int
    size_evidence: Literal["headers", "file sizes"]
    layers: int | None
    kv_heads: int | None
    head_dim: int | None
    context_tokens: int | None
    extra_head_layers: int
    extra_head_bytes: int
    has_remote_code: bool
    attention_layers: int | None = None
    latent_dim: int | None = None


def model_facts(hub: Hub, manifest: Manifest, project: Project, progress: Progress) -> ModelFacts:
    """What the model of `manifest` is. The first call reads config.json and headers, no weights; a second call on the
    same commit asks nothing, whatever hub it names: a commit is the same everywhere.

    Raises:
        HubError: the hub refuses (gated: what to do), or cannot be reached.
        WeightsError: config.json, index or a header is missing or cannot be used.
    """
    if known := find_model_facts(project, manifest.repo, manifest.commit):
        return known
    config = read_config(hub, manifest)
    files = weight_files(hub, manifest)
    tensors: list[Tensor] = []
    if files.are_safetensors:
        count = len(files.files)
        progress(f"{manifest.repo}: reading {count} safetensors header{'s' if count > 1 else ''}, no weights")
        tensors = read_headers(hub, manifest, files.files)
    facts = assemble(manifest, config, files, tensors)
    store.write(facts_path(project, manifest.repo, manifest.commit), facts)
    progress(f"{manifest.repo}: {human_bytes(facts.size_bytes)} of weights, by {facts.size_evidence}")
    return facts


def find_model_facts(project: Project, repo: str, commit: str) -> ModelFacts | None:
    """What an earlier call found out about this commit; no hub is asked. A record of another schema is as good as
    none, since the hub still knows it all."""
    try:
        return store.read(facts_path(project, repo, commit), ModelFacts)
    except StateError:
        return None


def facts_path(project: Project, repo: str, commit: str) -> Path:
    return project.root / "data" / "state" / "models" / repo / f"{commit}-v{FACTS_VERSION}.json"


def assemble(manifest: Manifest, config: ModelConfig, files: WeightFiles, tensors: Iterable[Tensor]) -> ModelFacts:
    """Pure: everything that was read, in one record."""
    tensors = tuple(tensors)
    shares = _shares(tensors)
    extra = [tensor for tensor in tensors if is_extra_head(tensor.name, config.layers)]
    return ModelFacts(
        repo=manifest.repo,
        commit=manifest.commit,
        architectures=config.architectures,
        model_type=config.model_type,
        transformers_version=config.transformers_version,
        quantization=config.quantization,
        dtypes=shares,
        size_bytes=sum(share.size_bytes for share in shares) if files.are_safetensors else files.size_bytes,
        size_evidence="headers" if files.are_safetensors else "file sizes",
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        context_tokens=config.context_tokens,
        # A checkpoint may declare layers that were dropped when it was quantised: what is there counts.
        extra_head_layers=extra_head_layers(one.name for one in extra)
        if files.are_safetensors
        else config.extra_head_layers,
        extra_head_bytes=sum(tensor.size_bytes for tensor in extra),
        has_remote_code=config.has_remote_code,
        attention_layers=config.attention_layers,
        latent_dim=config.latent_dim,
    )


def _shares(tensors: Iterable[Tensor]) -> tuple[DtypeShare, ...]:
    by_dtype: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    shares = [
        DtypeShare(
            dtype=dtype,
            tensors=len(those),
            parameters=sum(tensor.elements for tensor in those),
            size_bytes=sum(tensor.size_bytes for tensor in those),
        )
        for dtype, those in by_dtype.items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.size_bytes, share.dtype)))
