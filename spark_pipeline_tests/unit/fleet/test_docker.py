from __future__ import annotations

import json

import pytest

from spark_pipeline.errors import CommandFailedError, DockerUnavailableError, MachineError
from spark_pipeline.fleet import docker
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.docker_objects import ImageFacts, parse_image
from spark_pipeline_tests.doubles import ScriptedHost

LAYERS = ["sha256:" + "a" * 64, "sha256:" + "b" * 64]
CONFIG = {
    "Env": ["PATH=/usr/bin", "EMPTY=", "OPTS=a=b"],
    "Cmd": ["serve"],
    "Entrypoint": ["/wrapper.sh"],
    "WorkingDir": "/workspace",
    "User": "",
    "Labels": {"maintainer": "somebody"},
}
# The same image as two stores describe it: the classic one keeps leftovers of `docker commit` times.
CLASSIC = {
    "Id": "sha256:" + "1" * 64,
    "RepoTags": ["vllm-node:latest"],
    "RepoDigests": [],
    "Architecture": "arm64",
    "Os": "linux",
    "Size": 3_700_000_000,
    "RootFS": {"Type": "layers", "Layers": LAYERS},
    "Config": {**CONFIG, "Hostname": "", "AttachStdin": False, "Image": "sha256:old", "OnBuild": None, "Volumes": None},
}
CONTAINERD = {
    **CLASSIC,
    "Id": "sha256:" + "2" * 64,
    "Size": 1_200_000_000,
    "RepoDigests": ["vllm-node@sha256:" + "2" * 64],
    "Config": dict(reversed(CONFIG.items())),
}
CONTAINER = {
    "Id": "c" * 64,
    "Name": "/sp-tiny-g1-r0",
    "Image": "sha256:" + "1" * 64,
    "Config": {"Labels": {"spark_pipeline.deployment": "tiny"}},
    "State": {"Status": "running", "ExitCode": 0, "StartedAt": "2026-11-30T10:00:00.5Z"},
}
GONE = "Error: No such container: sp-tiny-g1-r0\n"


def line(value: object) -> str:
    return json.dumps(value) + "\n"


def image(value: object) -> ImageFacts:
    return parse_image("vllm-node", line(value))


# --- images


def test_an_images_facts_are_read() -> None:
    host = ScriptedHost().on("docker", "image", "inspect", ..., "vllm-node", stdout=line(CLASSIC))

    found = Docker(host).image("vllm-node")

    assert found is not None
    assert (found.architecture, found.os, found.size_bytes) == ("arm64", "linux", 3_700_000_000)
    assert (found.entrypoint, found.command, found.working_dir) == (("/wrapper.sh",), ("serve",), "/workspace")
    assert found.environment == {"PATH": "/usr/bin", "EMPTY": "", "OPTS": "a=b"}
    assert found.layers == tuple(LAYERS)


def test_equal_images_have_one_fingerprint_in_every_image_store() -> None:
    assert CLASSIC["Id"] != CONTAINERD["Id"]
    assert image(CLASSIC).fingerprint == image(CONTAINERD).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"RootFS": {"Layers": LAYERS[:1]}},
        {"RootFS": {"Layers": LAYERS[::-1]}},
        {"Architecture": "amd64"},
        {"Config": {**CONFIG, "Entrypoint": None}},
        {"Config": {**CONFIG, "Env": ["PATH=/usr/bin"]}},
        {"Config": {**CONFIG, "User": "1000"}},
    ],
)
def test_whatever_changes_what_runs_changes_the_fingerprint(change: dict[str, object]) -> None:
    assert image({**CLASSIC, **change}).fingerprint != image(CLASSIC).fingerprint


@pytest.mark.parametrize(
    "said", ["Error: No such image: nope", "Error response from daemon: No such image: nope:latest"]
)
def test_an_image_that_is_not_there_is_none(said: str) -> None:
    host = ScriptedHost().on("docker", "image", "inspect", ..., stdout="\n", stderr=said, status=1)

    assert Docker(host).image("nope") is None


def test_any_other_refusal_is_an_error_not_an_absence() -> None:
    host = ScriptedHost().on("docker", "image", ..., stderr="Error response from daemon: i/o error", status=1)

    with pytest.raises(CommandFailedError, match="inspect"):
        Docker(host).image("vllm-node")


# --- the engine is not there


@pytest.mark.parametrize(
    ("said", "status", "what", "remedy"),
    [
        (
            "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
            'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/version": dial unix: connect: permission denied',
            1,
            "may not use",
            "usermod -aG docker",
        ),
        (
            "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
            1,
            "may not use",
            "log in anew",
        ),
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            1,
            "does not run",
            "systemctl",
        ),
        (
            "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct and if "
            "the daemon is running: dial unix /var/run/docker.sock: connect: no such file or directory",
            1,
            "does not run",
            "systemctl",
        ),
        ("timeout: failed to run command ‘docker’: No such file or directory", 127, "no program", "install"),  # noqa: RUF001
        ("sh: 1: docker: not found", 127, "no program", "install"),
    ],
)
def test_why_the_engine_cannot_be_used_is_told_apart(said: str, status: int, what: str, remedy: str) -> None:
    host = ScriptedHost("peer").on("docker", ..., stderr=said, status=status)

    with pytest.raises(DockerUnavailableError, match=what) as caught:
        Docker(host).version()

    assert caught.value.node == "peer"
    assert remedy in caught.value.remedy
    assert said[:40] in caught.value.observed


def test_a_file_without_permission_is_not_taken_for_a_missing_engine() -> None:
    host = ScriptedHost().on("docker", "exec", ..., stderr="cat: /etc/shadow: Permission denied", status=1)

    with pytest.raises(CommandFailedError):
        Docker(host).exec("box", ["cat", "/etc/shadow"], timeout=5)


def test_a_program_missing_in_a_container_is_not_taken_for_a_missing_docker() -> None:
    said = 'OCI runtime exec failed: exec failed: ... exec: "ray": executable file not found in $PATH: unknown'
    host = ScriptedHost().on("docker", "exec", ..., stderr=said, status=127)

    with pytest.raises(CommandFailedError, match="ray"):
        Docker(host).exec("box", ["ray", "status"], timeout=5)


# --- containers


def test_containers_are_found_by_labels_stopped_ones_too() -> None:
    host = ScriptedHost()
    host.on(
        *("docker", "ps", "--all", "--quiet", "--no-trunc"),
        *("--filter", "label=spark_pipeline.deployment=tiny", "--filter", "label=spark_pipeline.rank"),
        stdout="c" * 64 + "\n",
    )
    host.on("docker", "container", "inspect", ..., "c" * 64, stdout=line(CONTAINER))

    (found,) = Docker(host).containers({"spark_pipeline.deployment": "tiny", "spark_pipeline.rank": ""})

    assert (found.node, found.name, found.state) == ("head", "sp-tiny-g1-r0", "running")
    assert found.exit_code is None, "it has not ended"
    assert found.labels == {"spark_pipeline.deployment": "tiny"}


def test_no_container_asks_no_second_question() -> None:
    host = ScriptedHost().on("docker", "ps", ...)

    assert Docker(host).containers({"a": "b"}) == ()
    host.finish()


def test_a_container_that_goes_between_two_questions_is_left_out() -> None:
    host = ScriptedHost().on("docker", "ps", ..., stdout="c1\nc2\n")
    host.on("docker", "container", ..., stdout=line(CONTAINER), stderr="Error: No such container: c2\n", status=1)

    assert len(Docker(host).containers({"a": "b"})) == 1


def test_an_ended_container_keeps_its_status() -> None:
    ended = {**CONTAINER, "State": {"Status": "exited", "ExitCode": 137, "StartedAt": ""}}
    host = ScriptedHost().on("docker", "container", ..., stdout=line(ended))

    found = Docker(host).container("sp-tiny-g1-r0")

    assert found is not None
    assert (found.state, found.exit_code) == ("exited", 137)


def test_a_container_that_is_not_there_is_none() -> None:
    host = ScriptedHost().on("docker", "container", ..., stdout="\n", stderr=GONE, status=1)

    assert Docker(host).container("sp-tiny-g1-r0") is None


def test_starting_gives_the_id_even_after_a_warning() -> None:
    argv = ("docker", "run", "--detach", "vllm-node", "serve")
    host = ScriptedHost().on(*argv, stdout="WARNING: no swap limit support\n" + "c" * 64 + "\n")

    assert Docker(host).start(argv) == "c" * 64


def test_a_command_in_a_container_runs_in_the_root_directory() -> None:
    host = ScriptedHost().on("docker", "exec", "-w", "/", "box", "ls", "a b", stdout="x\n")
    host.on("docker", "exec", "-i", "-w", "/", "box", "cat", stdout="given\n")

    assert Docker(host).exec("box", ["ls", "a b"], timeout=5).stdout == "x\n"
    assert Docker(host).exec("box", ["cat"], input="given\n", timeout=5).stdout == "given\n"
    assert host.inputs == [None, "given\n"]


def test_removing_is_done_when_the_containers_are_seen_gone() -> None:
    host = ScriptedHost().on("docker", "rm", "--force", "--volumes", "sp-tiny-g1-r0", times=2)
    host.on("docker", "container", "inspect", ..., stdout=line(CONTAINER), times=1)
    host.on("docker", "container", "inspect", ..., stderr=GONE, status=1)

    Docker(host).remove(["sp-tiny-g1-r0"])

    host.finish()


def test_a_container_that_is_slow_to_die_is_removed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "_REMOVE_PAUSE_SECONDS", 0.0)
    slow = "Error response from daemon: tried to kill container, but did not receive an exit event"
    host = ScriptedHost().on("docker", "rm", "--force", "--volumes", "other", "sp-tiny-g1-r0", stderr=slow, status=1)
    host.on("docker", "container", "inspect", ..., stdout=line(CONTAINER), stderr=GONE, status=1)
    host.on("docker", "rm", "--force", "--volumes", "sp-tiny-g1-r0", stderr=slow, status=1)
    host.on("docker", "container", "inspect", ..., stdout=line(CONTAINER))
    host.on("docker", "rm", "--force", "--volumes", "sp-tiny-g1-r0")
    host.on("docker", "container", "inspect", ..., stderr=GONE, status=1)

    Docker(host).remove(["other", "sp-tiny-g1-r0"])

    host.finish()


def test_removing_what_is_gone_is_no_error() -> None:
    host = ScriptedHost().on("docker", "rm", ..., stderr=GONE, status=1)
    host.on("docker", "container", ..., stderr=GONE, status=1)

    Docker(host).remove(["sp-tiny-g1-r0"])


def test_removing_nothing_asks_nothing() -> None:
    Docker(ScriptedHost()).remove([])


def test_a_container_that_stays_is_an_error_with_dockers_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "_REMOVE_SECONDS", 0.0)
    host = ScriptedHost().on("docker", "rm", ..., stderr="device or resource busy", status=1)
    host.on("docker", "container", ..., stdout=line(CONTAINER), times=None)
    monkeypatch.setattr(host, "run", lambda argv, **rest: ScriptedHost.run(host, argv, **{**rest, "timeout": 1}))

    with pytest.raises(MachineError, match="still there") as caught:
        Docker(host).remove(["sp-tiny-g1-r0"])

    assert "busy" in caught.value.observed


def test_logs_are_both_streams_together() -> None:
    host = ScriptedHost().on("sh", "-c", ..., "20", "box", stdout="to stdout\nto stderr\n")

    assert Docker(host).logs("box", 20) == "to stdout\nto stderr\n"
    assert "2>&1" in host.commands[0][2]


def test_logs_of_a_missing_container_are_an_error() -> None:
    host = ScriptedHost().on("sh", ..., stdout="Error: No such container: box\n", status=1)

    with pytest.raises(CommandFailedError) as caught:
        Docker(host).logs("box", 20)

    assert "No such container" in caught.value.observed
