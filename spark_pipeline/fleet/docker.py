"""The Docker Engine of one node, through the same commands that a person would type.

The texts of refusals are those of Docker 20.10 to 29.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_pipeline.errors import DockerUnavailableError, MachineError
from spark_pipeline.fleet.docker_objects import Container, ImageFacts, parse_container, parse_image
from spark_pipeline.fleet.failures import failure
from spark_pipeline.fleet.host import Completed, Host, Words

_ASK_SECONDS = 60.0
_START_SECONDS = 120.0
_REMOVE_SECONDS = 120.0
_REMOVE_PAUSE_SECONDS = 0.5
_NO_ENGINE = ("cannot connect to the docker", "failed to connect to the docker", "is the docker daemon running")
_NO_PROGRAM = re.compile("failed to run command .docker.|docker: (command )?not found")  # of `timeout`, of shells


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
        end = time.monotonic() + _REMOVE_SECONDS
        while wanted:
            # Again and again: the engine waits 10 s for a killed container, then gives up ("did not receive an exit
            # event") and does not come back to it. A big engine takes longer to give its memory back.
            done = self._docker("rm", "--force", "--volumes", *wanted, check=False, timeout=_REMOVE_SECONDS)
            if not (left := self._inspect(wanted)):
                return
            if time.monotonic() > end:
                raise MachineError(
                    f"containers are still there after docker rm: {', '.join(item.name for item in left)}",
                    node=self.host.name,
                    observed=done.stderr or f"state {', '.join(item.state for item in left)}",
                    remedy=f"docker rm -f {' '.join(item.name for item in left)}; if it hangs, restart the engine",
                )
            wanted = [item.name for item in left]
            time.sleep(_REMOVE_PAUSE_SECONDS)

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


def _says_missing(line: str) -> bool:
    return "no such container" in line.lower() or "no such object" in line.lower()


__all__ = ["Container", "Docker", "ImageFacts", "exec_command"]
