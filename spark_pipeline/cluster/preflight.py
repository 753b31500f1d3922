"""What must be true on the nodes before an old generation is stopped for a new one.

Today's launchers find a taken port after the imports (15 s) or after two minutes of silence (facts: rivals, row 4),
and a missing model after a minute under a misleading name. Each question here costs one command a node, all at once.
"""

from __future__ import annotations

from spark_pipeline.cluster.plan import ClusterPlan
from spark_pipeline.cluster.record import generation_behind
from spark_pipeline.errors import ClusterError
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.session import Session
from spark_pipeline.weights.record import WeightsRecord

TIMEOUT_SECONDS = 20.0


def preflight(session: Session, planned: ClusterPlan) -> None:
    """Raises ClusterError naming the node where the image or the weights are missing, or a port is taken."""
    target = planned.target
    held = _held_ports(session, planned)
    ports = [] if held is None else [port for port in _ports(planned) if port not in held]

    def look(host: Host) -> None:
        _need_image(host, target.image.reference, target.image.fingerprint)
        need_weights(host, target.weights)
        if host.name == target.nodes[0].name:
            for port in ports:
                _need_port(host, port)

    session.connection.each([node.name for node in target.nodes], look)


def need_free_ports(session: Session, planned: ClusterPlan) -> None:
    """Once nothing of ours runs: raises ClusterError if a port of the head is somebody else's."""
    for port in _ports(planned):
        _need_port(session.head, port)


def _ports(planned: ClusterPlan) -> tuple[int, int]:
    return planned.target.deployment.serve.port, planned.target.deployment.serve.rendezvous_port


def _held_ports(session: Session, planned: ClusterPlan) -> frozenset[int] | None:
    """Ports that become free when the earlier generation goes; None if its record is lost, so that nobody knows."""
    behind = [generation_behind(session.state_dir, container) for container in planned.remove]
    known = [generation for generation in behind if generation is not None]
    if len(known) < len(behind):
        return None
    return frozenset(port for item in known for port in (item.port, item.rendezvous_port))


def _need_image(host: Host, reference: str, fingerprint: str) -> None:
    found = Docker(host).image(reference)
    if found is None or found.fingerprint != fingerprint:
        raise ClusterError(
            "the image is not on this node" if found is None else "another image lies under this name",
            node=host.name,
            observed=f"{reference}: {found.fingerprint[:12] if found else 'absent'}, wanted {fingerprint[:12]}",
            remedy="materialize vllm_image again",
        )


def need_weights(host: Host, weights: WeightsRecord) -> None:
    """Raises ClusterError unless this node has proven these files since it was switched on."""
    # The marker names the manifest that was proven on this node, by this node.
    words = ("grep", "--quiet", "--fixed-strings", weights.manifest_sha256, weights.marker)
    if host.run(words, timeout=TIMEOUT_SECONDS, check=False).status != 0:
        raise ClusterError(
            "the verified model is not on this node",
            node=host.name,
            observed=f"{weights.marker} is missing, or is another manifest's",
            remedy="materialize model_weights again",
        )
    # It also names the boot in which they were read; after a power cut files may be shorter than they were read.
    words = ("grep", "--quiet", "--fixed-strings", "--file=/proc/sys/kernel/random/boot_id", weights.marker)
    if host.run(words, timeout=TIMEOUT_SECONDS, check=False).status != 0:
        raise ClusterError(
            "this node was restarted since its model was verified",
            node=host.name,
            observed=f"{weights.marker} is of another boot",
            remedy="materialize model_weights again: it reads the files once, and fetches only what is wrong",
        )


def _need_port(host: Host, port: int) -> None:
    done = host.run(("ss", "--no-header", "-ltnp", f"sport = :{port}"), timeout=TIMEOUT_SECONDS, check=False)
    listener = done.stdout.strip().partition("\n")[0].strip()
    if done.status != 0 or not listener:
        return
    running = host.run(("docker", "ps", "--format", "{{.Names}} ({{.Image}})"), timeout=TIMEOUT_SECONDS, check=False)
    raise ClusterError(
        f"port {port} is taken",
        node=host.name,
        observed=f"{listener}; containers: {', '.join(running.stdout.splitlines()) or 'none'}",
        remedy="stop what listens there, or declare another `serve.port`",
    )
