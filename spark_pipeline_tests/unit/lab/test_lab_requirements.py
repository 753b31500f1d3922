"""What this machine lacks is said at once, all of it, with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_pipeline.errors import LabError
from spark_pipeline.lab.packages import Tool
from spark_pipeline.lab.requirements import Machine, demand, lacks

FIT = Machine(
    root=True,
    missing=(),
    registry=True,
    kernel_refusal="",
    cgroups=True,
    route_conflict="",
    free_disk_gb=80,
    needed_disk_gb=20,
    free_memory_gb=20,
    folder=Path("/cache"),
)


def test_a_fit_machine_lacks_nothing() -> None:
    assert lacks(FIT) == ()
    demand(())


def test_one_message_names_everything_that_is_missing_and_what_to_do() -> None:
    poor = Machine(
        root=False,
        missing=(
            Tool("debootstrap", "debootstrap"),
            Tool("ssh", "openssh-client"),
            Tool("ssh-keygen", "openssh-client"),
        ),
        registry=False,
        kernel_refusal="unshare: unshare failed: Operation not permitted",
        cgroups=False,
        route_conflict="10.77.0.0/16 dev tun0",
        free_disk_gb=3.25,
        needed_disk_gb=20,
        free_memory_gb=1.5,
        folder=Path("/cache"),
    )
    with pytest.raises(LabError) as caught:
        demand(lacks(poor))
    text = str(caught.value)
    assert text.startswith("this machine lacks 8 things that the lab needs\n")
    for words in (
        "not root",
        "programs are missing: debootstrap, ssh, ssh-keygen",
        "docker-registry is missing",
        "Operation not permitted",
        "/sys/fs/cgroup is not mounted",
        "10.77.0.0/16 dev tun0",
        "3.2 GB free at /cache, 20 GB are needed",
        "1.5 GB of memory available, 6 GB are needed",
        "apt-get install debootstrap openssh-client",
        "spark-pipeline lab up --install",
        "sudo",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("machine", "word"),
    [
        (replace(FIT, root=False), "root"),
        (replace(FIT, registry=False), "docker-registry"),
        (replace(FIT, kernel_refusal="no"), "kernel"),
        (replace(FIT, free_disk_gb=19.9), "19.9 GB free"),
        (replace(FIT, free_memory_gb=5.9), "5.9 GB of memory"),
    ],
)
def test_each_lack_is_found_alone(machine: Machine, word: str) -> None:
    (lack,) = lacks(machine)
    assert word in lack.what
    assert lack.remedy
