"""Images made from others on a real Docker Engine: Ray layered on with no network, refusals, cancelling, grafts.

Bases are the lab's stand-in engine without Ray (Debian's Python: no pip, and it refuses to be installed into).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from spark_pipeline.errors import ImageError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Completed, Host
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.fleet.session import open_session
from spark_pipeline.image.answer import ImageAnswer
from spark_pipeline.image.augment.augmentation import Augmentation, Side
from spark_pipeline.image.augment.build import build, discard
from spark_pipeline.image.augment.plan import plan_graft, plan_ray
from spark_pipeline.lab.images import standin_image
from spark_pipeline.lab.lab import Lab
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.lab import small_images
from spark_pipeline_tests.lab.interrupt import interrupt_when
from spark_pipeline_tests.unit.image.augment_samples import answer, keep, layered, make_pip, make_wheel

pytestmark = pytest.mark.lab

DATA = Path(__file__).parents[2] / "data"
LABEL = "spark_pipeline_tests=augment"  # of its own: other tests remove what has theirs
VLLM = {path: text for path, text in small_images.ENGINE.items() if "ray" not in path}
REGISTRY = "vllm/model_executor/models/registry.py"
_ASK = (
    "import importlib.metadata as m, json, platform, sys;"
    "print(json.dumps([sys.executable, platform.python_version(),"
    "{d.metadata['Name'].lower(): d.version for d in m.distributions()}]))"
)


@pytest.fixture(scope="module")
def head(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = tmp_path_factory.mktemp("project")
    for kind, name in (("fleets", "lab"), ("deployments", "tiny"), ("profiles", "smoke")):
        (directory / "data" / kind).mkdir(parents=True)
        declared = yaml.safe_load((DATA / kind / f"{name}.yaml").read_text(encoding="utf-8"))
        (directory / "data" / kind / f"{name}.yaml").write_text(yaml.safe_dump(declared))
    fleet = Project.load(directory).fleet("lab")
    enroll(fleet, directory / "data" / "state" / "known_hosts", lambda line: None)
    with open_session(Project.load(directory), "tiny", progress=lambda line: None, run_id="test") as session:
        yield session.head


@pytest.fixture(scope="module")
def bare(lab: Lab) -> str:
    """A cached lab image: the stand-in without Ray."""
    return standin_image(lab, lambda line: None, tag="no-ray", ray=False).reference


@pytest.fixture(autouse=True)
def nothing_is_left(head: Host) -> Iterator[None]:
    """No container, and no image, named or not."""
    forget(head)
    yield
    forget(head)
    assert left_behind(head) == {"containers": [], "images": []}


def forget(head: Host) -> None:
    """Remove every image of these tests; one that others are built on goes only after them, so in rounds."""
    argv = ["docker", "image", "ls", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}"]
    for _ in range(5):
        for image in dict.fromkeys(head.run(argv, timeout=60).stdout.split()):
            head.run(["docker", "image", "rm", "--force", image], timeout=60, check=False)
    assert head.run(argv, timeout=60).stdout == ""


def left_behind(host: Host) -> dict[str, list[str]]:
    """Of these tests: images inherit their base's labels, those on the way too, and containers their image's."""

    def lines(*argv: str) -> list[str]:
        return sorted(host.run(["docker", *argv, "--filter", f"label={LABEL}"], timeout=60).stdout.splitlines())

    return {
        "containers": lines("ps", "--all", "--quiet"),
        "images": lines("image", "ls", "--all", "--no-trunc", "--format", "{{.Repository}} {{.ID}}"),
    }


@dataclass(frozen=True)
class Node:
    """The head's host, with Docker's other builder."""

    inner: Host
    variables: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.inner.name

    def run(self, argv: Sequence[str], **more: object) -> Completed:
        return self.inner.run(argv, **more)  # pyright: ignore[reportArgumentType]

    def stream(self, argv: Sequence[str], **more: object) -> Completed:
        return self.inner.stream(["env", *self.variables, *argv], **more)  # pyright: ignore[reportArgumentType]

    def put(self, content: bytes, path: str, *, mode: int = 0o644) -> None:
        self.inner.put(content, path, mode=mode)

    def get(self, path: str) -> bytes:
        return self.inner.get(path)


def base_image(head: Host, bare: str, name: str, layer: dict[str, str] | None = None, extra: str = "") -> ImageFacts:
    """vLLM outside of site-packages, its program in a folder of its own that alone is on PATH."""
    small_images.build(head, name, {**VLLM, **(layer or {})}, base=bare, extra=f"LABEL {LABEL}\n{extra}")
    found = Docker(head).image(name)
    assert found is not None
    return found


def said_by(head: Host, image: ImageFacts) -> ImageAnswer:
    """What resolving needs to know of it."""
    argv = ["docker", "run", "--rm", "--network", "none", "-w", "/", "--entrypoint", "python3", image.image_id]
    python, version, packages = json.loads(head.run([*argv, "-c", _ASK], timeout=60).stdout)
    said = answer(python=version, packages=packages, cuda=None)
    return said.model_copy(update={"python": python, "directory": "/opt/image/vllm"})


def tiny_ray(cache: Path, base: ImageFacts, *more: Path) -> Augmentation:
    """A Ray of one module, so that a build takes seconds."""
    wheels = (make_wheel(cache / "made", "ray", "2.53.0", program="ray"), *more)
    side = Side(
        declared=base.reference,
        fingerprint=base.fingerprint,
        python="/usr/bin/python3",
        directory="/opt/image/vllm",
        vllm="0.99.0",
        user=base.user,
    )
    kept = tuple(keep(cache, wheel) for wheel in wheels)
    return layered(side, kept, keep(cache, make_pip(cache / "made")))


def run_in(head: Host, reference: str, *words: str) -> str:
    argv = ["docker", "run", "--rm", "--network", "none", "--entrypoint", words[0], reference, *words[1:]]
    return head.run(argv, timeout=60).stdout.strip()


def test_ray_is_layered_on_with_all_that_it_needs_and_runs_without_a_network(
    head: Host, bare: str, tmp_path: Path
) -> None:
    base = base_image(head, bare, "sp-test/augment:bare", extra='ENTRYPOINT ["/bin/false"]\nCMD ["serve", "$x"]')
    planned = plan_ray(said_by(head, base), base, "sp-test/augment:bare", "it has no Ray", tmp_path, lambda line: None)
    said: list[str] = []
    image = build(head, base, planned, tmp_path, said.append)

    assert planned.added[0] == "ray==2.53.0"
    assert {"msgpack", "jsonschema", "requests"} <= {wheel.name for wheel in planned.wheels}
    assert run_in(head, planned.tag, "ray", "--version") == "ray, version 2.53.0"
    assert image.labels["spark_pipeline.augment.base"] == base.fingerprint
    assert image.labels["spark_pipeline.augment.added"].startswith("ray==2.53.0 attrs==")
    assert image.labels["spark_pipeline.augment.reason"] == "it has no Ray"
    assert (image.entrypoint, image.command) == (("/bin/false",), ("serve", "$x"))
    assert image.layers[: len(base.layers)] == base.layers
    assert f"{len(planned.wheels)} distributions were added, none of the others was changed, moved or removed" in said

    started = time.time()
    again = build(head, base, planned, tmp_path, said.append)
    window = [
        "docker",
        "events",
        "--since",
        f"{started:.3f}",
        "--until",
        f"{time.time():.3f}",
        "--format",
        "{{json .}}",
    ]
    assert again.image_id == image.image_id
    assert head.run(window, timeout=60).stdout == ""
    discard(head, planned.tag)


@pytest.mark.parametrize("builder", ["DOCKER_BUILDKIT=0", "DOCKER_BUILDKIT=1"])
def test_an_image_of_another_user_keeps_its_user_with_either_builder(
    head: Host, bare: str, tmp_path: Path, builder: str
) -> None:
    base = base_image(head, bare, "sp-test/augment:user", extra="USER 1000:1000\nWORKDIR /workspace")
    planned = tiny_ray(tmp_path, base)
    image = build(Node(head, (builder,)), base, planned, tmp_path, lambda line: None)

    assert (image.user, image.working_dir) == ("1000:1000", "/workspace")
    assert run_in(head, planned.tag, "ray") == "2.53.0"
    assert run_in(head, planned.tag, "ls", "/").split().count("spark-pipeline-augment") == 0
    discard(head, planned.tag)
    forget_build_cache(head, builder)


@pytest.mark.parametrize("builder", ["DOCKER_BUILDKIT=0", "DOCKER_BUILDKIT=1"])
def test_a_wheel_that_would_move_a_package_fails_the_build_and_leaves_nothing(
    head: Host, bare: str, tmp_path: Path, builder: str
) -> None:
    folder = "usr/local/lib/python3.11/dist-packages"
    info = "click-8.0.dist-info"
    files = {
        "click/__init__.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: click\nVersion: 8.0",
        f"{info}/RECORD": f"click/__init__.py,,\n{info}/METADATA,,\n{info}/RECORD,,",
    }
    base = base_image(
        head, bare, "sp-test/augment:has", files, extra=f"COPY 0/click /{folder}/click\nCOPY 0/{info} /{folder}/{info}"
    )
    planned = tiny_ray(tmp_path, base, make_wheel(tmp_path / "made", "click", "9.0"))
    before = left_behind(head)
    with pytest.raises(ImageError) as caught:
        build(Node(head, (builder,)), base, planned, tmp_path, lambda line: None)
    assert caught.value.what == "ray==2.53.0 could not be added to sp-test/augment:has"
    assert f"click 8.0 in /{folder} became 9.0" in caught.value.observed
    assert left_behind(head) == before
    forget_build_cache(head, builder)


@pytest.mark.parametrize("builder", ["DOCKER_BUILDKIT=0", "DOCKER_BUILDKIT=1"])
def test_after_ctrl_c_nothing_is_left(lab: Lab, head: Host, bare: str, tmp_path: Path, builder: str) -> None:
    sleeping = {"sitecustomize.py": "import time; time.sleep(600)"}
    base = base_image(head, bare, "sp-test/augment:asleep", sleeping)
    planned = tiny_ray(tmp_path, base)
    before = left_behind(head)
    stop = interrupt_when(lambda: asleep(lab) != "")
    with pytest.raises(KeyboardInterrupt):
        build(Node(head, (builder,)), base, planned, tmp_path, lambda line: None)
    stop.join()
    end = time.monotonic() + 20
    while asleep(lab) and time.monotonic() < end:  # BuildKit ends a step by itself, after its client is gone
        time.sleep(0.5)
    assert asleep(lab) == ""
    assert lab.run_in_node("head", ["pgrep", "-a", "-f", "docker build"]).stdout == ""
    assert left_behind(head) == before
    forget_build_cache(head, builder)


def asleep(lab: Lab) -> str:
    return lab.run_in_node("head", ["pgrep", "-a", "-f", "/spark-pipeline-augment/install_ray.py$"]).stdout


def forget_build_cache(head: Host, builder: str) -> None:
    """BuildKit keeps its steps for the next build; in the lab only these tests use it."""
    if builder.endswith("1"):
        head.run(["docker", "builder", "prune", "--all", "--force"], timeout=120)


def test_model_files_of_another_image_are_put_in_and_registered(head: Host, bare: str, tmp_path: Path) -> None:
    tables = '_TEXT_GENERATION_MODELS = {\n    "Old": ("old", "Old"),\n}'
    old = base_image(head, bare, "sp-test/augment:old", {REGISTRY: tables}, extra="USER 1000")
    new = base_image(
        head,
        bare,
        "sp-test/augment:new",
        {
            REGISTRY: tables.replace('    "Old"', '    "New": ("new", "New"),\n    "Old"'),
            "vllm/model_executor/models/new.py": "from .helper import x",
            "vllm/model_executor/models/helper.py": "x = 1",
        },
    )
    known, offered = said_by(head, old), said_by(head, new)
    tables_of = offered.registry.model_copy(update={"architectures": {"New": "new:New", "Old": "old:Old"}})
    offered = offered.model_copy(update={"registry": tables_of})
    planned = plan_graft(known, offered, "New", old, new, "sp-test/augment:old", "sp-test/augment:new", "asked for")
    said: list[str] = []
    image = build(head, old, planned, tmp_path, said.append, new)

    assert image.user == "1000"
    assert image.labels["spark_pipeline.augment.donor"] == new.fingerprint
    assert "2 files were put in, 1 architectures registered" in said
    written = run_in(head, planned.tag, "cat", f"/opt/image/{REGISTRY}")
    assert written.splitlines()[1] == '    "New": ("new", "New"),'
    assert run_in(head, planned.tag, "ls", "/opt/image/vllm/model_executor/models").split() == [
        "helper.py",
        "new.py",
        "registry.py",
    ]
    discard(head, planned.tag)
