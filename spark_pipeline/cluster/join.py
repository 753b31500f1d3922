"""The gate before anything is served: the ranks that are up are the declared nodes, and they reach each other.

Ray says `ray status` OK with one node of two, with both on one machine, or with an address that vLLM will not find;
the engine then waits 30 minutes for a placement group. Seconds here save them.
"""

from __future__ import annotations

import json
from importlib import resources

from pydantic import BaseModel, ConfigDict

from spark_pipeline.cluster.generation import Generation
from spark_pipeline.errors import JoinError
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.progress import Progress, heartbeat
from spark_pipeline.fleet.session import Session
from spark_pipeline.spec.deployment import Backend

JOIN_TIMEOUT_SECONDS = 120.0
_MARK = "spark_pipeline_members "


class Member(BaseModel):
    """One joined rank, as the others see it. `accelerators`: how many it offers."""

    model_config = ConfigDict(frozen=True)

    address: str
    hostname: str
    accelerators: float


def join(session: Session, generation: Generation) -> tuple[Member, ...]:
    """Wait until every rank has joined and prove that they are the declared nodes.

    Raises:
        JoinError: too few, too many, the wrong ones, or they do not reach each other.
    """
    with heartbeat(f"joining {len(generation.ranks)} ranks ({generation.backend.value})", session.progress):
        if generation.backend is Backend.RAY:
            members = _ray_members(session, generation)
        else:
            members = _rendezvous(session, generation)
    check_members(generation, members)
    _say(session.progress, members)
    return members


def check_members(generation: Generation, members: tuple[Member, ...]) -> None:
    """Pure: raises JoinError unless the members are the declared nodes, each on its own machine."""
    declared = {rank.fabric: rank.node for rank in generation.ranks}
    seen = {member.address for member in members}
    text = "; ".join(f"{item.address} ({item.hostname}, {item.accelerators:g} accelerators)" for item in members)
    missing = sorted(set(declared) - seen)
    if missing:
        raise JoinError(
            f"{len(missing)} of {len(declared)} ranks did not join: {', '.join(missing)}",
            node=declared[missing[0]],
            observed=f"joined: {text or 'none'}",
            remedy=f"see its log (data/state/{generation.deployment}/logs); a firewall on the fabric, or another "
            "image version on that node, are the usual causes",
        )
    foreign = sorted(seen - set(declared))
    if foreign:
        raise JoinError(
            f"ranks joined that are not declared: {', '.join(foreign)}",
            observed=f"declared: {', '.join(declared)}; joined: {text}",
            remedy=f"find what else uses port {generation.rendezvous_port} of {generation.head_address}, and stop it",
        )
    if len({member.hostname for member in members}) < len(declared):
        raise JoinError(
            "two ranks run on one machine",
            observed=text,
            remedy="two nodes of the fleet lead to the same machine: correct `ssh.host` of one of them",
        )
    without = [member for member in members if member.accelerators < 1]
    if without:
        raise JoinError(
            "a rank offers no accelerator",
            node=declared[without[0].address],
            observed=text,
            remedy="`nvidia-smi` on that node, then in its container",
        )


def _say(progress: Progress, members: tuple[Member, ...]) -> None:
    progress("joined: " + ", ".join(f"{member.hostname} at {member.address}" for member in members))


def _ray_members(session: Session, generation: Generation) -> tuple[Member, ...]:
    address = f"{generation.head_address}:{generation.rendezvous_port}"
    done = Docker(session.connection.host(generation.head.node)).exec(
        generation.head.container,
        ("python3", "-", address, str(len(generation.ranks)), str(JOIN_TIMEOUT_SECONDS - 20), _MARK),
        input=_program("ray_members.py"),
        timeout=JOIN_TIMEOUT_SECONDS,
        check=False,
    )
    line = next((item for item in done.stdout.splitlines() if item.startswith(_MARK)), None)
    if line is None:
        raise JoinError(
            "Ray on the head does not answer",
            node=generation.head.node,
            observed="\n".join(done.stderr.splitlines()[-5:]) or f"status {done.status}",
            remedy=f"see data/state/{generation.deployment}/logs for the head's own words",
        )
    return tuple(Member.model_validate(item) for item in json.loads(line.removeprefix(_MARK)))


def _rendezvous(session: Session, generation: Generation) -> tuple[Member, ...]:
    """Every rank but the head connects to the head's rendezvous port and sends a few jumbo frames' worth of bytes:
    a wrong route, a firewall and an MTU that differs along the way all show here."""
    words = ("python3", "-", generation.head_address, str(generation.rendezvous_port), str(len(generation.ranks)))

    ranks = {rank.node: rank for rank in generation.ranks}

    def meet(host: Host) -> str:
        rank = ranks[host.name]
        done = Docker(host).exec(
            rank.container,
            (*words, str(rank.rank), rank.fabric, _MARK),
            input=_program("rendezvous.py"),
            timeout=60,
            check=False,
        )
        if done.status != 0 and rank.rank > 0:
            raise JoinError(
                f"cannot reach the head at {generation.head_address}:{generation.rendezvous_port}",
                node=rank.node,
                observed=done.stderr.strip()[-300:] or f"status {done.status}",
                remedy="`ping -M do -s 8972` from that node to the head's fabric address: no answer at all is a cable "
                "or an address, an answer only for small packets is an MTU that differs along the way",
            )
        return done.stdout

    output = session.connection.each(list(ranks), meet)[generation.head.node]
    line = next((item for item in output.splitlines() if item.startswith(_MARK)), None)
    if line is None:
        raise JoinError("the rendezvous on the head gave no result", node=generation.head.node, observed=output[-300:])
    return tuple(Member.model_validate(item) for item in json.loads(line.removeprefix(_MARK)))


def _program(name: str) -> str:
    return resources.files("spark_pipeline.cluster").joinpath("inside", name).read_text(encoding="utf-8")
