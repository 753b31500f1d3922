from __future__ import annotations

import os
import subprocess
from pathlib import Path

import paramiko
import pytest

from spark_pipeline.errors import (
    CommandFailedError,
    CommandTimeoutError,
    DeclarationError,
    HostKeyError,
    LoginRefusedError,
    UnreachableError,
)
from spark_pipeline.fleet import local, pins
from spark_pipeline.fleet.fabric import fabric_ssh, pipe, prepare_fabric
from spark_pipeline.fleet.local import LocalHost
from spark_pipeline.spec.fleet import Fleet
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost

FLEET = Fleet.model_validate(
    {
        "name": "sparks",
        "accelerator": "nvidia",
        "weights_dir": "/home/aurora/models",
        "nodes": [
            {"name": "head", "ssh": {"host": "10.1.230.180", "user": "aurora"}, "fabric": "192.168.200.12"},
            {
                "name": "peer",
                "ssh": {"host": "192.168.200.13", "user": "bob", "via": "head", "port": 2222},
                "fabric": "192.168.200.13",
                "internet": False,
            },
        ],
    }
)
PEER = FLEET.node("peer")
HERE = LocalHost("here")
THROUGH_A_SHELL = ("sh", "-c")  # stands for ssh: it too hands one line to a shell


@pytest.fixture
def known_hosts(tmp_path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    pins.pin(tmp_path / "known_hosts", "sparks", "peer", paramiko.PKey.from_path(tmp_path / "key"))
    return tmp_path / "known_hosts"


class LocalConnection:
    def host(self, name: str) -> LocalHost:
        return LocalHost(name)


def prepare(head: ScriptedHost, known_hosts: Path) -> None:
    prepare_fabric(ScriptedConnection([head]), FLEET, known_hosts, [PEER])  # pyright: ignore[reportArgumentType]


def test_the_head_reaches_a_peer_by_its_fabric_address_and_checks_its_key() -> None:
    words = fabric_ssh(FLEET, PEER)

    assert words[0] == "ssh"
    assert words[-3:] == ("-p", "2222", "bob@192.168.200.13")
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "HostKeyAlias=sparks/peer", "ConnectTimeout=10"):
        assert words[words.index(option) - 1] == "-o"


def test_rsync_can_split_the_words_at_blanks() -> None:
    assert " ".join(fabric_ssh(FLEET, PEER)).split() == list(fabric_ssh(FLEET, PEER))


def test_a_peer_without_a_login_is_a_mistake_in_the_declaration() -> None:
    local = PEER.model_copy(update={"ssh": None, "local": True})

    with pytest.raises(DeclarationError, match="peer is local"):
        fabric_ssh(FLEET, local)


def test_the_head_gets_the_peers_pinned_key_and_is_seen_to_log_in(known_hosts: Path) -> None:
    head = ScriptedHost("head").on("ssh", ..., "bob@192.168.200.13", "true")

    prepare(head, known_hosts)

    assert head.files == {".spark_pipeline/known_hosts_sparks": known_hosts.read_bytes()}
    assert f"UserKnownHostsFile=%d/{next(iter(head.files))}" in head.commands[0]


def test_on_a_local_head_the_keys_lie_where_ssh_looks_for_them(
    known_hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`%d` of ssh is the home directory; the pipeline runs in a project's folder."""
    home, project, programs = (tmp_path / name for name in ("home", "project", "bin"))
    for folder in (home, project, programs):
        folder.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(
        f'#!/bin/sh\nfor word; do case $word in UserKnownHostsFile=%d/*) cat "{home}/${{word#*%d/}}";; esac; done\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(local, "_home", lambda: home)
    monkeypatch.chdir(project)

    prepare_fabric(LocalConnection(), FLEET, known_hosts, [PEER])  # pyright: ignore[reportArgumentType]

    assert HERE.run([*fabric_ssh(FLEET, PEER), "true"], timeout=10).stdout == known_hosts.read_text()
    assert list(project.iterdir()) == []


def test_a_peer_that_is_not_enrolled_stops_it_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match="not pinned") as caught:
        prepare(ScriptedHost("head"), tmp_path / "known_hosts")

    assert caught.value.node == "peer"
    assert "fleet enroll sparks" in caught.value.remedy


@pytest.mark.parametrize(
    ("said", "error", "remedy"),
    [
        ("bob@192.168.200.13: Permission denied (publickey).", LoginRefusedError, "ssh-copy-id -p 2222 bob@"),
        ("Host key verification failed.", HostKeyError, "--replace"),
        (
            "ssh: connect to host 192.168.200.13 port 2222: Connection timed out",
            UnreachableError,
            "ping 192.168.200.13",
        ),
        ("ssh: connect to host 192.168.200.13 port 2222: No route to host", UnreachableError, "cable"),
    ],
)
def test_why_the_head_does_not_get_in_is_told_apart(
    known_hosts: Path, said: str, error: type[Exception], remedy: str
) -> None:
    head = ScriptedHost("head").on("ssh", ..., stderr=said + "\n", status=255)

    with pytest.raises(error) as caught:
        prepare(head, known_hosts)

    assert said in caught.value.observed  # pyright: ignore[reportAttributeAccessIssue]
    assert remedy in caught.value.remedy  # pyright: ignore[reportAttributeAccessIssue]
    assert caught.value.node == "peer"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_hanging_login_points_at_the_mtu(known_hosts: Path) -> None:
    head = ScriptedHost("head").on("ssh", ..., error=CommandTimeoutError("late", node="head", observed="no end"))

    with pytest.raises(UnreachableError) as caught:
        prepare(head, known_hosts)

    assert "ping -M do -s 8972 192.168.200.13" in caught.value.remedy


def test_a_pipe_carries_bytes_and_words_through_two_shells(tmp_path: Path) -> None:
    source = tmp_path / "it's $(a) source"
    source.write_bytes(bytes(range(256)) * 100)
    target = tmp_path / 'a "target"; exit'

    HERE.run(pipe(["cat", str(source)], THROUGH_A_SHELL, ["tee", str(target)]), timeout=10)

    assert target.read_bytes() == source.read_bytes()


def test_a_pipe_whose_producer_fails_fails() -> None:
    with pytest.raises(CommandFailedError) as caught:
        HERE.run(pipe(["cat", "/no/such/file"], THROUGH_A_SHELL, ["cat"]), timeout=10)

    assert "/no/such/file" in caught.value.observed


def test_a_pipe_whose_consumer_fails_fails_with_the_consumers_status() -> None:
    done = HERE.run(pipe(["yes"], THROUGH_A_SHELL, ["sh", "-c", "exit 3"]), timeout=10, check=False)

    assert done.status == 3
