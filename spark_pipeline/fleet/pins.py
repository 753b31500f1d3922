"""The pipeline's own known_hosts file: one pinned key for each node, under a name that no other fleet shares.

192.168.200.13 exists in many fleets, so keys are pinned to `<fleet>/<node>`, never to an address. The format is
OpenSSH's, so that the same lines serve `ssh -o HostKeyAlias=<fleet>/<node>` on the head.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from spark_pipeline.spec.store import write_text


def alias(fleet: str, node: str) -> str:
    """The host name that a node's key is pinned to."""
    return f"{fleet}/{node}"


def line(fleet: str, node: str, key: paramiko.PKey) -> str:
    """One line of a known_hosts file, without its newline."""
    return f"{alias(fleet, node)} {key.get_name()} {key.get_base64()}"


def pinned(known_hosts: Path, fleet: str, node: str) -> paramiko.PKey | None:
    """The key that is pinned for a node, None where there is none."""
    for words in _lines(known_hosts):
        if len(words) >= 3 and words[0] == alias(fleet, node):
            try:
                return paramiko.PKey.from_type_string(words[1], base64.b64decode(words[2], validate=True))
            except (UnknownKeyType, binascii.Error, paramiko.SSHException):
                continue
    return None


def pin(known_hosts: Path, fleet: str, node: str, key: paramiko.PKey) -> None:
    """Make `key` the one pinned key of a node."""
    others = [" ".join(words) for words in _lines(known_hosts) if words[:1] != [alias(fleet, node)]]
    write_text(known_hosts, "\n".join([*others, line(fleet, node, key)]) + "\n")


def _lines(known_hosts: Path) -> list[list[str]]:
    try:
        text = known_hosts.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [words for words in map(str.split, text.splitlines()) if words]
