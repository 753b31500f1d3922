"""Asking an image: once, in a container that is always gone afterwards, and what is said when it cannot answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_pipeline.errors import CommandTimeoutError, ImageError, UnreachableError
from spark_pipeline.image import inspect_program, probe_program
from spark_pipeline.image.facts import cached, probe, probe_command, shown_command
from spark_pipeline.image.reading import read_answer
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.unit.image.samples import ENGINE, image

RUN = ("docker", "run", ...)
QWEN3, MOE = Wanted(("Qwen3ForCausalLM",)), Wanted(("Qwen3MoeForCausalLM",))


def answer(**changes: object) -> str:
    facts = {
        "pythons": [{"executable": "/opt/venv/bin/python3", "version": "3.11.2", "vllm_directory": "/opt/vllm"}],
        "programs": {name: f"/usr/bin/{name}" for name in ("python3", "vllm", "ray")},
        "packages": {"ray": "2.53.0", "torch": "2.13.0+cpu", "transformers": "5.17.0"},
        "installed_as": "distribution",
        "version": "0.32.0",
        "requirements": ["transformers<5.20.0,>=5.16.1"],
        "cuda": None,
        "nccl": None,
        "has_ray_package": True,
        "supports_nnodes": True,
        "texts": {
            "registry": '_VLLM_MODELS = {"Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM")}',
            **dict.fromkeys(("vllm_config", "auto_mappings", "configuration_auto"), ""),
        },
        **changes,
    }
    return probe_program.MARKER + json.dumps(facts) + "\n"


def inspected(name: str, **changes: object) -> str:
    said = {"architecture": name, "registered": True, "inspected": True, "seconds": 12.5, **changes}
    return inspect_program.INSPECTION_MARKER + json.dumps(said) + "\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {}, {}, {})


def test_whatever_else_an_image_prints_does_not_matter() -> None:
    text = f"WARNING: no GPU\n{{}}\n{answer()}\nbye"
    assert read_answer(text, reference="engine:1", architecture="amd64").engine == ENGINE


@pytest.mark.parametrize("text", ["Welcome to the engine!", probe_program.MARKER + '{"pythons": WARNING'])
def test_no_answer_is_an_error_with_what_was_printed(text: str) -> None:
    with pytest.raises(ImageError) as caught:
        read_answer(text, reference="engine:1", architecture="amd64")
    assert caught.value.observed == text


def test_the_container_has_no_entrypoint_of_the_image_no_network_and_no_gpu() -> None:
    argv = probe_command("engine:1", "sp-probe-1")
    assert argv[: argv.index("engine:1")] == (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none", "--name", "sp-probe-1"),
        *("--label", "spark_pipeline.probe=1", "-w", "/", "--entrypoint", "python3"),
    )


def test_a_plan_shows_the_programs_by_their_names() -> None:
    shown = shown_command(probe_command("engine:1", "sp-probe", ("Qwen3ForCausalLM",)))
    assert shown.endswith(
        "engine:1 -c 'import sys; exec(sys.argv[1])' \"$(cat spark_pipeline/image/probe_program.py)\" "
        '"$(cat spark_pipeline/image/inspect_program.py)" 300 Qwen3ForCausalLM'
    )


# --- once


def test_an_image_is_asked_once(project: Project) -> None:
    head = ScriptedHost().on(*RUN, stdout=answer())
    first = probe(head, image(), project, print)
    second = probe(head, image(), project, print)
    assert first == second == cached(project, image().fingerprint)
    assert first.answer.engine == ENGINE
    assert len(head.commands) == 1


def test_facts_and_inspection_are_asked_in_one_container(project: Project) -> None:
    head = ScriptedHost().on(*RUN, stdout=answer() + inspected("Qwen3ForCausalLM"))
    result = probe(head, image(), project, print, QWEN3)
    assert result.inspections["Qwen3ForCausalLM"].inspected
    assert probe(head, image(), project, print, QWEN3) == result
    assert probe(head, image(), project, print) == result
    assert len(head.commands) == 1


def test_another_architecture_is_asked_alone_of_the_python_that_has_vllm(project: Project) -> None:
    head = ScriptedHost().on(*RUN, stdout=answer() + inspected("Qwen3ForCausalLM"))
    head.on(
        *RUN,
        "--entrypoint",
        "/opt/venv/bin/python3",
        ...,
        "Qwen3MoeForCausalLM",
        stdout=inspected("Qwen3MoeForCausalLM"),
    )
    probe(head, image(), project, print, QWEN3)
    result = probe(head, image(), project, print, MOE)
    assert set(result.inspections) == {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}
    assert probe(head, image(), project, print, Wanted((*QWEN3.architectures, *MOE.architectures))) == result
    programs = [Path(str(module.__file__)).read_text("utf-8") for module in (probe_program, inspect_program)]
    assert [program in head.commands[1] for program in programs] == [False, True]


def test_an_inspection_that_came_to_no_end_is_asked_again(project: Project) -> None:
    problem = {"problem": "importing vLLM did not end within 300 s", "noise": "loading"}
    head = ScriptedHost().on(*RUN, stdout=answer() + inspect_program.INSPECTION_MARKER + json.dumps(problem))
    found = probe(head, image(), project, print, QWEN3).inspections["Qwen3ForCausalLM"]
    assert (found.inspected, found.inconclusive, found.traceback) == (None, problem["problem"], problem["noise"])
    head.on(*RUN, stdout=inspected("Qwen3ForCausalLM"))
    assert probe(head, image(), project, print, QWEN3).inspections["Qwen3ForCausalLM"].inspected


def test_an_answer_of_another_schema_is_asked_for_again(project: Project) -> None:
    probe(ScriptedHost().on(*RUN, stdout=answer()), image(), project, print)
    (file,) = (project.root / "data" / "state" / "images").iterdir()
    file.write_text('{"schema_version": 0}')
    assert cached(project, image().fingerprint) is None
    assert probe(ScriptedHost().on(*RUN, stdout=answer()), image(), project, print).answer.engine == ENGINE


@pytest.mark.parametrize("module", [probe_program, inspect_program])
def test_what_another_version_of_the_probe_found_is_asked_for_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object
) -> None:
    probe(ScriptedHost().on(*RUN, stdout=answer()), image(), project, print)
    changed = tmp_path / "program.py"
    changed.write_text("print('asks more')")
    monkeypatch.setattr(module, "__file__", str(changed))
    assert cached(project, image().fingerprint) is None


# --- images that cannot answer

NO_PYTHON = 'exec: "python3": executable file not found in $PATH'
NO_SHELL = 'exec: "sh": executable file not found in $PATH'


def refused(project: Project, head: ScriptedHost) -> ImageError:
    with pytest.raises(ImageError) as caught:
        probe(head, image(), project, print)
    assert caught.value.node == "head"
    assert cached(project, image().fingerprint) is None
    return caught.value


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (1, "standard_init_linux.go: exec format error", "architecture of head"),
        (125, "docker: Error response from daemon: cgroup", "docker run --rm"),
    ],
)
def test_an_image_that_cannot_run_python_says_what_to_do(project: Project, status: int, said: str, remedy: str) -> None:
    error = refused(project, ScriptedHost().on(*RUN, status=status, stderr=said))
    assert said in error.observed
    assert remedy in error.remedy


@pytest.mark.parametrize("second", [NO_SHELL, "no python3 in any of the usual places"])
def test_an_image_without_python_says_what_to_do(project: Project, second: str) -> None:
    head = ScriptedHost().on(*RUN, status=127, stderr=NO_PYTHON).on(*RUN, status=127, stderr=second)
    error = refused(project, head)
    assert error.observed == f"status 127: {NO_PYTHON if second is NO_SHELL else second}"
    assert "python3 on its PATH" in error.remedy


def test_a_python_that_is_not_on_the_path_is_looked_for_through_a_shell(project: Project) -> None:
    head = ScriptedHost().on(*RUN, status=127, stderr=NO_PYTHON).on(*RUN, "--entrypoint", "sh", ..., stdout=answer())
    assert probe(head, image(), project, print).answer.engine == ENGINE
    assert head.commands[1][-3:] == head.commands[0][-3:]  # the same programs


def removed(head: ScriptedHost) -> str:
    """The container that was removed."""
    head.finish()
    name = head.commands[0][head.commands[0].index("--name") + 1]
    assert name in head.commands[1]
    return name


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (CommandTimeoutError("it did not end", node="head"), ImageError),
        (UnreachableError("the connection broke", node="head"), UnreachableError),
    ],
)
def test_a_container_that_does_not_end_is_removed(project: Project, failure: Exception, told: type[Exception]) -> None:
    head = ScriptedHost()
    head.on(*RUN, error=failure)
    head.on("docker", "rm", "--force", ...).on(
        "docker", "container", "inspect", ..., status=1, stderr="No such container"
    )
    with pytest.raises(told):
        probe(head, image(), project, print)
    assert removed(head).startswith("sp-probe-")
    assert cached(project, image().fingerprint) is None
