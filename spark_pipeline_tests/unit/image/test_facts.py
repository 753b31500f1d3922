"""Asking an image: once, in a container that is always gone afterwards, and what is said when it cannot answer."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from spark_pipeline.errors import CommandTimeoutError, ImageError, ImageSilentError, UnreachableError
from spark_pipeline.image import facts, inspect_program, probe_program
from spark_pipeline.image.facts import LABEL, cached, probe, probe_command
from spark_pipeline.image.reading import read_answer
from spark_pipeline.image.verdict import Wanted
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.doubles import Pattern, ScriptedHost
from spark_pipeline_tests.unit.image.samples import ENGINE, image

RUN: Pattern = ("docker", "run", ...)
LEFT: Pattern = ("docker", "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}")
QWEN3, MOE = Wanted(("Qwen3ForCausalLM",)), Wanted(("Qwen3MoeForCausalLM",))


def answer(**changes: object) -> str:
    said = {
        "kind": "engine",
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
    return probe_program.MARKER + json.dumps(said) + "\n"


def event(kind: str, **told: object) -> str:
    return inspect_program.MARKER + json.dumps({"kind": kind, **told}) + "\n"


def inspected(name: str) -> str:
    return event("registered", architectures=[name]) + event("inspected", architecture=name, seconds=12.5)


def failed(name: str, text: str, status: int | None) -> str:
    failure = {"text": text, "status": status}
    return event("registered", architectures=[name]) + event(
        "inspection_failed", architecture=name, failure=failure, seconds=1.0
    )


def machine() -> ScriptedHost:
    """A head on which no probe was left."""
    return ScriptedHost().on(*LEFT, times=None)


def runs(head: ScriptedHost) -> list[tuple[str, ...]]:
    """The containers that were started."""
    return [argv for argv in head.commands if argv[:2] == ("docker", "run")]


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


def test_a_line_with_other_keys_than_its_kind_has_is_no_answer() -> None:
    with pytest.raises(ImageError, match="did not say"):
        read_answer(answer(more=1), reference="engine:1", architecture="amd64")


def test_the_container_has_no_entrypoint_of_the_image_no_network_and_no_gpu_and_ends_before_what_serves() -> None:
    argv = probe_command("engine:1", "sp-probe-1", until=1796000000)
    assert argv[: argv.index("engine:1")] == (
        *("docker", "run", "--rm", "--pull", "never", "--network", "none"),
        *("--memory", "8g", "--memory-swap", "8g", "--oom-score-adj", "1000", "--name", "sp-probe-1"),
        *("--label", "spark_pipeline.probe=1796000000", "-w", "/", "--entrypoint", "python3"),
    )


# --- once


def test_an_image_is_asked_once(project: Project) -> None:
    head = machine().on(*RUN, stdout=answer())
    first = probe(head, image(), project, print)
    second = probe(head, image(), project, print)
    assert first == second == cached(project, image().fingerprint)
    assert first.answer.engine == ENGINE
    assert len(runs(head)) == 1


def test_facts_and_inspection_are_asked_in_one_container(project: Project) -> None:
    head = machine().on(*RUN, stdout=answer() + inspected("Qwen3ForCausalLM"))
    result = probe(head, image(), project, print, QWEN3)
    assert result.inspections["Qwen3ForCausalLM"].inspected
    assert probe(head, image(), project, print, QWEN3) == result
    assert probe(head, image(), project, print) == result
    assert len(runs(head)) == 1


def test_another_architecture_is_asked_alone_of_the_python_that_has_vllm(project: Project) -> None:
    head = machine().on(*RUN, stdout=answer() + inspected("Qwen3ForCausalLM"))
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
    assert [program in runs(head)[1] for program in programs] == [False, True]


ENDED = event("ended", step="importing vLLM", status=None, limit_seconds=300.0, log="loading")
NOT_FINAL = {
    "too slow": (ENDED, "importing vLLM did not end within 300 s"),
    "killed": (failed("Qwen3ForCausalLM", "Error raised in subprocess:\nWARNING: x\n", -9), "SIGKILL"),
    "no room": (failed("Qwen3ForCausalLM", "Traceback (most recent call last):\n  x\nMemoryError", 1), "MemoryError"),
    "nothing said": ("", "the container was ended before vLLM answered"),
}


@pytest.mark.parametrize("name", NOT_FINAL)
@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_an_inspection_that_says_nothing_this_time_is_asked_again(
    project: Project, name: str, cuda: str | None
) -> None:
    said, why = NOT_FINAL[name]
    head = machine().on(*RUN, stdout=answer(cuda=cuda) + said)
    found = probe(head, image(), project, print, QWEN3).inspections["Qwen3ForCausalLM"]
    assert found.inspected is None
    assert why in found.inconclusive
    kept = cached(project, image().fingerprint)
    assert kept is not None
    assert kept.inspections == {}
    head.on(*RUN, stdout=inspected("Qwen3ForCausalLM"))
    assert probe(head, image(), project, print, QWEN3).inspections["Qwen3ForCausalLM"].inspected


NO_GPU = "Traceback (most recent call last):\n  x\nRuntimeError: No CUDA GPUs are available"
UNKNOWN = "Traceback (most recent call last):\n  x\nKeyError: 'sm_121'"


@pytest.mark.parametrize(("text", "cuda"), [(NO_GPU, None), (NO_GPU, "13.0"), (UNKNOWN, "13.0")])
def test_an_inspection_that_would_say_nothing_without_a_gpu_is_not_asked_again(
    project: Project, text: str, cuda: str | None
) -> None:
    head = machine().on(*RUN, stdout=answer(cuda=cuda) + failed("Qwen3ForCausalLM", text, 1))
    first = probe(head, image(), project, print, QWEN3)
    assert first.inspections["Qwen3ForCausalLM"].inspected is None
    assert probe(head, image(), project, print, QWEN3) == first
    assert len(runs(head)) == 1


def test_an_error_that_need_not_be_the_gpus_is_one_of_an_image_for_processors(project: Project) -> None:
    head = machine().on(*RUN, stdout=answer() + failed("Qwen3ForCausalLM", UNKNOWN, 1))
    assert probe(head, image(), project, print, QWEN3).inspections["Qwen3ForCausalLM"].inspected is False


@pytest.mark.parametrize("mine", ["", inspected("Qwen3ForCausalLM")])
def test_what_another_run_asked_meanwhile_is_kept(project: Project, mine: str) -> None:
    probe(machine().on(*RUN, stdout=answer()), image(), project, print)

    class Slow(ScriptedHost):
        def run(self, argv, **how):  # type: ignore[no-untyped-def]
            done = super().run(argv, **how)
            if "Qwen3ForCausalLM" in argv:
                other = machine().on(*RUN, stdout=inspected("Qwen3ForCausalLM") + inspected("Qwen3MoeForCausalLM"))
                probe(other, image(), project, print, Wanted((*QWEN3.architectures, *MOE.architectures)))
            return done

    probe(Slow().on(*LEFT).on(*RUN, stdout=mine), image(), project, print, QWEN3)
    kept = cached(project, image().fingerprint)
    assert kept is not None
    assert set(kept.inspections) == {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}


def test_an_answer_of_another_schema_is_asked_for_again(project: Project) -> None:
    probe(machine().on(*RUN, stdout=answer()), image(), project, print)
    (file,) = (project.root / "data" / "state" / "images").iterdir()
    file.write_text('{"schema_version": 0}')
    assert cached(project, image().fingerprint) is None
    assert probe(machine().on(*RUN, stdout=answer()), image(), project, print).answer.engine == ENGINE


def test_what_another_version_of_the_probe_found_is_asked_for_again_and_goes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(machine().on(*RUN, stdout=answer()), image(), project, print)
    folder = project.root / "data" / "state" / "images"
    (before,) = folder.iterdir()
    others = folder / "another-v1.json"
    others.write_text("{}")
    for old in ("", "-0123abcd"):
        (folder / f"{image().fingerprint}{old}.json").write_text("{}")
    monkeypatch.setattr(facts, "PROBE_VERSION", facts.PROBE_VERSION + 1)
    assert cached(project, image().fingerprint) is None
    probe(machine().on(*RUN, stdout=answer()), image(), project, print)
    now = set(folder.iterdir())
    assert before not in now
    assert now == {others, facts._file(project, image().fingerprint)}


def test_a_comment_in_the_probe_asks_no_image_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(machine().on(*RUN, stdout=answer()), image(), project, print)
    changed = tmp_path / "program.py"
    changed.write_text(Path(str(probe_program.__file__)).read_text("utf-8") + "# more\n")
    monkeypatch.setattr(probe_program, "__file__", str(changed))
    assert cached(project, image().fingerprint) is not None


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
        (1, "Fatal Python error: init_fs_encoding", "docker run --rm"),
        (139, "Segmentation fault", "docker run --rm"),
    ],
)
def test_an_image_that_cannot_run_python_says_what_to_do(project: Project, status: int, said: str, remedy: str) -> None:
    error = refused(project, machine().on(*RUN, status=status, stderr=said))
    assert not isinstance(error, ImageSilentError)
    assert said in error.observed
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (125, "docker: Error response from daemon: cgroup", "docker run --rm"),
        (137, "", "8g"),
        (143, "", "make room"),
        (1, "OSError: [Errno 28] No space left on device", "df -h"),
        (1, "Traceback (most recent call last):\n  x\nMemoryError", "free -h"),
        (125, "docker: Error response from daemon: mkdir /var/lib/docker/x: no space left on device.", "on head"),
    ],
)
def test_a_node_that_lacks_something_says_nothing_about_the_image(
    project: Project, status: int, said: str, remedy: str
) -> None:
    error = refused(project, machine().on(*RUN, status=status, stderr=said))
    assert isinstance(error, ImageSilentError)
    assert error.observed == f"status {status}: {said or 'it printed nothing'}"
    assert remedy in error.remedy


def test_what_a_container_said_before_it_was_killed_is_true(project: Project) -> None:
    head = machine().on(*RUN, status=137, stdout=answer())
    found = probe(head, image(), project, print, QWEN3)
    assert found.answer.engine == ENGINE
    assert not found.inspections["Qwen3ForCausalLM"].final
    head.on(*RUN, status=137)  # asked about its vLLM only
    again = probe(head, image(), project, print, QWEN3)
    assert again.inspections["Qwen3ForCausalLM"].inconclusive == "the container was ended before vLLM answered"


@pytest.mark.parametrize("second", [NO_SHELL, "no python3 in any of the usual places"])
def test_an_image_without_python_says_what_to_do(project: Project, second: str) -> None:
    head = machine().on(*RUN, status=127, stderr=NO_PYTHON).on(*RUN, status=127, stderr=second)
    error = refused(project, head)
    assert not isinstance(error, ImageSilentError)
    assert error.observed == f"status 127: {NO_PYTHON if second is NO_SHELL else second}"
    assert "python3 on its PATH" in error.remedy


def test_a_python_that_is_not_on_the_path_is_looked_for_through_a_shell(project: Project) -> None:
    head = machine().on(*RUN, status=127, stderr=NO_PYTHON).on(*RUN, "--entrypoint", "sh", ..., stdout=answer())
    assert probe(head, image(), project, print).answer.engine == ENGINE
    assert runs(head)[1][-3:] == runs(head)[0][-3:]  # the same programs


def removed(head: ScriptedHost) -> str:
    """The container that was removed."""
    head.finish()
    (run,) = runs(head)
    name = run[run.index("--name") + 1]
    assert head.commands[-2] == ("docker", "rm", "--force", "--volumes", name)
    return name


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (CommandTimeoutError("it did not end", node="head"), ImageSilentError),
        (UnreachableError("the connection broke", node="head"), UnreachableError),
    ],
)
def test_a_container_that_does_not_end_is_removed(project: Project, failure: Exception, told: type[Exception]) -> None:
    head = machine().on(*RUN, error=failure)
    head.on("docker", "rm", "--force", ...).on(
        "docker", "container", "inspect", ..., status=1, stderr="No such container"
    )
    with pytest.raises(told):
        probe(head, image(), project, print)
    assert removed(head).startswith("sp-probe-")
    assert cached(project, image().fingerprint) is None


def test_why_an_image_did_not_answer_is_not_hidden_by_a_removal_that_fails(project: Project) -> None:
    head = machine().on(*RUN, error=CommandTimeoutError("it did not end", node="head"))
    head.on("docker", "rm", ..., error=UnreachableError("the connection broke", node="head"))
    with pytest.raises(ImageSilentError, match="does not answer") as caught:
        probe(head, image(), project, print)
    assert "the connection broke" in str(caught.value)


# --- containers that a dead orchestrator left


def container(name: str, until: str) -> str:
    state = {"Status": "running", "ExitCode": 0, "StartedAt": ""}
    return json.dumps(
        {"Name": f"/{name}", "Id": name, "Image": "i", "State": state, "Config": {"Labels": {LABEL: until}}}
    )


def test_a_probe_that_nobody_waits_for_is_removed_and_one_in_use_is_not(project: Project) -> None:
    now = int(time.time())
    there = [container("left", str(now - 5)), container("in-use", str(now + 900)), container("odd", "x")]
    inspect = ("docker", "container", "inspect", "--format", "{{json .}}")
    head = ScriptedHost().on(*LEFT, stdout="left\nin-use\nodd\n").on(*RUN, stdout=answer())
    head.on(*inspect, "left", "in-use", "odd", stdout="\n".join(there))
    head.on("docker", "rm", "--force", "--volumes", "left")
    head.on(*inspect, "left", status=1, stderr="Error: No such container: left")
    lines: list[str] = []
    probe(head, image(), project, lines.append)
    head.finish()
    assert "removing left on head: a probe that nobody waits for any more" in lines


def test_one_that_cannot_be_removed_is_told_and_keeps_no_image_from_being_asked(project: Project) -> None:
    head = ScriptedHost().on(*LEFT, stdout="left\n").on(*RUN, stdout=answer())
    head.on("docker", "container", "inspect", ..., stdout=container("left", "1"))
    head.on("docker", "rm", ..., error=UnreachableError("the connection broke", node="head"))
    lines: list[str] = []
    assert probe(head, image(), project, lines.append).answer.engine == ENGINE
    assert any("the connection broke" in line for line in lines)


def test_a_label_says_until_when_the_container_is_in_use(project: Project) -> None:
    head = machine().on(*RUN, stdout=answer() + inspected("Qwen3ForCausalLM"))
    probe(head, image(), project, print, QWEN3)
    (run,) = runs(head)
    until = int(run[run.index("--label") + 1].partition("=")[2])
    assert until - time.time() > 900  # importing, inspecting, starting: 300 s each


def test_nothing_is_asked_of_the_node_when_the_answer_is_known(project: Project) -> None:
    probe(machine().on(*RUN, stdout=answer()), image(), project, print)
    assert probe(ScriptedHost(), image(), project, print).answer.engine == ENGINE
