"""What belongs to a model at one commit: every file with its size and digest, readable without the hub."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from spark_pipeline.errors import WeightsError
from spark_pipeline.spec import store
from spark_pipeline.spec.base import Record
from spark_pipeline.weights.node.layout import is_safe_path
from spark_pipeline.weights.node.messages import WantedFile


class ManifestFile(BaseModel):
    """One file. Large ones have a sha256 on the hub; small ones, kept in git itself, only a git blob id."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if not is_safe_path(path):
            raise ValueError(f"the path {path!r} would leave the model's directory")
        return path

    @model_validator(mode="after")
    def _has_a_digest(self) -> ManifestFile:
        if not (self.sha256 or self.git_sha1):
            raise ValueError(f"{self.path} has no digest")
        return self

    @property
    def wanted(self) -> WantedFile:
        """The same for the program on the node."""
        algorithm = "sha256" if self.sha256 else "git_sha1"
        return WantedFile(self.path, self.size_bytes, algorithm, self.sha256 or self.git_sha1 or "")


class Manifest(Record):
    """All files of one commit, sorted by path."""

    repo: str
    commit: str
    files: tuple[ManifestFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def wanted(self) -> tuple[WantedFile, ...]:
        return tuple(file.wanted for file in self.files)

    @cached_property
    def sha256(self) -> str:
        """Names the manifest: the same files under the same names give the same value, on every machine."""
        lines = [f"{file.algorithm} {file.digest} {file.size_bytes} {file.path}\0" for file in self.wanted]
        return hashlib.sha256("".join([f"{self.repo} {self.commit}\0", *lines]).encode()).hexdigest()


def manifest_path(state_dir: Path) -> Path:
    return state_dir / "manifest.json"


def read_manifest(state_dir: Path) -> Manifest | None:
    """The stored manifest, None where there is none. Raises StateError when it cannot be read."""
    return store.read(manifest_path(state_dir), Manifest)


def keep_manifest(state_dir: Path, manifest: Manifest) -> None:
    """Store it, unless it is stored already."""
    if read_manifest(state_dir) != manifest:
        store.write(manifest_path(state_dir), manifest)


def refuse_empty(manifest: Manifest) -> None:
    """Raises WeightsError for a revision that cannot be a model: no file of weights in it."""
    if not any(file.path.endswith((".safetensors", ".bin", ".gguf", ".pt")) for file in manifest.files):
        raise WeightsError(
            f"{manifest.repo} holds no weights at this commit",
            observed=f"{len(manifest.files)} files at {manifest.commit}, none is .safetensors, .bin, .gguf or .pt",
            remedy="see model.repo and model.revision in the deployment's file",
        )
