"""The virtual fleet comes up, mends itself and leaves nothing: on a second lab, so the shared one is not disturbed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spark_pipeline.errors import LabError
from spark_pipeline.lab import cgroups, network
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.paths import LabPaths
from spark_pipeline.lab.plan import LabPlan
from spark_pipeline.lab.probes import ssh_greets
from spark_pipeline.lab.processes import ProcessId, identify, read_pid_file

pytestmark = pytest.mark.lab

REPOSITORY = Path(__file__).parents[2]
ANY_HOST = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")
# Three files and their libraries: enough to run, with no network.
IMPORT_AN_IMAGE = """\
tar -C / -ch bin/dash bin/sleep lib64 lib/x86_64-linux-gnu/libc.so.6 2>/dev/null | docker import - tiny
"""


def ssh(lab: Lab, node: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as user spark, the way a person reaches the node: a peer through the head."""
    head = f"spark@{lab.plan.node(0).management}"
    login = ["ssh", "-i", str(lab.paths.key), *ANY_HOST]
    if node == "head":
        command = [*login, head, *words]
    else:
        through = " ".join([*login, "-W", "%h:%p", head])
        command = [*login, "-o", f"ProxyCommand={through}", f"spark@{lab.node(node).plan.fabric}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def pids(lab: Lab) -> dict[str, ProcessId | None]:
    """First processes of the nodes and the services."""
    nodes = {status.name: lab.node(status.name).init for status in lab.status().nodes}
    return {**nodes, **{name: read_pid_file(lab.paths.run / f"{name}.pid") for name in ("hub", "registry")}}


def process_of(lab: Lab, node: str, command: str) -> ProcessId:
    """The oldest process of that name on a node, as the host sees it."""
    for pid in sorted(network.processes_in(lab.node(node).plan.namespace)):
        process = identify(pid)
        if process and Path(f"/proc/{pid}/comm").read_text().strip() == command:
            return process
    raise AssertionError(f"no {command} on {node}")


def machine() -> set[str]:
    """What a lab could leave on this machine, but for what the shared lab does meanwhile."""
    shared = LabPlan()
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    groups = {str(path) for top in cgroups.hierarchies() for path in top.iterdir() if path.is_dir()}
    found = {f"link {name}" for name in network.links()}
    found |= {f"namespace {name}" for name in network.namespaces()}
    found |= {f"mount {name}" for name in mounts} | {f"cgroup {name}" for name in groups}
    return {thing for thing in found if f"{shared.prefix}-" not in thing and shared.bridge not in thing}


def processes_in_namespaces_of(lab: Lab) -> Callable[[], set[int]]:
    """A question for later: which processes are still in one of the namespaces that the nodes have now."""
    kinds = ("net", "mnt", "pid", "ipc", "uts")
    inits = [node for node in (lab.node(status.name).init for status in lab.status().nodes) if node]
    ours = {Path(f"/proc/{init.pid}/ns/{kind}").readlink() for init in inits for kind in kinds}

    def ask() -> set[int]:
        found: set[int] = set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if ours & {(entry / "ns" / kind).readlink() for kind in kinds}:
                    found.add(int(entry.name))
            except OSError:
                continue
        return found

    return ask


def services_of(lab: Lab) -> int:
    """How many processes on the host work with this lab's folder, ourselves aside: its services, noted or not."""
    lines = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, timeout=10, check=True).stdout
    programs = ("hub_server", "docker-registry serve")
    return sum(str(lab.paths.run.parent) in line and any(p in line for p in programs) for line in lines.splitlines())


def test_up_again_starts_nothing(second_lab: Lab) -> None:
    before = pids(second_lab)
    assert second_lab.up(2).up
    assert pids(second_lab) == before
    assert None not in before.values()


def test_host_reaches_the_head(second_lab: Lab) -> None:
    assert ssh_greets(str(second_lab.plan.node(0).management))


@pytest.mark.parametrize("address", ["fabric", "fabric_twin"])
def test_host_cannot_reach_a_peer(second_lab: Lab, address: str) -> None:
    # Not whether a connection is refused: some networks' gateways accept one to any address and then say nothing.
    assert not ssh_greets(str(getattr(second_lab.plan.node(1), address)))


def test_head_reaches_its_peer_with_its_own_key(second_lab: Lab) -> None:
    answer = ssh(second_lab, "head", "ssh", *ANY_HOST, str(second_lab.plan.node(1).fabric), "hostname")
    assert (answer.returncode, answer.stdout) == (0, "peer\n"), answer.stderr


def test_head_knows_no_host_key_of_its_peer(second_lab: Lab) -> None:
    answer = ssh(second_lab, "head", "ssh", "-o", "BatchMode=yes", str(second_lab.plan.node(1).fabric), "hostname")
    assert answer.returncode != 0
    assert "Host key verification failed" in answer.stderr


def test_a_password_or_a_foreign_key_opens_nothing(second_lab: Lab, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True, timeout=10)
    login = ["ssh", "-i", str(tmp_path / "key"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", *ANY_HOST]
    command = [*login, f"spark@{second_lab.plan.node(0).management}", "true"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert answer.returncode != 0
    assert "Permission denied (publickey)" in answer.stderr


@pytest.mark.parametrize("node", ["head", "peer"])
def test_user_spark_uses_docker_over_ssh(second_lab: Lab, node: str) -> None:
    answer = ssh(second_lab, node, "hostname; id -un; docker info --format '{{.Driver}} {{.CgroupDriver}} {{.Name}}'")
    assert answer.stdout == f"{node}\nspark\noverlay2 cgroupfs {node}\n", answer.stderr


@pytest.mark.parametrize("node", ["head", "peer"])
def test_user_spark_writes_models(second_lab: Lab, node: str) -> None:
    answer = ssh(second_lab, node, "touch /home/spark/models/x && stat -c %U /home/spark/models/x && rm models/x")
    assert answer.stdout == "spark\n", answer.stderr


@pytest.mark.parametrize("node", ["head", "peer"])
def test_nodes_run_standard_python(second_lab: Lab, node: str) -> None:
    answer = ssh(second_lab, node, "python3 -c 'import ssl, json, http.client, concurrent.futures; print(1)'")
    assert answer.stdout == "1\n", answer.stderr


@pytest.mark.parametrize("address", ["192.168.200.13", "192.168.201.13"])
def test_fabric_carries_jumbo_frames(second_lab: Lab, address: str) -> None:
    answer = second_lab.run_in_node("head", ["ping", "-M", "do", "-s", "8972", "-c", "2", "-W", "2", address])
    assert "2 received" in answer.stdout, answer.stdout + answer.stderr


def test_every_fabric_link_has_the_same_mtu(second_lab: Lab) -> None:
    ask = ["sh", "-c", "cat /sys/class/net/enp1s0f1np1/mtu /sys/class/net/enP2p1s0f1np1/mtu"]
    for node in ("head", "peer"):
        assert second_lab.run_in_node(node, ask).stdout == "9000\n9000\n"
    bridges = subprocess.run(
        ["ip", "-n", second_lab.plan.fabric_namespace, "-o", "link"],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    ports = [line for line in bridges.stdout.splitlines() if ": lo:" not in line]
    assert len(ports) == 6
    assert all(" mtu 9000 " in line for line in ports)


def test_head_reaches_hub_and_registry_and_peer_does_not(second_lab: Lab) -> None:
    ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "3"]
    assert second_lab.run_in_node("head", [*ask, f"http://{second_lab.plan.registry_address}/v2/"]).stdout == "200"
    assert second_lab.run_in_node("head", [*ask, f"{second_lab.plan.hub_url}/"]).stdout != "000"
    assert second_lab.run_in_node("peer", [*ask, f"{second_lab.plan.hub_url}/"]).stdout == "000"


def test_a_container_runs_in_the_nodes_own_cgroup(second_lab: Lab) -> None:
    assert second_lab.run_in_node("peer", ["sh", "-c", IMPORT_AN_IMAGE]).returncode == 0
    words = ["docker", "run", "--rm", "--network", "host", "tiny", "/bin/dash", "-c", "read -r line </proc/self/cgroup"]
    answer = second_lab.run_in_node("peer", [*words, " ".join(["&&", "echo", "$line"])])
    assert answer.returncode == 0, answer.stderr
    assert cgroups.find(second_lab.node("peer").plan.cgroup)


def test_a_command_on_a_node_ends_at_its_time_limit_with_all_it_started(second_lab: Lab) -> None:
    with pytest.raises(LabError, match="no end after 1 s"):
        second_lab.run_in_node("head", ["sh", "-c", "sleep 4711 & wait"], timeout=1)
    time.sleep(0.2)
    assert "4711" not in second_lab.run_in_node("head", ["ps", "-eo", "args"]).stdout


def test_first_process_reaps_orphans(second_lab: Lab) -> None:
    second_lab.run_in_node("head", ["sh", "-c", "(sleep 0.1 &) ; exit 0"])
    deadline = time.monotonic() + 5
    while "Z" in (states := second_lab.run_in_node("head", ["ps", "-eo", "stat", "--no-headers"]).stdout):
        assert time.monotonic() < deadline, states
        time.sleep(0.2)


def test_a_killed_node_comes_back_with_its_disk_and_host_key(second_lab: Lab) -> None:
    second_lab.run_in_node("peer", ["touch", "/home/spark/models/kept"])
    key = second_lab.run_in_node("peer", ["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout
    before = pids(second_lab)
    second_lab.kill_node("peer")
    dead = second_lab.status().node("peer")
    assert dead
    assert dead.pid is None
    assert not dead.ok
    assert second_lab.up(2).up
    after = pids(second_lab)
    assert after.pop("peer") != before.pop("peer")
    assert after == before
    assert second_lab.run_in_node("peer", ["ls", "/home/spark/models"]).stdout == "kept\n"
    assert second_lab.run_in_node("peer", ["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout == key
    assert ssh(second_lab, "peer", "hostname").stdout == "peer\n"


@pytest.mark.parametrize(("node", "command"), [("head", "dockerd"), ("peer", "sshd")])
def test_up_mends_a_node_whose_service_was_killed(second_lab: Lab, node: str, command: str) -> None:
    assert process_of(second_lab, node, command).end()
    time.sleep(0.2)
    assert not second_lab.status().up
    assert second_lab.up(2).up
    assert ssh(second_lab, node, "docker", "ps", "-q").returncode == 0


def test_up_replaces_a_hub_that_runs_an_older_program(second_lab: Lab) -> None:
    before = read_pid_file(second_lab.paths.run / "hub.pid")
    (second_lab.paths.run / "hub.version").write_text("older")
    assert second_lab.up(2).up
    after = read_pid_file(second_lab.paths.run / "hub.pid")
    assert before
    assert after
    assert after.pid != before.pid
    assert second_lab.status().hub_ok


@pytest.mark.parametrize("name", ["hub", "registry"])
def test_up_starts_a_killed_service_and_leaves_the_nodes_alone(second_lab: Lab, name: str) -> None:
    before = pids(second_lab)
    service = before[name]
    assert service
    assert service.end()
    assert second_lab.up(2).up
    assert {key: value for key, value in pids(second_lab).items() if key != name} == {
        key: value for key, value in before.items() if key != name
    }


def test_a_process_on_the_registrys_port_is_named_as_the_cause(second_lab: Lab) -> None:
    process = read_pid_file(second_lab.paths.run / "registry.pid")
    assert process
    assert process.end()
    address = (str(second_lab.plan.host_address), second_lab.plan.registry_port)
    server = [sys.executable, "-m", "http.server", "--bind", address[0], str(address[1])]
    stranger = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(address, timeout=1):
                break
            time.sleep(0.05)
        with pytest.raises(LabError, match="another process answers where the registry should") as caught:
            second_lab.up(2)
        assert "ss -ltnp" in caught.value.remedy
    finally:
        stranger.kill()
        stranger.wait()
    assert second_lab.up(2).up


@pytest.mark.parametrize("lost", ["bridge", "address", "fabric", "fabric bridge", "pid files"])
def test_up_mends_what_was_lost(second_lab: Lab, lost: str) -> None:
    if lost == "bridge":
        subprocess.run(["ip", "link", "del", second_lab.plan.bridge], check=True, timeout=10)
    elif lost == "address":
        subprocess.run(["ip", "addr", "flush", "dev", second_lab.plan.bridge], check=True, timeout=10)
    elif lost == "fabric bridge":
        second_lab.down()
        network.ensure_bridges(second_lab.plan, second_lab.paths.own)
        fabric = ["ip", "-n", second_lab.plan.fabric_namespace]
        subprocess.run([*fabric, "link", "del", "fabric0"], check=True, timeout=10)
    elif lost == "fabric":
        subprocess.run(["ip", "netns", "del", second_lab.plan.fabric_namespace], check=True, timeout=10)
        for node in ("head", "peer"):
            second_lab.run_in_node(node, ["ip", "link", "del", "enp1s0f1np1"])
    else:
        for node in ("head", "peer"):
            (second_lab.paths.run / f"{node}.pid").write_text("torn")
    assert second_lab.up(2).up
    assert second_lab.run_in_node("head", ["ping", "-c", "1", "-W", "2", "192.168.200.13"]).returncode == 0
    assert ssh(second_lab, "head", "hostname").stdout == "head\n"


def test_up_after_the_machine_crashed(second_lab: Lab) -> None:
    """What a crash leaves: pid files of processes that are gone, names of namespaces with nothing behind them."""
    for process in pids(second_lab).values():
        assert process
        assert process.end()
    for node in second_lab.plan.first(2):
        network.detach(second_lab.plan, node)
        cgroups.remove(node.cgroup)
        (network.NAMESPACES / node.namespace).touch()
    network.remove_bridges(second_lab.plan)
    assert second_lab.up(2).up
    assert ssh(second_lab, "peer", "hostname").stdout == "peer\n"


def test_a_third_node_joins_and_the_others_go_on(second_lab: Lab) -> None:
    before = pids(second_lab)
    status = second_lab.up(3)
    assert [node.name for node in status.nodes] == ["head", "peer", "peer2"]
    assert {name: pid for name, pid in pids(second_lab).items() if name != "peer2"} == before
    assert ssh(second_lab, "peer2", "hostname").stdout == "peer2\n"
    assert second_lab.run_in_node("head", ["getent", "hosts", "peer2"]).stdout.split()[0] == "192.168.200.14"


@pytest.mark.parametrize("after_s", [0.1, 0.2, 0.3, 0.5, 0.8])
def test_up_after_an_up_that_was_killed_half_way(second_lab: Lab, after_s: float) -> None:
    second_lab.down()
    half = start_elsewhere(second_lab, "up(2)")
    time.sleep(0.15 + after_s)  # Python itself needs about 0.15 s to begin
    half.send_signal(signal.SIGKILL)
    half.wait(timeout=10)
    assert second_lab.up(2).up
    assert services_of(second_lab) == 2, "one hub and one registry, none that the killed one started and did not note"
    assert ssh(second_lab, "peer", "hostname").stdout == "peer\n"


def test_two_at_once_take_turns(second_lab: Lab) -> None:
    several = [start_elsewhere(second_lab, call) for call in ("down()", "up(2)", "up(2)", "down()", "up(2)")]
    errors = [process.communicate(timeout=60)[1] for process in several]
    assert [process.returncode for process in several] == [0] * len(several), "\n".join(errors)
    assert second_lab.up(2).up
    assert ssh(second_lab, "peer", "hostname").stdout == "peer\n"


def test_images_outlive_down_and_containers_and_files_do_not(second_lab: Lab) -> None:
    second_lab.up(2)
    assert second_lab.run_in_node("head", ["sh", "-c", IMPORT_AN_IMAGE]).returncode == 0
    run = ["docker", "run", "--detach", "--restart", "always", "--network", "host", "tiny", "/bin/sleep", "1000"]
    answer = second_lab.run_in_node("head", run)
    assert answer.returncode == 0, answer.stderr
    second_lab.run_in_node("head", ["touch", "/home/spark/models/gone"])
    second_lab.down()
    second_lab.up(2)
    assert second_lab.run_in_node("head", ["docker", "images", "-q", "tiny"]).stdout
    assert second_lab.run_in_node("head", ["docker", "ps", "-aq"]).stdout == ""
    assert second_lab.run_in_node("head", ["ls", "/home/spark/models"]).stdout == ""


def test_a_restarted_node_keeps_its_containers_as_a_rebooted_machine_does(second_lab: Lab) -> None:
    second_lab.up(2)
    assert second_lab.run_in_node("peer", ["sh", "-c", IMPORT_AN_IMAGE]).returncode == 0
    run = ["docker", "run", "--detach", "--name", "stays", "--network", "host", "tiny", "/bin/sleep", "1000"]
    assert second_lab.run_in_node("peer", run).returncode == 0
    second_lab.restart_node("peer")
    shown = second_lab.run_in_node("peer", ["docker", "ps", "-a", "--format", "{{.Names}} {{.State}}"]).stdout
    assert shown == "stays exited\n"


def test_down_leaves_nothing(second_lab: Lab) -> None:
    second_lab.down()
    before = machine()
    second_lab.up(2)
    run = ["docker", "run", "--detach", "--network", "host", "tiny", "/bin/sleep", "1000"]
    for node in ("head", "peer"):
        assert second_lab.run_in_node(node, ["sh", "-c", IMPORT_AN_IMAGE]).returncode == 0
        assert second_lab.run_in_node(node, run).returncode == 0
    still_there = processes_in_namespaces_of(second_lab)
    noted = [process for process in pids(second_lab).values() if process]
    assert machine() - before
    assert still_there()
    second_lab.down()
    assert machine() == before
    assert still_there() == set()
    assert not any(process.alive for process in noted)
    assert second_lab.leftovers() == ()
    assert second_lab.status().nodes == ()


def test_down_of_a_lab_that_is_down_is_no_error(second_lab: Lab) -> None:
    second_lab.down()
    second_lab.down()


@pytest.mark.parametrize("call", ["up", "down"])
def test_a_lab_of_another_cache_is_left_alone(second_lab: Lab, tmp_path: Path, call: str) -> None:
    assert second_lab.up(2).up
    before = pids(second_lab)
    other = Lab(second_lab.plan, LabPaths(cache=second_lab.paths.cache, own=tmp_path / "own"))
    with pytest.raises(LabError) as caught:
        getattr(other, call)()
    assert str(second_lab.paths.own) in caught.value.observed
    assert pids(second_lab) == before


def test_down_spares_a_process_that_took_over_a_noted_pid(second_lab: Lab) -> None:
    second_lab.down()
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        identity = identify(stranger.pid)
        assert identity
        note = f"{stranger.pid} {identity.started_ticks - 1} {identity.boot}\n"
        for name in ("head", "hub"):
            (second_lab.paths.run / f"{name}.pid").write_text(note)
        second_lab.down()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_last_namespace_takes_the_mount_of_their_folder_along(tmp_path: Path) -> None:
    """`ip netns add` mounts /run/netns upon itself and `ip netns del` leaves that; tried where nobody else sees it."""
    prepare = "mount --make-rprivate / && { umount -R /run/netns || true; } 2>/dev/null && mount -t tmpfs none /run"
    script = f"""\
import subprocess
from pathlib import Path
from spark_pipeline.lab import network
before, cache = network.mount_points(), Path({str(tmp_path)!r})
network.hold_namespace_folder(cache)
subprocess.run(["ip", "netns", "add", "one"], check=True)
network.hold_namespace_folder(cache)
assert network.is_mounted(network.NAMESPACES)
network.release_namespace_folder(cache)
assert network.is_mounted(network.NAMESPACES), "a namespace is still there"
subprocess.run(["ip", "netns", "del", "one"], check=True)
network.release_namespace_folder(cache)
assert network.mount_points() == before
assert not network.NAMESPACES.exists() and not list(cache.iterdir())
"""
    cage = ["unshare", "--mount", "--net", "sh", "-c", f'{prepare} && exec "$0" -c "$1"', sys.executable, script]
    answer = subprocess.run(cage, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stderr


def start_elsewhere(lab: Lab, call: str) -> subprocess.Popen[str]:
    """Call a method of this lab in another process."""
    script = f"""\
import sys
from ipaddress import IPv4Network
from pathlib import Path
from spark_pipeline.lab.lab import Lab, LabPaths, LabPlan
plan = LabPlan(prefix={lab.plan.prefix!r}, management=IPv4Network({str(lab.plan.management)!r}))
Lab(plan, LabPaths(Path({str(lab.paths.cache)!r}), Path({str(lab.paths.own)!r}))).{call}
"""
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
