"""From a route to a logged-in SSH transport: TCP, banner, key exchange, host key, login; each with its own words.

The user's ~/.ssh/known_hosts and ~/.ssh/config are never read: what reaches a node is in the fleet's declaration.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import paramiko

from spark_pipeline.errors import HostKeyError, LoginRefusedError, MachineError, UnreachableError
from spark_pipeline.fleet import pins
from spark_pipeline.fleet.keys import Key, keys_for
from spark_pipeline.fleet.route import Route

STEP_SECONDS = 10.0  # each of: TCP, banner, key exchange, login
KEEPALIVE_SECONDS = 15.0
# Unanswered for so long, the connection is given up. A Spark that loads a model may be deaf for half a minute.
DEAF_SECONDS = 60.0

# Paramiko logs each failed handshake with a traceback; here every one of them becomes an error with a remedy.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def login(route: Route, known_hosts: Path, via: paramiko.Transport | None) -> paramiko.Transport:
    """Connect and log in; `via` is the logged-in transport of the jump host.

    Raises:
        UnreachableError, HostKeyError, LoginRefusedError
    """
    pinned = pins.pinned(known_hosts, route.fleet, route.node)
    if pinned is None:
        raise HostKeyError(
            f"the host key of {route.target} is not pinned",
            node=route.node,
            observed=f"no line for {pins.alias(route.fleet, route.node)} in {known_hosts}",
            remedy=f"spark-pipeline fleet enroll {route.fleet}",
        )
    transport = exchange_keys(route, via, pinned.get_name())
    try:
        check_host_key(route, pinned, transport.get_remote_server_key())
        _authenticate(route, transport, keys_for(route))
    except BaseException:
        transport.close()
        raise
    threading.Thread(target=_watch, args=(transport,), name=f"{route.node} keepalive", daemon=True).start()
    return transport


def exchange_keys(route: Route, via: paramiko.Transport | None, key_type: str = "ssh-ed25519") -> paramiko.Transport:
    """Connect as far as the host key; nobody has logged in yet.

    Args:
        key_type: the type of host key that is asked for first.

    Raises:
        UnreachableError
    """
    transport = paramiko.Transport(_tcp(route) if via is None else _through(route, via))
    transport.daemon = True
    transport.banner_timeout = STEP_SECONDS
    transport.handshake_timeout = 2 * STEP_SECONDS  # ours ends first, and says which step it was
    transport.auth_timeout = STEP_SECONDS
    offered = transport.get_security_options()
    wanted = [kind for kind in offered.key_types if kind == key_type or (key_type == "ssh-rsa" and "rsa-sha2" in kind)]
    offered.key_types = (*wanted, *(kind for kind in offered.key_types if kind not in wanted))
    negotiated = threading.Event()
    try:
        transport.start_client(event=negotiated)
        _wait(lambda: bool(transport.remote_version) or negotiated.is_set())
        if not transport.remote_version:
            raise _no_banner(route, transport.get_exception())
        _wait(negotiated.is_set)
        if not negotiated.is_set() or not transport.is_active():
            raise _no_key_exchange(route, transport)
    except BaseException:
        transport.close()
        raise
    return transport


def check_host_key(route: Route, pinned: paramiko.PKey, seen: paramiko.PKey) -> None:
    """Raises HostKeyError unless the node showed the key that is pinned for it."""
    if pinned == seen:
        return
    raise HostKeyError(
        f"{route.target} shows another host key than the pinned one: another machine answers (an attack, "
        "an address that moved), or the machine was installed anew",
        node=route.node,
        observed=f"pinned {pinned.get_name()} {pinned.fingerprint}\nshown  {seen.get_name()} {seen.fingerprint}",
        remedy="compare with the fingerprint on the machine's own console "
        "(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub); "
        f"only if it is the shown one: spark-pipeline fleet enroll {route.fleet} --replace",
    )


def _tcp(route: Route) -> socket.socket:
    try:
        return socket.create_connection((route.ssh.host, route.ssh.port), timeout=STEP_SECONDS)
    except socket.gaierror as error:
        raise _unreachable(route, f"the name {route.ssh.host} is unknown: {error.strerror}") from error
    except TimeoutError as error:
        raise _unreachable(route, f"no answer within {STEP_SECONDS:.0f} s: off, or a firewall drops it") from error
    except ConnectionRefusedError as error:
        raise _unreachable(route, f"connection refused: no ssh server on port {route.ssh.port}") from error
    except OSError as error:
        raise _unreachable(route, error.strerror or str(error)) from error


def _through(route: Route, via: paramiko.Transport) -> paramiko.Channel:
    """A TCP connection that the jump host opens."""
    jump = route.seen_from
    try:
        return via.open_channel(
            "direct-tcpip", (route.ssh.host, route.ssh.port), ("127.0.0.1", 0), timeout=STEP_SECONDS
        )
    except paramiko.ChannelException as error:
        if error.code == 1:
            raise MachineError(
                f"{jump} forwards no connections",
                node=route.node,
                observed=f"{route.target}: {error.text}",
                remedy=f"set AllowTcpForwarding yes in /etc/ssh/sshd_config of {jump}",
            ) from error
        raise _unreachable(route, f"{jump} says: {error.text}") from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _unreachable(route, f"{jump} did not connect within {STEP_SECONDS:.0f} s: {error}") from error


def _authenticate(route: Route, transport: paramiko.Transport, keys: tuple[Key, ...]) -> None:
    refused: list[str] = []
    for key in keys:
        try:
            if not transport.auth_publickey(route.ssh.user, key.key):
                return
            refused.append(f"{key.label}: accepted, but the server asks for something more")
        except paramiko.BadAuthenticationType as error:
            refused.append(f"{key.label}: the server accepts only {', '.join(error.allowed_types)}")
        except paramiko.AuthenticationException as error:
            if "timeout" in str(error).lower():
                raise UnreachableError(
                    f"{route.target} greets, but does not finish the login",
                    node=route.node,
                    observed=f"no answer to the key within {STEP_SECONDS:.0f} s",
                    remedy="the machine is out of memory or its disk hangs: look at it on its console",
                ) from error
            refused.append(f"{key.label}: refused")
        except (paramiko.SSHException, EOFError, OSError) as error:
            refused.append(f"{key.label}: the server hung up ({str(error) or 'too many keys, or no such user'})")
            break
    raise LoginRefusedError(
        f"user {route.ssh.user} may not log in at {route.target}",
        node=route.node,
        observed="\n".join(refused) or "there is no key to try: no agent, nothing in ~/.ssh",
        remedy=f"put the key on the node: {route.by_hand('ssh-copy-id')}\n"
        f"or name another one in data/fleets/{route.fleet}.yaml (ssh.user, ssh.key)",
    )


def _watch(transport: paramiko.Transport) -> None:
    """Close the transport when the other side is deaf. Paramiko's own keepalive asks, but never misses an answer."""
    while transport.is_active():
        given_up = threading.Timer(DEAF_SECONDS, transport.close)
        given_up.daemon = True
        given_up.start()
        try:
            transport.global_request("keepalive@openssh.com")
        except (paramiko.SSHException, EOFError, OSError):
            return
        finally:
            given_up.cancel()
        transport.join(KEEPALIVE_SECONDS)


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + STEP_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def _no_banner(route: Route, error: Exception | None) -> UnreachableError:
    cause = f": {error}" if error is not None else ""
    return UnreachableError(
        f"{route.target} takes the connection, but no ssh server greets",
        node=route.node,
        observed=f"no ssh banner within {STEP_SECONDS:.0f} s{cause}",
        remedy="when ping works and ssh hangs, the machine is out of memory (a model too large, page cache): "
        "look at it on its console, or restart it; else something that is not ssh listens on that port",
    )


def _no_key_exchange(route: Route, transport: paramiko.Transport) -> UnreachableError:
    error = transport.get_exception()
    if transport.is_active() or error is None or isinstance(error, EOFError):
        observed = f"the key exchange stops after the banner {transport.remote_version!r}"
        remedy = (
            "the usual cause is an MTU that differs along the way (9000 on one side, 1500 on a switch): ping works, "
            f"large packets vanish. From {route.seen_from}: ping -M do -s 8972 {route.ssh.host}; "
            "the second cause is a machine out of memory"
        )
    else:
        observed = str(error)
        remedy = f"compare by hand: {route.by_hand('ssh -v')}"
    return UnreachableError(
        f"{route.target} greets, but no key exchange succeeds", node=route.node, observed=observed, remedy=remedy
    )


def _unreachable(route: Route, observed: str) -> UnreachableError:
    return UnreachableError(
        f"no connection to {route.target}",
        node=route.node,
        observed=observed,
        remedy=f"from {route.seen_from}: ping {route.ssh.host}; "
        f"is the address in data/fleets/{route.fleet}.yaml right, and the machine on?",
    )
