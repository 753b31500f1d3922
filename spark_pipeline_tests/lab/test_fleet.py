"""The fleet package against OpenSSH and Docker Engine, jump host and fabric included."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from pathlib import Path

import paramiko
import pytest

from spark_pipeline.errors import (
    CommandTimeoutError,
    DockerUnavailableError,
    HostKeyError,
    LeaseHeldError,
    LoginRefusedError,
    UnreachableError,
)
from spark_pipeline.fleet import facts, known_hosts, lease, pins
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.fabric import fabric_ssh, pipe, prepare_fabric
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import LabPlan
from spark_pipeline.spec.fleet import Fleet
from spark_pipeline_tests.unit.fleet.test_local_host import WORDS, interrupt_after, seconds_nobody_else_sleeps

pytestmark = pytest.mark.lab

BOTH = ["head", "peer"]
Ssh = Mapping[str, object]


def declared(lab: Lab, *, head: Ssh | None = None, peer: Ssh | None = None) -> Fleet:
    """The lab as a fleet; `head` and `peer` replace parts of their `ssh` blocks."""
    key = str(lab.paths.key)
    head_ssh = {"host": str(lab.plan.node(0).management), "user": "spark", "key": key, **(head or {})}
    peer_ssh = {"host": str(lab.plan.node(1).fabric), "user": "spark", "key": key, "via": "head", **(peer or {})}
    return Fleet.model_validate(
        {
            "name": "lab",
            "accelerator": "none",
            "weights_dir": "/home/spark/models",
            "nodes": [
                {"name": "head", "ssh": head_ssh, "fabric": str(lab.plan.node(0).fabric)},
                {"name": "peer", "ssh": peer_ssh, "fabric": str(lab.plan.node(1).fabric), "internet": False},
            ],
        }
    )


@pytest.fixture(scope="module")
def enrolled(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pins") / "known_hosts"
    known_hosts.enroll(declared(lab), path, lambda line: None)
    return path


@pytest.fixture(scope="module")
def connection(lab: Lab, enrolled: Path) -> Iterator[FleetConnection]:
    with FleetConnection(declared(lab), enrolled) as opened:
        yield opened


def running(lab: Lab, node: str, word: str) -> str:
    """Command lines on a node, seen by root there, that hold this word; '' when there are none."""
    found = lab.run_in_node(node, ["pgrep", "-a", "-f", f"^[^ ]*sleep {word}$"])
    return found.stdout


# --- commands


def test_both_nodes_are_reached_the_peer_through_the_head(connection: FleetConnection) -> None:
    names = connection.each(BOTH, lambda host: host.run(["uname", "-n"], timeout=20).stdout.strip())

    assert names == {"head": "head", "peer": "peer"}


@pytest.mark.parametrize("node", BOTH)
def test_words_arrive_as_they_were_given(connection: FleetConnection, node: str) -> None:
    done = connection.host(node).run(["printf", "%s|", *WORDS], timeout=20)

    assert done.stdout == "".join(f"{word}|" for word in WORDS)


def test_20_megabytes_go_through_the_jump_host_and_back_whole(connection: FleetConnection) -> None:
    data = os.urandom(10_000_000).hex()

    assert connection.host("peer").run(["cat"], input=data, timeout=120).stdout == data


def test_files_are_put_on_a_node_whole(connection: FleetConnection) -> None:
    peer = connection.host("peer")
    content = os.urandom(100_000)
    path = "/home/spark/test fleet/it's $(id) a file"
    try:
        peer.put(content, path, mode=0o600)

        assert peer.get(path) == content
        assert peer.run(["stat", "-c", "%a %s", path], timeout=20).stdout == "600 100000\n"
        assert peer.run(["ls", "-A", "/home/spark/test fleet"], timeout=20).stdout.count("\n") == 1
    finally:
        peer.run(["rm", "-rf", "/home/spark/test fleet"], timeout=20)


@pytest.mark.parametrize("node", BOTH)
def test_a_time_out_leaves_nothing_running_on_the_node(lab: Lab, connection: FleetConnection, node: str) -> None:
    word = seconds_nobody_else_sleeps()

    with pytest.raises(CommandTimeoutError) as caught:
        connection.host(node).run(["sh", "-c", f"trap '' TERM; sleep {word} & sleep {word}"], timeout=1)

    assert caught.value.node == node
    assert running(lab, node, word) == ""


@pytest.mark.parametrize("node", BOTH)
def test_a_cancelled_command_leaves_nothing_running_on_the_node(
    lab: Lab, connection: FleetConnection, node: str
) -> None:
    word = seconds_nobody_else_sleeps()
    seen: list[str] = []

    def interrupt(line: str) -> None:
        seen.append(running(lab, node, word))
        interrupt_after(0.1)

    with pytest.raises(KeyboardInterrupt):
        connection.host(node).stream(["sh", "-c", f"sleep {word} & echo started; wait"], on_line=interrupt, timeout=60)

    assert word in seen[0], "else this test shows nothing"
    assert running(lab, node, word) == ""


def test_a_cancelled_round_leaves_nothing_running_on_any_node(lab: Lab, connection: FleetConnection) -> None:
    word = seconds_nobody_else_sleeps()
    timer = interrupt_after(1.5)

    with pytest.raises(KeyboardInterrupt):
        connection.each(BOTH, lambda host: host.run(["sleep", word], timeout=60))

    timer.join()
    assert [running(lab, node, word) for node in BOTH] == ["", ""]


# --- the way there


def test_the_pinned_keys_are_the_nodes_own(lab: Lab, enrolled: Path) -> None:
    lines = enrolled.read_text().splitlines()

    for node in BOTH:
        shown = lab.run_in_node(node, ["ssh-keyscan", "-t", "ed25519", "127.0.0.1"]).stdout.split()
        assert f"lab/{node} ssh-ed25519 {shown[2]}" in lines


def test_a_peers_changed_host_key_is_refused(lab: Lab, enrolled: Path, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    pins_file = tmp_path / "known_hosts"
    pins_file.write_text(enrolled.read_text())
    pins.pin(pins_file, "lab", "peer", paramiko.PKey.from_path(tmp_path / "other"))

    with FleetConnection(declared(lab), pins_file) as opened, pytest.raises(HostKeyError) as caught:
        opened.host("peer").run(["true"], timeout=20)

    assert caught.value.node == "peer"
    assert caught.value.observed.count("SHA256:") == 2


def test_a_peer_whose_key_is_not_pinned_is_refused(lab: Lab, enrolled: Path, tmp_path: Path) -> None:
    pins_file = tmp_path / "known_hosts"
    pins_file.write_text("".join(line for line in enrolled.read_text().splitlines(True) if "lab/head" in line))

    with FleetConnection(declared(lab), pins_file) as opened, pytest.raises(HostKeyError, match="not pinned"):
        opened.host("peer").run(["true"], timeout=20)


@pytest.mark.parametrize("node", BOTH)
def test_a_refused_login_says_user_key_and_the_whole_way(lab: Lab, enrolled: Path, node: str) -> None:
    stranger: Ssh = {"user": "stranger"}
    fleet = declared(lab, **{node: stranger})

    with FleetConnection(fleet, enrolled) as opened, pytest.raises(LoginRefusedError) as caught:
        opened.host(node).run(["true"], timeout=20)

    assert caught.value.node == node
    assert "user stranger" in caught.value.what
    assert str(lab.paths.key) in caught.value.observed
    assert node == "head" or "via head (spark@" in caught.value.what


@pytest.mark.parametrize(("node", "address"), [("head", "10.77.0.99"), ("peer", "192.168.200.99")])
def test_an_address_that_nobody_has_is_said_within_15_seconds(
    lab: Lab, enrolled: Path, node: str, address: str
) -> None:
    nobody: Ssh = {"host": address}
    fleet = declared(lab, **{node: nobody})
    started = time.monotonic()

    with FleetConnection(fleet, enrolled) as opened, pytest.raises(UnreachableError) as caught:
        opened.host(node).run(["true"], timeout=60)

    assert time.monotonic() - started < 15
    assert caught.value.node == node
    assert address in caught.value.what
    assert f"ping {address}" in caught.value.remedy


def test_a_closed_port_behind_the_jump_host_is_the_peers_fault(lab: Lab, enrolled: Path) -> None:
    fleet = declared(lab, peer={"port": 2299})

    with FleetConnection(fleet, enrolled) as opened, pytest.raises(UnreachableError) as caught:
        opened.host("peer").run(["true"], timeout=20)

    assert caught.value.node == "peer"
    assert "refused" in caught.value.observed.lower() or "failed" in caught.value.observed.lower()


# --- facts and docker


def test_the_nodes_facts_are_those_that_the_lab_gave_them(lab: Lab, connection: FleetConnection) -> None:
    found = connection.each(BOTH, lambda host: facts.observe(host, "/home/spark/models"))

    for index, node in enumerate(BOTH):
        plan = lab.plan.node(index)
        fabric = found[node].interface_of(plan.fabric)
        assert fabric is not None
        assert (fabric.name, fabric.mtu, fabric.carrier) == ("enp1s0f1np1", 9000, True)
        assert found[node].interface_of(plan.fabric_twin) is not None
        assert found[node].hostname == node
        assert "docker" in found[node].groups
        assert found[node].docker_version
        assert found[node].rsync
        assert found[node].gpu is None
        assert found[node].infiniband == ()
    assert found["head"].interface_of(str(lab.plan.node(0).management)) is not None


def test_docker_answers_on_every_node_and_has_no_unknown_things(connection: FleetConnection) -> None:
    for docker in (Docker(connection.host(node)) for node in BOTH):
        assert docker.version()[0].isdigit()
        assert docker.image("no-such-image:ever") is None
        assert docker.container("no-such-container") is None
        assert docker.containers({"spark_pipeline.no_such_label": ""}) == ()
        docker.remove(["no-such-container"])


IMAGE = "fleet-test:tiny"
LABEL = "spark_pipeline_test.fleet"


@pytest.fixture(scope="module")
def tiny_image(lab: Lab, connection: FleetConnection) -> Iterator[str]:
    """An image of a few programs of the head itself, on the head."""
    script = (
        "tar -C / -ch lib64/ld-linux-x86-64.so.2 lib/x86_64-linux-gnu/libc.so.6 bin/sh bin/sleep bin/cat bin/echo | "
        f"""docker import --change 'CMD ["sleep", "600"]' --change 'WORKDIR /missing' --change 'ENV A=b=c' - {IMAGE}"""
    )
    connection.host("head").run(["sh", "-c", script], timeout=120)
    yield IMAGE
    for node in BOTH:
        docker = Docker(connection.host(node))
        docker.remove(item.name for item in docker.containers({LABEL: ""}))
        docker.host.run(["docker", "rmi", "--force", IMAGE], timeout=60, check=False)


def test_a_container_is_started_asked_and_removed(connection: FleetConnection, tiny_image: str) -> None:
    docker = Docker(connection.host("head"))
    name = f"fleet-test-{os.getpid()}"
    argv = (
        "docker",
        "run",
        "--detach",
        "--pull",
        "never",
        "--network",
        "host",
        "--name",
        name,
        "--label",
        f"{LABEL}=1",
    )

    started = docker.start([*argv, tiny_image, "sh", "-c", "echo to stdout; echo to stderr >&2; sleep 600"])
    (found,) = docker.containers({LABEL: "1"})
    said = docker.exec(name, ["echo", *WORDS], timeout=30).stdout
    given = docker.exec(name, ["cat"], input="through stdin", timeout=30).stdout
    failed = docker.exec(name, ["sh", "-c", "exit 7"], timeout=30, check=False)
    log = docker.logs(name, 10)
    docker.remove([name])

    assert (found.container_id, found.name, found.state, found.node) == (started, name, "running", "head")
    assert said == " ".join(WORDS) + "\n"
    assert given == "through stdin"
    assert failed.status == 7
    assert sorted(log.splitlines()) == ["to stderr", "to stdout"]
    assert docker.container(name) is None


def test_an_image_that_went_over_the_fabric_is_the_same_image(
    lab: Lab, connection: FleetConnection, enrolled: Path, tiny_image: str
) -> None:
    fleet = declared(lab)
    head, peer = (Docker(connection.host(node)) for node in BOTH)
    prepare_fabric(connection, fleet, enrolled, [fleet.node("peer")])
    assert peer.image(tiny_image) is None, "else this test shows nothing"

    copy = pipe(["docker", "save", tiny_image], fabric_ssh(fleet, fleet.node("peer")), ["docker", "load"])
    head.host.run(copy, timeout=120)

    here, there = head.image(tiny_image), peer.image(tiny_image)
    assert here is not None
    assert there is not None
    assert here.fingerprint == there.fingerprint
    assert there.environment["A"] == "b=c"
    assert there.command == ("sleep", "600")


@pytest.fixture
def outsider(lab: Lab) -> Iterator[Ssh]:
    """Part of an `ssh` block: a user of the head who is not in the group docker, with an sshd that lets him in."""
    name, port, pid_file = "outsider", 2222, "/run/outsider_sshd.pid"
    script = (
        f"useradd -m -s /bin/bash {name} && usermod -p '*' {name} && install -d -o {name} -m 700 /home/{name}/.ssh && "
        f"install -o {name} -m 600 /dev/stdin /home/{name}/.ssh/authorized_keys && "
        f"/usr/sbin/sshd -p {port} -o AllowUsers={name} -o PidFile={pid_file} && "
        f"until [ -e {pid_file} ]; do sleep 0.1; done"  # written once it listens
    )
    public = Path(f"{lab.paths.key}.pub").read_text()
    try:
        made = lab.run_in_node("head", ["sh", "-c", script], input=public)
        assert made.returncode == 0, made.stderr
        yield {"user": name, "port": port}
    finally:
        lab.run_in_node("head", ["sh", "-c", f'kill "$(cat {pid_file})"; sleep 0.5; userdel -r -f {name}'])


def test_a_user_outside_the_docker_group_is_told_how_to_get_in(lab: Lab, enrolled: Path, outsider: Ssh) -> None:
    fleet = declared(lab, head=outsider)

    with FleetConnection(fleet, enrolled) as opened:
        with pytest.raises(DockerUnavailableError) as caught:
            Docker(opened.host("head")).version()
        found = facts.observe(opened.host("head"), "/home/spark/models")

    assert caught.value.node == "head"
    assert "usermod -aG docker" in caught.value.remedy
    assert found.docker_version is None
    assert "permission denied" in found.docker_problem.lower()


# --- fabric


def test_bytes_go_from_head_to_peer_over_the_fabric(lab: Lab, connection: FleetConnection, enrolled: Path) -> None:
    fleet = declared(lab)
    peer = fleet.node("peer")
    head = connection.host("head")

    prepare_fabric(connection, fleet, enrolled, [peer])
    words = ["echo", "it's", "$(uname -n)"]
    done = head.run(pipe(words, fabric_ssh(fleet, peer), ["sh", "-c", "cat; uname -n"]), timeout=30)

    assert done.stdout == "it's $(uname -n)\npeer\n"


def test_the_head_refuses_a_peer_with_another_host_key(lab: Lab, enrolled: Path, tmp_path: Path) -> None:
    """In a fleet of another name, so that the file on the head is not the shared one."""
    fleet = declared(lab).model_copy(update={"name": "labtest"})
    pins_file = tmp_path / "known_hosts"
    known_hosts.enroll(fleet, pins_file, lambda line: None)
    with FleetConnection(fleet, pins_file) as opened:
        head_key = pins.pinned(pins_file, "labtest", "head")
        assert head_key is not None
        pins.pin(pins_file, "labtest", "peer", head_key)
        try:
            with pytest.raises(HostKeyError) as caught:
                prepare_fabric(opened, fleet, pins_file, [fleet.node("peer")])
        finally:
            opened.host("head").run(["rm", "-f", ".spark_pipeline/known_hosts_labtest"], timeout=20)

    assert caught.value.node == "peer"
    assert "--replace" in caught.value.remedy


def test_a_peer_that_does_not_know_the_heads_key_says_how_to_authorise_it(
    lab: Lab, connection: FleetConnection, enrolled: Path
) -> None:
    fleet = declared(lab, peer={"user": "stranger"})

    with pytest.raises(LoginRefusedError) as caught:
        prepare_fabric(connection, fleet, enrolled, [fleet.node("peer")])

    assert f"ssh-copy-id -p 22 stranger@{lab.plan.node(1).fabric}" in caught.value.remedy


# --- lease


def test_one_run_at_a_time_may_change_the_fleet(connection: FleetConnection) -> None:
    head = connection.host("head")
    directory = f"/tmp/lease-{seconds_nobody_else_sleeps()}"  # not the shared one: others use the lab meanwhile

    def hold(run: str):
        return lease.hold(
            head, fleet="lab", owner=f"test {run}", run_id=run, progress=lambda _: None, directory=directory
        )

    try:
        with hold("one") as held:
            held.check()
            with hold("one"):
                pass
            with pytest.raises(LeaseHeldError, match="somebody else") as caught, hold("two"):
                pass
            assert "test one" in caught.value.observed
        with hold("two"):
            found = lease.look(head, directory=directory)
            assert found is not None
            assert found.owner == "test two"
    finally:
        head.run(["rm", "-rf", directory], timeout=20)


# --- faults, in a lab of their own


@pytest.fixture(scope="module")
def broken_lab() -> Iterator[Lab]:
    """Two nodes whose links and servers may be broken; removed at the end."""
    own = Lab(LabPlan(prefix="labf", management=IPv4Network("10.79.0.0/24")), LabPaths.beside("labf"))
    own.up(2)
    yield own
    own.down(purge=True)


@pytest.fixture
def broken_fleet(broken_lab: Lab, tmp_path: Path) -> tuple[Fleet, Path]:
    known_hosts.enroll(declared(broken_lab), tmp_path / "known_hosts", lambda line: None)
    return declared(broken_lab), tmp_path / "known_hosts"


def set_peers_port(lab: Lab, *words: str) -> None:
    """Change the switch's side of the peer's fabric cable."""
    argv = ["ip", "-n", lab.plan.fabric_namespace, "link", "set", "peer-fabric0", *words]
    subprocess.run(argv, check=True)


def test_a_switch_with_another_mtu_is_named_not_waited_for(broken_lab: Lab, broken_fleet: tuple[Fleet, Path]) -> None:
    """Ping and small commands work; OpenSSH's key exchange does not get through."""
    fleet, pins_file = broken_fleet
    set_peers_port(broken_lab, "mtu", "1500")
    started = time.monotonic()
    try:
        with FleetConnection(fleet, pins_file) as opened, pytest.raises(UnreachableError) as caught:
            prepare_fabric(opened, fleet, pins_file, [fleet.node("peer")])
    finally:
        set_peers_port(broken_lab, "mtu", "9000")

    assert time.monotonic() - started < 30
    assert caught.value.node == "peer"
    assert "MTU" in caught.value.remedy


def test_an_unplugged_peer_is_unreachable_within_15_seconds(broken_lab: Lab, broken_fleet: tuple[Fleet, Path]) -> None:
    fleet, pins_file = broken_fleet
    set_peers_port(broken_lab, "down")
    started = time.monotonic()
    try:
        with FleetConnection(fleet, pins_file) as opened, pytest.raises(UnreachableError) as caught:
            opened.host("peer").run(["true"], timeout=60)
    finally:
        set_peers_port(broken_lab, "up")

    assert time.monotonic() - started < 15
    assert caught.value.node == "peer"


def test_a_node_that_takes_connections_but_does_not_greet_is_called_short_of_memory(
    broken_lab: Lab, broken_fleet: tuple[Fleet, Path]
) -> None:
    fleet, pins_file = broken_fleet
    broken_lab.run_in_node("peer", ["sh", "-c", 'kill -STOP "$(cat /run/sshd.pid)"'])
    started = time.monotonic()
    try:
        with FleetConnection(fleet, pins_file) as opened, pytest.raises(UnreachableError, match="greets") as caught:
            opened.host("peer").run(["true"], timeout=60)
    finally:
        broken_lab.run_in_node("peer", ["sh", "-c", 'kill -CONT "$(cat /run/sshd.pid)"'])

    assert time.monotonic() - started < 15
    assert caught.value.node == "peer"
    assert "memory" in caught.value.remedy
