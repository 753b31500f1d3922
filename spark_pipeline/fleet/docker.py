"""The Docker Engine of one node, through the same commands that a person would type.

Formats: `docker inspect` prints the Engine API's objects (https://docs.docker.com/reference/api/engine/). Texts of
refusals are those of Docker 20.10 to 29.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_pipeline.errors import DockerUnavailableError, MachineError
from spark_pipeline.fleet.execution import failure
from spark_pipeline.fleet.host import Completed, Host, Words

_ASK_SECONDS = 60.0
_START_SECONDS = 120.0
_REMOVE_SECONDS = 120.0
_NO_ENGINE = ("cannot connect to the docker", "failed to connect to the docker", "is the docker daemon running")
_NO_PROGRAM = re.compile("failed to run command .docker.|docker: (command )?not found")  # of `timeout`, of shells
# What an image is run with. Other keys of `Config` (Hostname, AttachStdin, Image, ...) are leftovers of the classic
# image store that the containerd store does not keep.
_CONFIG_KEYS = (
    *("Env", "Entrypoint", "Cmd", "WorkingDir", "User", "Labels", "ExposedPorts"),
    *("Volumes", "StopSignal", "Shell", "Healthcheck", "OnBuild"),
)


@dataclass(frozen=True)
class ImageFacts:
    """An image as a node holds it.

    Args:
        reference: what was asked for.
        image_id: 'sha256:...'; differs between image stores for equal images, so it is no identity across nodes.
        architecture: as the image says it: 'arm64', 'amd64'.
        layers: diff ids, lowest first.
        repo_digests: 'repo@sha256:...'; lost when an image travels by save and load.
        config_json: what the image is run with, in one spelling for every image store.
    """

    reference: str
    image_id: str
    architecture: str
    os: str
    layers: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size_bytes: int
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    working_dir: str
    user: str
    labels: Mapping[str, str]
    config_json: str

    @property
    def fingerprint(self) -> str:
        """64 hex digits; equal on two nodes exactly when the same code would run in the same way."""
        identity = json.dumps([self.os, self.architecture, self.layers, self.config_json])
        return hashlib.sha256(identity.encode()).hexdigest()


@dataclass(frozen=True)
class Container:
    """A container as its node sees it.

    Args:
        state: 'created', 'running', 'paused', 'restarting', 'removing', 'exited' or 'dead'.
        exit_code: of the last end; None while it has not ended.
        started_at: the engine's own text, '0001-01-01T00:00:00Z' before the first start.
    """

    node: str
    name: str
    container_id: str
    image_id: str
    labels: Mapping[str, str]
    state: str
    exit_code: int | None
    started_at: str


@dataclass(frozen=True)
class Docker:
    """One node's engine. Keeps nothing, so any number of threads may use it.

    Every method raises DockerUnavailableError when there is no engine, or no right to use it.
    """

    host: Host

    def version(self) -> str:
        """Version of the engine (not of the client)."""
        return self._docker("version", "--format", "{{.Server.Version}}").stdout.strip()

    def image(self, reference: str) -> ImageFacts | None:
        """An image that the node holds, None when it does not. Nothing is pulled."""
        done = self._docker("image", "inspect", "--format", "{{json .}}", reference, check=False)
        if done.status == 0:
            return parse_image(reference, done.stdout)
        if "no such image" in done.stderr.lower():
            return None
        raise failure(self.host.name, done)

    def containers(self, labels: Mapping[str, str]) -> tuple[Container, ...]:
        """All containers, running or not, that carry all these labels; an empty value asks for the label's presence."""
        filters = [f"label={key}={value}" if value else f"label={key}" for key, value in labels.items()]
        words = [word for one in filters for word in ("--filter", one)]
        ids = self._docker("ps", "--all", "--quiet", "--no-trunc", *words).stdout.split()
        return self._inspect(ids) if ids else ()

    def container(self, name: str) -> Container | None:
        """The container of this name, running or not; None when there is none."""
        found = self._inspect([name])
        return found[0] if found else None

    def start(self, argv: Words, *, timeout: float = _START_SECONDS) -> str:
        """Run a prepared `docker run --detach ...`; the new container's id.

        Raises:
            CommandFailedError: it does not start. The container may be left in state 'created'.
        """
        return self._checked(argv, timeout=timeout).stdout.split()[-1]

    def exec(
        self, name: str, argv: Words, *, input: str | bytes | None = None, timeout: float, check: bool = True
    ) -> Completed:
        """Run a command in a running container, in `/`: images may name a work directory that does not exist.

        Ending it (a time-out, Ctrl-C) ends `docker exec`, not what it started in the container: give long commands
        their own end, such as `timeout 600 ...`.
        """
        done = self._run(exec_command(name, argv, interactive=input is not None), input=input, timeout=timeout)
        if check and done.status != 0:
            raise failure(self.host.name, done)
        return done

    def remove(self, names: Iterable[str]) -> None:
        """Remove containers, running or not, and see them gone; one that is not there is gone already.

        Raises:
            MachineError: a container is still there.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return
        done = self._docker("rm", "--force", "--volumes", *wanted, check=False, timeout=_REMOVE_SECONDS)
        end = time.monotonic() + _REMOVE_SECONDS / 4  # a removal that is already under way is somebody else's
        while left := self._inspect(wanted):
            if time.monotonic() > end:
                raise MachineError(
                    f"containers are still there after docker rm: {', '.join(item.name for item in left)}",
                    node=self.host.name,
                    observed=done.stderr or f"state {', '.join(item.state for item in left)}",
                    remedy=f"docker rm -f {' '.join(item.name for item in left)}; if it hangs, restart the engine",
                )
            time.sleep(0.5)

    def logs(self, name: str, tail_lines: int) -> str:
        """The last lines that a container printed, both streams as they came."""
        script = 'exec docker logs --tail "$1" "$2" 2>&1'
        done = self.host.run(["sh", "-c", script, "sh", str(tail_lines), name], timeout=_ASK_SECONDS, check=False)
        if done.status != 0:
            said = Completed(done.argv, done.status, "", done.stdout + done.stderr, done.seconds)
            raise self._unavailable(said) or failure(self.host.name, said)
        return done.stdout

    def _inspect(self, names: list[str]) -> tuple[Container, ...]:
        """Those of the containers that exist."""
        done = self._docker("container", "inspect", "--format", "{{json .}}", *names, check=False)
        if done.status != 0 and not all(_says_missing(line) for line in done.stderr.strip().splitlines()):
            raise failure(self.host.name, done)
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        return tuple(parse_container(self.host.name, line) for line in lines)

    def _docker(self, *words: str, check: bool = True, timeout: float = _ASK_SECONDS) -> Completed:
        argv = ("docker", *words)
        return self._checked(argv, timeout=timeout) if check else self._run(argv, timeout=timeout)

    def _checked(self, argv: Words, *, timeout: float) -> Completed:
        done = self._run(argv, timeout=timeout)
        if done.status != 0:
            raise failure(self.host.name, done)
        return done

    def _run(self, argv: Words, *, input: str | bytes | None = None, timeout: float) -> Completed:
        done = self.host.run(argv, input=input, timeout=timeout, check=False)
        if done.status != 0 and (error := self._unavailable(done)):
            raise error
        return done

    def _unavailable(self, done: Completed) -> DockerUnavailableError | None:
        """The engine's absence, told from a refusal of what was asked."""
        said = done.stderr.lower()
        if "permission denied" in said and ("docker daemon" in said or "docker api" in said or "docker.sock" in said):
            what = "the login user may not use the Docker Engine"
            remedy = 'sudo usermod -aG docker "$USER" on the node, then log in anew (a running login keeps its groups)'
        elif any(text in said for text in _NO_ENGINE):
            what = "the Docker Engine does not run"
            remedy = "sudo systemctl enable --now docker; if it does not stay up: journalctl -u docker -n 50"
        elif done.status == 127 and _NO_PROGRAM.search(said):
            what = "there is no program `docker`"
            remedy = "install Docker Engine (docker.io or docker-ce); DGX OS brings it along"
        else:
            return None
        return DockerUnavailableError(what, node=self.host.name, observed=done.stderr.strip()[-500:], remedy=remedy)


def exec_command(name: str, argv: Words, *, interactive: bool = False) -> tuple[str, ...]:
    """`docker exec`, for those who stream it themselves."""
    return ("docker", "exec", *(("-i",) if interactive else ()), "-w", "/", name, *argv)


def parse_image(reference: str, text: str) -> ImageFacts:
    """An image from the JSON of `docker image inspect`."""
    raw = json.loads(text)
    config = raw.get("Config") or {}
    normal = {key: config[key] for key in _CONFIG_KEYS if config.get(key)}
    return ImageFacts(
        reference=reference,
        image_id=raw["Id"],
        architecture=raw["Architecture"],
        os=raw["Os"],
        layers=tuple((raw.get("RootFS") or {}).get("Layers") or ()),
        repo_digests=tuple(raw.get("RepoDigests") or ()),
        size_bytes=int(raw.get("Size") or 0),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        environment=dict(item.partition("=")[::2] for item in config.get("Env") or ()),
        working_dir=config.get("WorkingDir") or "",
        user=config.get("User") or "",
        labels=dict(config.get("Labels") or {}),
        config_json=json.dumps(normal, sort_keys=True, separators=(",", ":")),
    )


def parse_container(node: str, text: str) -> Container:
    """A container from the JSON of `docker container inspect`."""
    raw = json.loads(text)
    state = raw["State"]
    ended = state["Status"] in ("exited", "dead")
    return Container(
        node=node,
        name=raw["Name"].removeprefix("/"),
        container_id=raw["Id"],
        image_id=raw["Image"],
        labels=dict(raw["Config"].get("Labels") or {}),
        state=state["Status"],
        exit_code=int(state["ExitCode"]) if ended else None,
        started_at=state.get("StartedAt") or "",
    )


def _says_missing(line: str) -> bool:
    return "no such container" in line.lower() or "no such object" in line.lower()
