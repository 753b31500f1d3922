"""The private keys that a login tries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from spark_pipeline.errors import LoginRefusedError
from spark_pipeline.fleet.route import Route

_DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Key:
    """One key, and where it comes from."""

    key: paramiko.PKey
    label: str


def keys_for(route: Route) -> tuple[Key, ...]:
    """The declared key alone; without one, the agent's keys, then ~/.ssh's that have no passphrase.

    Raises:
        LoginRefusedError: the declared key cannot be used.
    """
    if route.ssh.key is None:
        found = [_from_file(Path("~/.ssh").expanduser() / name) for name in _DEFAULT_NAMES]
        return (*_agent(), *(key for key in found if key is not None))
    path = Path(route.ssh.key).expanduser()
    try:
        return (_loaded(path),)
    except FileNotFoundError as error:
        problem, remedy = "there is no such file", f"ssh-keygen -t ed25519 -f {route.ssh.key}, or name another ssh.key"
        cause: Exception = error
    except (paramiko.PasswordRequiredException, TypeError) as error:  # what the decoder says without a passphrase
        if key := _held_by_agent(path):
            return (key,)
        problem, remedy = "it has a passphrase, and no agent holds it", f"ssh-add {route.ssh.key}"
        cause = error
    except (OSError, ValueError, UnknownKeyType, paramiko.SSHException) as error:
        problem, remedy = str(error), "name an OpenSSH private key (ed25519, ecdsa or rsa) that this user may read"
        cause = error
    raise LoginRefusedError(
        f"the private key for {route.target} cannot be used",
        node=route.node,
        observed=f"{path}: {problem}",
        remedy=remedy,
    ) from cause


def _loaded(path: Path) -> Key:
    key = paramiko.PKey.from_path(path)
    return Key(key, f"{path} ({key.fingerprint})")


def _from_file(path: Path) -> Key | None:
    try:
        return _loaded(path)
    except (OSError, ValueError, TypeError, UnknownKeyType, paramiko.SSHException):
        return None


def _agent() -> tuple[Key, ...]:
    try:
        keys = paramiko.Agent().get_keys()
    except (paramiko.SSHException, OSError, EOFError):
        return ()
    return tuple(Key(key, f"agent: {key.comment or key.get_name()} ({key.fingerprint})") for key in keys)


def _held_by_agent(path: Path) -> Key | None:
    try:
        public = path.with_name(path.name + ".pub").read_text(encoding="utf-8").split()
    except OSError:
        return None
    return next((key for key in _agent() if public[1:2] == [key.key.get_base64()]), None)
