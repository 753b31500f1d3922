"""What the hub's API says about repositories, in the words that huggingface_hub 2.4 reads."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from spark_pipeline.lab.hub_store import Revision, StoredFile

_POINTER_BYTES = 134  # size of a Git LFS pointer file; the client wants the field, nothing reads it


def describe_model(revision: Revision, *, with_blobs: bool, is_gated: bool) -> dict[str, Any]:
    """Answer to model_info(); sizes and digests of the files only when asked for, as on the real hub."""
    files = revision.files()
    by_path = {file.path: file for file in files}
    config = json.loads(by_path["config.json"].location.read_text()) if "config.json" in by_path else {}
    answer: dict[str, Any] = {
        "id": revision.repo,
        "modelId": revision.repo,
        "sha": revision.commit,
        "private": False,
        "gated": "manual" if is_gated else False,
        "disabled": False,
        "lastModified": "2026-11-30T00:00:00.000Z",
        "downloads": 0,
        "likes": 0,
        "tags": ["safetensors"],
        "pipeline_tag": "text-generation",
        "library_name": "transformers",
        "config": {key: config[key] for key in ("architectures", "model_type") if key in config},
        "siblings": [_sibling(file) if with_blobs else {"rfilename": file.path} for file in files],
    }
    parameters: Counter[str] = Counter()
    for file in files:
        if file.path.endswith(".safetensors"):
            parameters.update(_parameters(file.location, file.sha256))
    if parameters:
        answer["safetensors"] = {"parameters": dict(parameters), "total": parameters.total()}
    return answer


def describe_tree(files: Sequence[StoredFile], prefix: str, recursive: bool) -> list[dict[str, Any]]:
    """Answer to list_repo_tree(): everything under `prefix`, or only its first level with folders as entries."""
    base = f"{prefix.strip('/')}/" if prefix else ""
    entries: dict[str, dict[str, Any]] = {}
    for file in files:
        if not file.path.startswith(base):
            continue
        head, slash, _ = file.path[len(base) :].partition("/")
        if slash and not recursive:
            entries[base + head] = {"type": "directory", "path": base + head, "oid": "0" * 40, "size": 0}
        else:
            entries[file.path] = describe_file(file)
    return list(entries.values())


def describe_file(file: StoredFile) -> dict[str, Any]:
    """One entry of a tree or of paths-info."""
    entry: dict[str, Any] = {"type": "file", "path": file.path, "size": file.size_bytes, "oid": file.git_sha1}
    if file.is_lfs:
        entry["lfs"] = {"oid": file.sha256, "size": file.size_bytes, "pointerSize": _POINTER_BYTES}
    return entry


def describe_refs(refs: Mapping[str, str]) -> dict[str, Any]:
    """Answer to list_repo_refs()."""
    branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": refs[name]} for name in sorted(refs)]
    return {"branches": branches, "tags": [], "converts": []}


def _sibling(file: StoredFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": file.path, "size": file.size_bytes, "blobId": file.git_sha1}
    if file.is_lfs:
        entry["lfs"] = {"sha256": file.sha256, "size": file.size_bytes, "pointerSize": _POINTER_BYTES}
    return entry


@lru_cache(maxsize=1024)
def _parameters(location: Path, sha256: str) -> Counter[str]:
    """Parameters for each data type from a safetensors header; the digest is there as the cache's key."""
    del sha256
    with location.open("rb") as stream:
        (header_bytes,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(header_bytes))
    counts: Counter[str] = Counter()
    for name, tensor in header.items():
        if name != "__metadata__":
            counts[tensor["dtype"]] += math.prod(tensor["shape"])
    return counts
