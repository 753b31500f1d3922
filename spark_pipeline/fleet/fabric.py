"""From the head to its peers: the way that bulk bytes take. They never pass through the orchestrator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_pipeline.errors import (
    CommandTimeoutError,
    DeclarationError,
    HostKeyError,
    LoginRefusedError,
    UnreachableError,
)
from spark_pipeline.fleet import pins
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.failures import last_lines
from spark_pipeline.fleet.host import Completed, Host, Words, shell_text
from spark_pipeline.fleet.parallel import each
from spark_pipeline.spec.fleet import Fleet, Node

_CONNECT_SECONDS = 10
# Fast with AES in hardware, which Arm and x86 both have; OpenSSH's own first choice, chacha20, is several times slower.
_CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"


def fabric_ssh(fleet: Fleet, peer: Node) -> tuple[str, ...]:
    """The words that, run on the head, reach `peer` over the fabric. No word holds a blank, so `rsync -e` reads them.

    `prepare_fabric` puts the host keys there. `%d` is the home directory, to ssh itself (OpenSSH 8.4 and later).

    Raises:
        DeclarationError: the peer has no ssh login.
    """
    if peer.ssh is None:
        raise DeclarationError(
            f"fleet {fleet.name}: node {peer.name} is local, and only the head may be",
            remedy="declare the node that the pipeline runs on first, or give it an `ssh:` block",
        )
    options = (
        "BatchMode=yes",
        f"ConnectTimeout={_CONNECT_SECONDS}",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile=%d/{_known_hosts(fleet)}",
        "GlobalKnownHostsFile=/dev/null",
        f"HostKeyAlias={pins.alias(fleet.name, peer.name)}",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=4",
        "LogLevel=ERROR",
        f"Ciphers={_CIPHERS}",
    )
    words = [word for option in options for word in ("-o", option)]
    return ("ssh", *words, "-p", str(peer.ssh.port), f"{peer.ssh.user}@{peer.fabric}")


def pipe(producer: Words, ssh_words: Words, consumer: Words) -> tuple[str, ...]:
    """One command for the head: `producer | ssh ... consumer`, failing when either side does.

    `consumer` are the words to run on the peer. bash, because a pipe's status in POSIX sh is the last one's alone.
    """
    text = f"{shell_text(producer)} | {shell_text([*ssh_words, shell_text(consumer)])}"
    return ("bash", "-o", "pipefail", "-c", text)


def prepare_fabric(connection: FleetConnection, fleet: Fleet, known_hosts: Path, peers: Sequence[Node]) -> None:
    """Give the head the peers' pinned host keys, and see that it may log in there.

    Raises:
        HostKeyError: a peer's key is not pinned, or it shows another one to the head.
        LoginRefusedError: the head's own key is not authorised on the peer.
        UnreachableError: the fabric does not carry ssh.
    """
    if not peers:
        return
    for peer in peers:
        _refuse_unpinned(fleet, known_hosts, peer)
    head = connection.host(fleet.head.name)
    # Every node's key, whoever asks: two stages may do this at the same moment, for different peers.
    keys = {node.name: pins.pinned(known_hosts, fleet.name, node.name) for node in fleet.nodes}
    lines = [pins.line(fleet.name, name, key) + "\n" for name, key in keys.items() if key is not None]
    head.put("".join(lines).encode(), _known_hosts(fleet), mode=0o600)
    each([peer.name for peer in peers], lambda name: _see_login(head, fleet, fleet.node(name)))


def _known_hosts(fleet: Fleet) -> str:
    """Below the home directory, which is where commands on a node start."""
    return f".spark_pipeline/known_hosts_{fleet.name}"


def _refuse_unpinned(fleet: Fleet, known_hosts: Path, peer: Node) -> None:
    if pins.pinned(known_hosts, fleet.name, peer.name) is None:
        raise HostKeyError(
            "the host key of this node is not pinned",
            node=peer.name,
            observed=f"no line for {pins.alias(fleet.name, peer.name)} in {known_hosts}",
            remedy=f"spark-pipeline fleet enroll {fleet.name}",
        )


def _see_login(head: Host, fleet: Fleet, peer: Node) -> None:
    words = fabric_ssh(fleet, peer)
    try:
        done = head.run([*words, "true"], timeout=_CONNECT_SECONDS + 5, check=False)
    except CommandTimeoutError as error:
        raise UnreachableError(
            f"{head.name} gets no further than the key exchange with {peer.fabric}",
            node=peer.name,
            observed=error.observed,
            remedy="the usual cause is an MTU that differs along the fabric: ping works, large packets vanish. "
            f"On {head.name}: ping -M do -s 8972 {peer.fabric}",
        ) from error
    if done.status != 0:
        raise _refusal(head, fleet, peer, done)


def _refusal(head: Host, fleet: Fleet, peer: Node, done: Completed) -> Exception:
    assert peer.ssh is not None  # fabric_ssh has seen to that
    observed = last_lines(done.stderr)
    target = f"{peer.ssh.user}@{peer.fabric}"
    by_hand = f"ssh -p {peer.ssh.port} {target}"
    if "Permission denied" in observed or "Too many authentication failures" in observed:
        return LoginRefusedError(
            f"{head.name} may not log in at {target}: nothing can go there over ssh",
            node=peer.name,
            observed=observed,
            remedy=f"on {head.name}: [ -e ~/.ssh/id_ed25519 ] || ssh-keygen -t ed25519 -N '' -f ~/.ssh/id_ed25519; "
            f"ssh-copy-id -p {peer.ssh.port} {target}",
        )
    if "Host key verification failed" in observed or "HOST IDENTIFICATION HAS CHANGED" in observed:
        return HostKeyError(
            f"{peer.fabric} shows {head.name} another host key than the one that is pinned for {peer.name}",
            node=peer.name,
            observed=observed,
            remedy=f"is {peer.fabric} really {peer.name}'s fabric address? After a re-installation: "
            f"spark-pipeline fleet enroll {fleet.name} --replace",
        )
    return UnreachableError(
        f"{head.name} does not reach {peer.fabric} over the fabric",
        node=peer.name,
        observed=observed,
        remedy=f"on {head.name}: ip -br addr; ping {peer.fabric}; {by_hand}. Is the cable in, the link up, "
        "the address static on both ends?",
    )
