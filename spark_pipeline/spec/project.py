"""All declarations together, and where the pipeline's own records lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from spark_pipeline.errors import DeclarationError
from spark_pipeline.spec.base import Declaration
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.spec.fleet import Fleet, Node
from spark_pipeline.spec.load import line_of, load
from spark_pipeline.spec.profile import Profile

D = TypeVar("D", Fleet, Deployment, Profile)


def find_root() -> Path:
    """The project's root: $SPARK_PIPELINE_ROOT, else the nearest parent of the working directory that holds
    data/deployments, else the checkout that this package lies in."""
    if named := os.environ.get("SPARK_PIPELINE_ROOT"):
        return Path(named).resolve()
    here = Path.cwd()
    for directory in (here, *here.parents):
        if (directory / "data" / "deployments").is_dir():
            return directory
    return Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Project:
    """Every declaration, checked by itself and against the others."""

    root: Path
    fleets: dict[str, Fleet]
    deployments: dict[str, Deployment]
    profiles: dict[str, Profile]

    @classmethod
    def load(cls, root: Path | None = None) -> Project:
        """Read data/{fleets,deployments,profiles}/*.yaml below `root`.

        Raises:
            DeclarationError: with every problem of every file, a line each.
        """
        root = root or find_root()
        problems: list[str] = []
        project = cls(
            root=root,
            fleets=_load_all(root / "data" / "fleets", Fleet, problems),
            deployments=_load_all(root / "data" / "deployments", Deployment, problems),
            profiles=_load_all(root / "data" / "profiles", Profile, problems),
        )
        if not problems:
            problems += project._contradictions()
        if problems:
            raise DeclarationError(
                "\n".join(problems), remedy="mend the lines named above, then `spark-pipeline check`"
            )
        return project

    def deployment(self, name: str) -> Deployment:
        """Raises DeclarationError, naming the ones that exist."""
        if name not in self.deployments:
            raise DeclarationError(
                f"no deployment {name!r} in {self.root / 'data' / 'deployments'}",
                remedy=f"one of: {', '.join(sorted(self.deployments)) or 'none is declared'}",
            )
        return self.deployments[name]

    def fleet(self, name: str) -> Fleet:
        """Raises DeclarationError, naming the ones that exist."""
        if name not in self.fleets:
            raise DeclarationError(
                f"no fleet {name!r} in {self.root / 'data' / 'fleets'}",
                remedy=f"one of: {', '.join(sorted(self.fleets)) or 'none is declared'}",
            )
        return self.fleets[name]

    def nodes_of(self, deployment: Deployment) -> tuple[Node, ...]:
        """The nodes that serve it, in rank order: rank r runs on the r-th node of the fleet."""
        return self.fleets[deployment.fleet].nodes[: deployment.parallel.world_size]

    def profiles_of(self, deployment: Deployment) -> tuple[Profile, ...]:
        return tuple(self.profiles[name] for name in deployment.benchmark.profiles)

    @cached_property
    def known_hosts(self) -> Path:
        """The pipeline's own pinned host keys; the user's ~/.ssh/known_hosts is never read nor written."""
        return self.root / "data" / "state" / "known_hosts"

    def state_dir(self, deployment: str) -> Path:
        return self.root / "data" / "state" / deployment

    def benchmarks_file(self, deployment: str) -> Path:
        return self.root / "data" / "benchmarks" / f"{deployment}.jsonl"

    @property
    def wheels_dir(self) -> Path:
        """Python packages for what is layered onto images."""
        return self.root / "data" / "state" / "wheels"

    @property
    def reports_dir(self) -> Path:
        return self.root / "data" / "reports"

    def _contradictions(self) -> list[str]:
        return [*self._dangling_names(), *self._oversized_layouts(), *self._shared_ports()]

    def _file(self, deployment: Deployment) -> Path:
        return self.root / "data" / "deployments" / f"{deployment.name}.yaml"

    def _dangling_names(self) -> Iterator[str]:
        for deployment in self.deployments.values():
            file = self._file(deployment)
            if deployment.fleet not in self.fleets:
                known = ", ".join(sorted(self.fleets)) or "none"
                yield f"{file}:{line_of(file, 'fleet')}: no fleet {deployment.fleet!r}; declared: {known}"
            for index, profile in enumerate(deployment.benchmark.profiles):
                if profile not in self.profiles:
                    known = ", ".join(sorted(self.profiles)) or "none"
                    line = line_of(file, "benchmark", "profiles", index)
                    yield f"{file}:{line}: no profile {profile!r}; declared: {known}"

    def _oversized_layouts(self) -> Iterator[str]:
        for deployment in self.deployments.values():
            fleet = self.fleets.get(deployment.fleet)
            needed = deployment.parallel.world_size
            if fleet and needed > len(fleet.nodes):
                file = self._file(deployment)
                yield (
                    f"{file}:{line_of(file, 'parallel')}: tensor {deployment.parallel.tensor} x pipeline "
                    f"{deployment.parallel.pipeline} needs {needed} accelerators; fleet {fleet.name} has "
                    f"{len(fleet.nodes)} (one a node): write a layout whose product is at most {len(fleet.nodes)}"
                )

    def _shared_ports(self) -> Iterator[str]:
        """On one fleet every deployment needs two ports of the head for itself: the API's and the rendezvous'."""
        taken: dict[tuple[str, int], tuple[str, str]] = {}
        for deployment in self.deployments.values():
            serve = deployment.serve
            for port, what in ((serve.port, "port"), (serve.rendezvous_port, "rendezvous port")):
                owner, owners = taken.setdefault((deployment.fleet, port), (deployment.name, what))
                if owner != deployment.name:
                    file = self._file(deployment)
                    yield (
                        f"{file}:{line_of(file, 'serve', 'port')}: {what} {port} of fleet {deployment.fleet} is also "
                        f"{owner}'s {owners}: write another port"
                    )


def _load_all(directory: Path, kind: type[D], problems: list[str]) -> dict[str, D]:
    loaded: dict[str, D] = {}
    problems += [f"{path}:1: is not read: call it {path.stem}.yaml" for path in sorted(directory.glob("*.yml"))]
    for path in sorted(directory.glob("*.yaml")):
        try:
            declared = load(path, kind)
        except DeclarationError as error:
            problems.append(": ".join(part for part in (error.what, error.observed) if part))
            continue
        if declared.name != path.stem:
            problems.append(
                f"{path}:{line_of(path, 'name')}: name {declared.name!r} must be the file's: write {path.stem!r}"
            )
        loaded[declared.name] = declared
    return loaded


def schema(kind: type[Declaration]) -> dict[str, object]:
    """JSON Schema of a declaration, for editors that complete and check YAML."""
    return kind.model_json_schema()
