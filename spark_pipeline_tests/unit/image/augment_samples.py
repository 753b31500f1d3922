"""Answers of images, tiny wheels and hand-made augmentations for the tests of image/augment."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pip

from spark_pipeline.image.answer import ImageAnswer, Registry
from spark_pipeline.image.augment.augmentation import Augmentation, AugmentKind, Side, Wheel
from spark_pipeline.image.augment.context import tag_of
from spark_pipeline.image.augment.wheels import wheel_file
from spark_pipeline.image.record import EngineFacts


def answer(
    *,
    python: str = "3.12.3",
    packages: Mapping[str, str] | None = None,
    requirements: tuple[str, ...] = (),
    cuda: str | None = "12.8",
    architectures: Mapping[str, str] | None = None,
    vllm: str = "0.32.0",
) -> ImageAnswer:
    """What an image says, as far as augmenting it asks."""
    return ImageAnswer(
        engine=EngineFacts(
            vllm=vllm,
            ray=None,
            python=python,
            torch="2.13.0",
            transformers="5.19.0",
            supports_nnodes=True,
            architecture="arm64",
            cuda=cuda,
        ),
        python="/usr/bin/python3",
        directory="/usr/lib/python3/dist-packages/vllm",
        installed_as="distribution",
        pythons=(),
        packages=dict(packages or {}),
        requirements=requirements,
        registry=Registry(architectures=dict(architectures or {})),
        config_types=(),
        transformers_types=(),
    )


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
    program: str = "",
) -> Path:
    """A wheel that pip installs: one module (or `files`), and a program of this name if one is asked for."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = {
        **(files or {f"{name}/__init__.py": f"__version__ = {version!r}\n\n\ndef main():\n    print({version!r})\n"}),
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {item}\n" for item in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if program:
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{program} = {name}:main\n"
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return made


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make_pip(folder: Path) -> Path:
    """This environment's own pip as a wheel, from which it runs: no index is asked."""
    root = Path(pip.__file__).parent
    made = folder / f"pip-{pip.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, Path("pip", path.relative_to(root)))
    return made


def keep(cache_dir: Path, path: Path) -> Wheel:
    """A wheel as `fetch` would have left it in the cache."""
    content = path.read_bytes()
    name, version = path.name.split("-")[:2]
    wheel = Wheel(
        name=name,
        version=version,
        filename=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
    )
    place = wheel_file(cache_dir, wheel)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return wheel


def side(declared: str = "engine:1", fingerprint: str = "ab" * 32, *, user: str = "", python: str = "") -> Side:
    return Side(
        declared=declared,
        fingerprint=fingerprint,
        python=python or sys.executable,
        directory="/usr/lib/python3/dist-packages/vllm",
        vllm="0.32.0",
        user=user,
    )


def layered(base: Side, wheels: tuple[Wheel, ...], installer: Wheel, *, reason: str = "it has no Ray") -> Augmentation:
    """Ray on top of `base`, with wheels of a test's own."""
    made = Augmentation(
        kind=AugmentKind.RAY,
        base=base,
        added=tuple(str(wheel) for wheel in wheels),
        reason=reason,
        wheels=wheels,
        installer=installer,
    )
    return made.model_copy(update={"tag": tag_of(made)})


def names_in(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return tar.getnames()
