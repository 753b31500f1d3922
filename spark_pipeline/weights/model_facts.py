"""What a model is, without its weights: config.json and the headers of its safetensors files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from spark_pipeline.spec.base import Record


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
        size_bytes: of all tensors that a server loads; sized by bytes, never by parameters.
        size_evidence: 'headers', or 'file sizes' where there are no safetensors.
        layers, kv_heads, head_dim, context_tokens: None where config.json does not say.
        extra_head_layers: layers for speculative decoding (MTP); `extra_head_bytes`: of their tensors.
        has_remote_code: config.json's auto_map names classes of the repository's own.
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
