"""Services on the host, for the nodes: the hub and the registry."""

from __future__ import annotations

import hashlib
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import spark_pipeline
from spark_pipeline.errors import LabError
from spark_pipeline.lab.packages import registry_program
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import LabPlan
from spark_pipeline.lab.processes import read_pid_file, start_detached, tail

READY_LIMIT_S = 30

_REGISTRY_CONFIG = """\
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {folder}}}
  delete: {{enabled: true}}
http: {{addr: "{address}"}}
"""


@dataclass(frozen=True)
class Service:
    """A process of ours that answers HTTP.

    Args:
        ready_url: any answer below 500 counts.
        version: of its program; one that runs an older one is replaced, as the lab outlives a `git pull`.
    """

    name: str
    argv: tuple[str, ...]
    port: int
    ready_url: str
    run_folder: Path
    version: str = ""

    @property
    def pid_file(self) -> Path:
        """Where its process is noted."""
        return self.run_folder / f"{self.name}.pid"

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.run_folder / f"{self.name}.log"

    @property
    def _is_current(self) -> bool:
        """Whether what runs was started from this very program."""
        try:
            return self._version_file.read_text() == self.version
        except FileNotFoundError:
            return not self.version

    @property
    def _version_file(self) -> Path:
        return self.run_folder / f"{self.name}.version"

    @property
    def answers(self) -> bool:
        """Whether our process runs and answers; somebody else's on the same port, or an older program's, does not
        count."""
        return read_pid_file(self.pid_file) is not None and self._is_current and self._get()

    def _get(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy knows no lab addresses
        try:
            with direct.open(self.ready_url, timeout=2):
                return True
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False

    def start(self) -> None:
        """Start it unless it answers; one that does not answer, or runs an older program, is replaced.

        Raises:
            LabError: it ended, or did not answer in time; with the end of its log.
        """
        if self.answers:
            return
        self.stop()
        if self._get():
            raise LabError(
                f"another process answers where the {self.name} should", observed=self.ready_url, remedy=self._who
            )
        self.log.unlink(missing_ok=True)
        # From the folder above the package: `-m spark_pipeline...` is found there without being installed.
        above = Path(spark_pipeline.__file__).parent.parent
        self._version_file.write_text(self.version)
        process = start_detached(self.argv, pid_file=self.pid_file, log=self.log, cwd=above)
        deadline = time.monotonic() + READY_LIMIT_S
        while not self._get():
            if not process.alive or time.monotonic() > deadline:
                ended = "does not answer" if process.alive else "ended"
                self.stop()
                raise LabError(
                    f"the {self.name} {ended}",
                    observed=f"{self.ready_url}\n{tail(self.log)}",
                    remedy=self._who,
                )
            time.sleep(0.05)

    @property
    def _who(self) -> str:
        return f"see what uses the port, and end it: ss -ltnp 'sport = :{self.port}'"

    def stop(self) -> None:
        """End it and wait until it is gone."""
        process = read_pid_file(self.pid_file)
        if process and not process.end(wait_s=5):
            raise LabError(f"the {self.name} does not end", observed=f"pid {process.pid}")
        self.pid_file.unlink(missing_ok=True)
        self._version_file.unlink(missing_ok=True)


def services(plan: LabPlan, paths: LabPaths) -> tuple[Service, Service]:
    """Hub and registry, both on the management bridge only."""
    host = str(plan.host_address)
    hub = (sys.executable, "-m", "spark_pipeline.lab.hub_server")
    hub += ("--host", host, "--port", str(plan.hub_port), "--root", str(paths.hub))
    registry = (str(registry_program(paths)), "serve", str(_registry_config(paths)))
    return (
        Service("hub", hub, plan.hub_port, f"{plan.hub_url}/", paths.run, _hub_version()),
        Service("registry", registry, plan.registry_port, f"http://{plan.registry_address}/v2/", paths.run),
    )


def _hub_version() -> str:
    """The hub's program: its modules and nothing else."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("hub_*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _registry_config(paths: LabPaths) -> Path:
    return paths.run / "registry.yml"


def prepare(plan: LabPlan, paths: LabPaths) -> None:
    """Folders and files the services start from."""
    paths.hub.mkdir(parents=True, exist_ok=True)
    paths.registry.mkdir(parents=True, exist_ok=True)
    paths.run.mkdir(parents=True, exist_ok=True)
    _registry_config(paths).write_text(_REGISTRY_CONFIG.format(folder=paths.registry, address=plan.registry_address))
