"""The way to a node, against servers on loopback that can be made to misbehave. OpenSSH itself: lab/test_fleet.py."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from spark_pipeline.errors import (
    CommandTimeoutError,
    HostKeyError,
    LoginRefusedError,
    MachineError,
    UnreachableError,
)
from spark_pipeline.fleet import known_hosts, login, pins, ssh
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.lease import hold
from spark_pipeline.fleet.parallel import each
from spark_pipeline.fleet.route import Route
from spark_pipeline.fleet.ssh import SshHost, SshProcess
from spark_pipeline.spec.fleet import Fleet
from spark_pipeline_tests.unit.fleet import loopback_sshd
from spark_pipeline_tests.unit.fleet.test_local_host import (
    WORDS,
    interrupt_after,
    processes_with,
    seconds_nobody_else_sleeps,
)


def make_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path


def fleet_at(port: int, key: Path | str | None, user: str = "tester", name: str = "test") -> Fleet:
    ssh = {"host": "127.0.0.1", "user": user, "port": port, "key": str(key) if key else None}
    node = {"name": "node", "ssh": ssh, "fabric": "127.0.0.1"}
    return Fleet.model_validate(
        {"name": name, "accelerator": "none", "weights_dir": "/var/lib/models", "nodes": [node]}
    )


class Sshd:
    """A running server."""

    def __init__(self, directory: Path) -> None:
        self.key = make_key(directory / "login_key")
        self.host_key = make_key(directory / "host_key")
        argv = [sys.executable, loopback_sshd.__file__, str(self.host_key), str(self.key)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())

    @property
    def fleet(self) -> Fleet:
        return fleet_at(self.port, self.key)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def pinned(sshd: Sshd, tmp_path: Path) -> Path:
    """A known_hosts file in which the server is enrolled."""
    path = tmp_path / "known_hosts"
    known_hosts.enroll(sshd.fleet, path, lambda line: None)
    return path


@contextmanager
def server_that_says(greeting: bytes) -> Iterator[int]:
    """A port that takes connections, sends this and nothing else."""
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        kept = []
        while True:
            connection, _ = listener.accept()
            connection.sendall(greeting)
            kept.append(connection)
    try:
        yield listener.getsockname()[1]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        listener.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "STEP_SECONDS", 0.5)


@pytest.fixture
def any_pin(tmp_path: Path) -> Path:
    """A known_hosts file that holds some key for the node."""
    key = paramiko.PKey.from_path(make_key(tmp_path / "some_host_key"))
    pins.pin(tmp_path / "known_hosts", "test", "node", key)
    return tmp_path / "known_hosts"


def ask(fleet: Fleet, pins_file: Path) -> str:
    with FleetConnection(fleet, pins_file) as connection:
        return connection.host("node").run(["echo", "hello"], timeout=30).stdout


# --- a working connection


def test_commands_run_and_words_arrive_as_they_were_given(sshd: Sshd, pinned: Path) -> None:
    with FleetConnection(sshd.fleet, pinned) as connection:
        done = connection.host("node").run(["printf", "%s|", *WORDS], timeout=30)

    assert done.stdout == "".join(f"{word}|" for word in WORDS)


def test_nothing_is_connected_before_a_command_asks_for_it(any_pin: Path) -> None:
    with FleetConnection(fleet_at(1, None), any_pin) as connection:
        assert connection.host("node").name == "node"


def test_megabytes_go_in_and_out_whole(sshd: Sshd, pinned: Path) -> None:
    data = os.urandom(1 << 20).hex()

    with FleetConnection(sshd.fleet, pinned) as connection:
        assert connection.host("node").run(["cat"], input=data, timeout=60).stdout == data


def test_a_time_out_ends_the_command_on_the_other_side(sshd: Sshd, pinned: Path) -> None:
    duration = seconds_nobody_else_sleeps()

    with FleetConnection(sshd.fleet, pinned) as connection:
        with pytest.raises(CommandTimeoutError):
            connection.host("node").run(["sh", "-c", f"sleep {duration} & sleep {duration}"], timeout=0.5)
        assert processes_with(duration) == []
        assert connection.host("node").run(["echo", "still here"], timeout=30).stdout == "still here\n"


def test_ctrl_c_ends_the_commands_on_the_other_side(sshd: Sshd, pinned: Path) -> None:
    duration = seconds_nobody_else_sleeps()
    timer = interrupt_after(0.7)

    with FleetConnection(sshd.fleet, pinned) as connection, pytest.raises(KeyboardInterrupt):
        connection.host("node").run(["sleep", duration], timeout=60)

    timer.join()
    assert processes_with(duration) == []


class SlowHost(SshHost):
    """A machine so busy that a login takes a second to start anything."""

    def _start(self, text: str, *, urgent: bool = False) -> SshProcess:
        return super()._start(text if urgent else f"sleep 1; {text}", urgent=urgent)


def test_a_command_that_is_given_up_before_it_started_is_ended_too(sshd: Sshd, pinned: Path) -> None:
    duration = seconds_nobody_else_sleeps()
    route = Route.to(sshd.fleet, sshd.fleet.head)
    host = SlowHost("node", lambda: login.login(route, pinned, None))
    timer = interrupt_after(0.7)

    with pytest.raises(KeyboardInterrupt):
        host.run(["sleep", duration], timeout=60)

    timer.join()
    time.sleep(1.5)
    assert processes_with(duration) == []
    host.close()


def test_many_commands_at_once_stay_below_the_servers_limit_of_sessions(sshd: Sshd, pinned: Path) -> None:
    with FleetConnection(sshd.fleet, pinned) as connection:
        host = connection.host("node")
        answers = each(range(24), lambda number: host.run(["echo", str(number)], timeout=30).stdout.strip())

    assert answers == {number: str(number) for number in range(24)}


def test_the_lease_is_renewed_while_long_commands_hold_every_other_session(
    sshd: Sshd, pinned: Path, tmp_path: Path
) -> None:
    with FleetConnection(sshd.fleet, pinned) as connection, ThreadPoolExecutor(ssh._SESSIONS + 1) as pool:
        host = connection.host("node")
        copies = [
            pool.submit(host.run, ["sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"], timeout=60)
            for _ in range(ssh._SESSIONS + 1)  # one more than there is room for
        ]
        try:
            time.sleep(1)
            with hold(host, fleet="f", owner="o", run_id="r", progress=print, directory=str(tmp_path)) as held:
                held._renew()
                held.check()
            assert not any(copy.done() for copy in copies)
        finally:
            (tmp_path / "go").touch()


def test_a_connection_that_breaks_under_a_command_is_said_at_once(tmp_path: Path) -> None:
    server = Sshd(tmp_path)
    pins_file = tmp_path / "known_hosts"
    try:
        known_hosts.enroll(server.fleet, pins_file, lambda line: None)
        started = time.monotonic()
        with FleetConnection(server.fleet, pins_file) as connection, pytest.raises(UnreachableError, match="broke"):
            connection.host("node").stream(
                ["sh", "-c", "echo ready; sleep 40"], on_line=lambda _: server.process.kill(), timeout=30
            )
        assert time.monotonic() - started < 20
    finally:
        server.stop()


def test_a_broken_connection_is_made_again_for_the_next_command(sshd: Sshd, pinned: Path) -> None:
    with FleetConnection(sshd.fleet, pinned) as connection:
        host = connection.host("node")
        assert isinstance(host, SshHost)
        broken = host.transport()
        broken.close()

        assert host.run(["echo", "back"], timeout=30).stdout == "back\n"
        assert host.transport() is not broken


def test_a_node_that_went_deaf_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "KEEPALIVE_SECONDS", 0.2)
    monkeypatch.setattr(login, "DEAF_SECONDS", 0.7)
    server = Sshd(tmp_path)
    pins_file = tmp_path / "known_hosts"
    try:
        known_hosts.enroll(server.fleet, pins_file, lambda line: None)
        monkeypatch.setattr(login, "STEP_SECONDS", 0.5)
        with FleetConnection(server.fleet, pins_file) as connection:
            started = time.monotonic()
            with pytest.raises(UnreachableError):
                connection.host("node").stream(
                    ["sh", "-c", "echo ready; sleep 20"],
                    on_line=lambda _: server.process.send_signal(signal.SIGSTOP),
                    timeout=30,
                )
            assert time.monotonic() - started < 10
    finally:
        server.stop()


# --- host keys


def test_an_unknown_host_key_is_refused_with_the_command_that_pins_it(sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match="not pinned") as caught:
        ask(sshd.fleet, tmp_path / "known_hosts")

    assert caught.value.node == "node"
    assert caught.value.remedy == "spark-pipeline fleet enroll test"


def test_a_changed_host_key_is_refused_with_both_fingerprints(sshd: Sshd, any_pin: Path) -> None:
    expected = paramiko.PKey.from_path(any_pin.parent / "some_host_key").fingerprint
    shown = paramiko.PKey.from_path(sshd.host_key).fingerprint

    with pytest.raises(HostKeyError, match="attack") as caught:
        ask(sshd.fleet, any_pin)

    assert expected in caught.value.observed
    assert shown in caught.value.observed
    assert "fleet enroll test --replace" in caught.value.remedy


def test_enrolling_pins_the_key_that_the_server_has(sshd: Sshd, tmp_path: Path) -> None:
    lines: list[str] = []

    (found,) = known_hosts.enroll(sshd.fleet, tmp_path / "state" / "known_hosts", lines.append)

    listed = subprocess.run(
        ["ssh-keygen", "-lf", f"{sshd.host_key}.pub"], check=True, capture_output=True, text=True
    ).stdout
    assert found.fingerprint in listed
    assert found.changed
    assert found.fingerprint in lines[0]
    assert ask(sshd.fleet, tmp_path / "state" / "known_hosts") == "hello\n"


def test_enrolling_again_changes_nothing(sshd: Sshd, pinned: Path) -> None:
    before = pinned.read_text()

    (found,) = known_hosts.enroll(sshd.fleet, pinned, lambda line: None)

    assert not found.changed
    assert pinned.read_text() == before


def test_enrolling_never_replaces_a_changed_key_by_itself(sshd: Sshd, any_pin: Path) -> None:
    before = any_pin.read_text()

    with pytest.raises(HostKeyError):
        known_hosts.enroll(sshd.fleet, any_pin, lambda line: None)
    assert any_pin.read_text() == before

    (found,) = known_hosts.enroll(sshd.fleet, any_pin, lambda line: None, replace=True)
    assert found.state == "replaced"
    assert ask(sshd.fleet, any_pin) == "hello\n"


def test_two_fleets_with_the_same_address_have_keys_of_their_own(sshd: Sshd, any_pin: Path) -> None:
    """`any_pin` holds another machine's key, for the same address in fleet `test`."""
    twin = fleet_at(sshd.port, sshd.key, name="other")

    known_hosts.enroll(twin, any_pin, lambda line: None)

    assert ask(twin, any_pin) == "hello\n"
    with pytest.raises(HostKeyError):
        ask(sshd.fleet, any_pin)


def test_openssh_reads_the_pinned_lines(sshd: Sshd, pinned: Path) -> None:
    found = subprocess.run(["ssh-keygen", "-F", "test/node", "-f", pinned], capture_output=True, text=True)

    assert found.returncode == 0
    assert "ssh-ed25519" in found.stdout


# --- login


def test_a_refused_login_says_user_key_and_target(sshd: Sshd, pinned: Path, tmp_path: Path) -> None:
    stranger = make_key(tmp_path / "stranger")

    with pytest.raises(LoginRefusedError) as caught:
        ask(fleet_at(sshd.port, stranger), pinned)

    assert f"tester may not log in at tester@127.0.0.1:{sshd.port}" in caught.value.what
    assert str(stranger) in caught.value.observed
    assert paramiko.PKey.from_path(stranger).fingerprint in caught.value.observed
    assert "ssh-copy-id" in caught.value.remedy
    assert "BEGIN" not in str(caught.value), "no key's content"


def test_a_key_file_that_does_not_exist_is_named(sshd: Sshd, pinned: Path, tmp_path: Path) -> None:
    with pytest.raises(LoginRefusedError, match="cannot be used") as caught:
        ask(fleet_at(sshd.port, tmp_path / "absent"), pinned)

    assert str(tmp_path / "absent") in caught.value.observed
    assert "no such file" in caught.value.observed


def test_a_key_with_a_passphrase_needs_an_agent(
    sshd: Sshd, pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    locked = make_key(tmp_path / "locked", passphrase="secret words")

    with pytest.raises(LoginRefusedError) as caught:
        ask(fleet_at(sshd.port, locked), pinned)

    assert "passphrase" in caught.value.observed
    assert f"ssh-add {locked}" in caught.value.remedy


def test_a_file_that_is_no_key_is_named(sshd: Sshd, pinned: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a key\n")

    with pytest.raises(LoginRefusedError, match="cannot be used"):
        ask(fleet_at(sshd.port, tmp_path / "notes"), pinned)


def test_without_a_declared_key_those_of_the_home_directory_are_tried(
    sshd: Sshd, pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    fleet = fleet_at(sshd.port, None)
    with pytest.raises(LoginRefusedError) as caught:
        ask(fleet, pinned)
    assert "no key to try" in caught.value.observed

    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_bytes(sshd.key.read_bytes())

    assert ask(fleet, pinned) == "hello\n"


@pytest.fixture
def agent(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent that holds the login key."""
    started = subprocess.run(["ssh-agent", "-s"], check=True, capture_output=True, text=True).stdout
    found = dict(re.findall(r"(\w+)=([^;]+);", started))
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", found["SSH_AUTH_SOCK"])
        monkeypatch.setenv("HOME", str(tmp_path))
        subprocess.run(["ssh-add", "-q", str(sshd.key)], check=True, capture_output=True)
        yield
    finally:
        os.kill(int(found["SSH_AGENT_PID"]), signal.SIGTERM)


def test_a_key_that_only_an_agent_holds_logs_in(sshd: Sshd, pinned: Path, agent: None) -> None:
    assert ask(fleet_at(sshd.port, None), pinned) == "hello\n"


def test_a_declared_key_with_a_passphrase_is_used_through_the_agent(
    sshd: Sshd, pinned: Path, agent: None, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(sshd.key.read_bytes())
    locked.chmod(0o600)
    locked.with_name("locked.pub").write_bytes(sshd.key.with_name("login_key.pub").read_bytes())
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret words", "-f", locked], check=True)

    assert ask(fleet_at(sshd.port, locked), pinned) == "hello\n"


# --- no connection


def test_a_refused_connection_is_told_from_a_refused_login(any_pin: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(UnreachableError, match=f"127.0.0.1:{port}") as caught:
        ask(fleet_at(port, None), any_pin)

    assert "refused" in caught.value.observed


def test_a_server_that_does_not_greet_is_called_short_of_memory(any_pin: Path, impatient: None) -> None:
    with server_that_says(b"") as port, pytest.raises(UnreachableError, match="no ssh server greets") as caught:
        ask(fleet_at(port, None), any_pin)

    assert "memory" in caught.value.remedy


def test_a_key_exchange_that_hangs_points_at_the_mtu(any_pin: Path, impatient: None) -> None:
    with (
        server_that_says(b"SSH-2.0-OpenSSH_9.6\r\n") as port,
        pytest.raises(UnreachableError, match="key exchange") as caught,
    ):
        ask(fleet_at(port, None), any_pin)

    assert "MTU" in caught.value.remedy
    assert "OpenSSH_9.6" in caught.value.observed


def test_something_that_is_not_ssh_is_not_waited_for(any_pin: Path) -> None:
    started = time.monotonic()

    with server_that_says(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port, pytest.raises(UnreachableError, match="greets"):
        ask(fleet_at(port, None), any_pin)

    assert time.monotonic() - started < 15


def test_errors_about_the_way_are_machine_errors_with_a_remedy(any_pin: Path) -> None:
    with pytest.raises(MachineError) as caught:
        ask(fleet_at(1, None), any_pin)

    assert caught.value.remedy
    assert caught.value.node == "node"
