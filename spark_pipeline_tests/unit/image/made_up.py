"""A directory of made-up packages, as an image would have them, and the programs of the probe run on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spark_pipeline.image import inspect_program, probe_program
from spark_pipeline.image.answer import ImageAnswer, Inspection
from spark_pipeline.image.reading import read_answer, read_inspections

REGISTRY = '_VLLM_MODELS = {"Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM")}\n'
# What the inspection asks of vLLM, and nothing else of it.
MODEL_REGISTRY = """
class Model:
    def __init__(self, failure=None):
        self.failure = failure

    def inspect_model_cls(self):
        if self.failure:
            raise self.failure

class ModelRegistry:
    models = {"Qwen3ForCausalLM": Model()}

    @classmethod
    def get_supported_archs(cls):
        return cls.models.keys()
"""


class Packages:
    """Made-up packages under one directory; `bin` is on the PATH of what runs on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment: dict[str, str] = {}
        self.python = sys.executable  # what the programs are started with

    def add(self, name: str, files: dict[str, str]) -> None:
        for path, text in files.items():
            target = self.directory / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def distribution(self, name: str, version: str, *, requires: tuple[str, ...] = (), **files: str) -> None:
        """Its metadata; `files`: more of them, such as RECORD."""
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
        metadata = "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n"
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        self.add(folder, {"METADATA": metadata, **{key.replace("__", "."): text for key, text in files.items()}})

    def program(self, name: str, text: str = "#!/bin/sh\nexit 3\n") -> Path:
        self.add("bin", {name: text})
        (self.directory / "bin" / name).chmod(0o755)
        return self.directory / "bin" / name

    def ask(self) -> ImageAnswer:
        return read_answer(self.run(), reference="engine:1", architecture="amd64")

    def inspect(self, *architectures: str, limit_seconds: float = 20, for_gpus: bool = False) -> dict[str, Inspection]:
        text = self.run(*architectures, limit_seconds=limit_seconds)
        return read_inspections(text, architectures, for_gpus=for_gpus)

    def run(self, *architectures: str, limit_seconds: float = 20) -> str:
        """All that the programs print."""
        programs = [Path(module.__file__ or "").read_text("utf-8") for module in (probe_program, inspect_program)]
        paths = {"PYTHONPATH": str(self.directory), "PATH": str(self.directory / "bin")}
        done = subprocess.run(
            [self.python, "-S", "-c", probe_program.BOOT, *programs, str(limit_seconds), *architectures],
            env={**paths, "TMPDIR": os.environ.get("TMPDIR", "/tmp"), **self.environment},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout


def engine(directory: Path) -> Packages:
    """Packages with a vLLM that may be looked at, not imported: that would end the program."""
    made = Packages(directory)
    files = {
        "__init__.py": "raise SystemExit(3)",
        "engine/arg_utils.py": 'parser.add_argument("--nnodes")',
        "model_executor/models/registry.py": REGISTRY,
    }
    made.add("vllm", files)
    made.distribution("vllm", "0.32.0", requires=("transformers<5.20.0,>=5.16.1", "torch==2.13.0"))
    made.program("vllm")
    return made


def importable(directory: Path, code: str = MODEL_REGISTRY) -> Packages:
    """Packages with a vLLM that can be imported."""
    made = engine(directory)
    made.add("vllm", {"__init__.py": code, "model_executor/__init__.py": "", "model_executor/models/__init__.py": ""})
    return made
