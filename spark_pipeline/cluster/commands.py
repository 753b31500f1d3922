"""The exact words that start a rank: pure functions, tested as text."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from spark_pipeline.cluster.network import PER_NODE_NAMES
from spark_pipeline.fleet.facts import NodeFacts
from spark_pipeline.spec.deployment import Backend, Deployment
from spark_pipeline.spec.fleet import Accelerator

# Inside every container: where the start-up commands leave their marks (cluster/bootstrap.sh).
MARKS = "/tmp/spark_pipeline"  # noqa: S108 - a path inside a container of our own
_OBJECT_STORE_BYTES = {Accelerator.NVIDIA: 2**30, Accelerator.NONE: 200_000_000}
_SHARED_MEMORY = {Accelerator.NVIDIA: "16g", Accelerator.NONE: "1g"}


def bootstrap() -> str:
    """The start-up commands that travel into every container."""
    return resources.files("spark_pipeline.cluster").joinpath("bootstrap.sh").read_text(encoding="utf-8")


def common_environment(accelerator: Accelerator) -> dict[str, str]:
    """The same on every rank; a deployment's own `serve.env` wins over it."""
    environment = {
        # The weights are on disk and verified; a node without internet must not wait for a hub.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if accelerator is Accelerator.NVIDIA:
        environment |= {
            # Fragmentation on unified memory ends in an out-of-memory that restarting does not cure.
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            # Ten performance and ten efficiency cores: NCCL's own pinning lands threads on the slow ones.
            "NCCL_IGNORE_CPU_AFFINITY": "1",
            "TRITON_CACHE_DIR": "/root/.cache/triton",
        }
    return environment


def ray_environment() -> dict[str, str]:
    return {
        # Ray would kill the engine at 95 % of the node's memory, which on unified memory is normal serving.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_num_prestart_python_workers": "0",
        "VLLM_CONFIG_ROOT": f"{MARKS}/config",
        "SPARK_PIPELINE_PER_NODE_NAMES": "[" + ", ".join(f'"{name}"' for name in PER_NODE_NAMES) + "]",
    }


def ray_start(accelerator: Accelerator, *, head: bool, address: str, head_address: str, port: int) -> tuple[str, ...]:
    """`ray start` of one node. GPUs are given by number: where NVML fails, Ray silently counts none (ray#59265)."""
    where = ("--head", "--port", str(port)) if head else ("--block", "--address", f"{head_address}:{port}")
    return (
        "ray", "start", *where,
        "--node-ip-address", address,
        "--num-cpus", "2",
        "--num-gpus", "1",
        "--object-store-memory", str(_OBJECT_STORE_BYTES[accelerator]),
        "--disable-usage-stats",
        *(("--include-dashboard=false",) if head else ()),
    )  # fmt: skip


def docker_run(
    *,
    name: str,
    labels: Mapping[str, str],
    environment: Mapping[str, str],
    image: str,
    fingerprint: str,
    model_directory: str,
    accelerator: Accelerator,
    facts: NodeFacts,
    arguments: tuple[str, ...],
) -> tuple[str, ...]:
    """`docker run` of one rank.

    Never --privileged. The entrypoint is always replaced: some images start serving by themselves. `--init` reaps
    and passes signals on, so that stopping takes no grace period. The model is bound with --mount, which fails where
    the directory is missing; -v would let dockerd create it, owned by root.
    """
    words = ["docker", "run", "--detach", "--pull", "never", "--init", "--name", name]
    # Root inside, whatever the image says: caches and marks lie where root may write.
    words += ["--network", "host", "--workdir", "/", "--user", "0"]
    words += ["--entrypoint", "/bin/sh", "--shm-size", _SHARED_MEMORY[accelerator]]
    words += ["--security-opt", "no-new-privileges"]
    # The engine goes before sshd does when memory runs out.
    words += ["--oom-score-adj", "500"]
    if accelerator is Accelerator.NVIDIA:
        words += ["--gpus", "all"]
        if facts.infiniband:
            words += ["--device", "/dev/infiniband"]
        # RDMA pins memory; without both, ibv_reg_mr fails or NCCL falls back to TCP without a word.
        words += ["--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1:-1", "--ulimit", "stack=67108864:67108864"]
        # Compiled and tuned kernels of this image: the first start may spend an hour on them.
        words += ["--mount", f"type=volume,src=spark-pipeline-cache-{fingerprint[:12]},dst=/root/.cache"]
    else:
        # vLLM's CPU build binds memory to NUMA nodes; without these its start hangs after a warning.
        words += ["--cap-add", "SYS_NICE", "--security-opt", "seccomp=unconfined"]
    words += ["--mount", f"type=bind,src={model_directory},dst={model_directory},readonly"]
    for key, value in labels.items():
        words += ["--label", f"{key}={value}"]
    for key, value in sorted(environment.items()):
        words += ["--env", f"{key}={value}"]
    return (*words, image, "-c", bootstrap(), "spark-pipeline", *arguments)


def vllm_serve(
    deployment: Deployment,
    *,
    model_directory: str,
    backend: Backend,
    rank: int,
    head_address: str,
    utilization: float | None,
) -> tuple[str, ...]:
    """`vllm serve` of one rank.

    Args:
        backend: with MP every rank gets its own command (`rank` counts); with RAY only rank 0 has one.
        utilization: share of memory, 0 to 1; None leaves it to the engine.
    """
    serve, parallel = deployment.serve, deployment.parallel
    words = ["vllm", "serve", model_directory, "--served-model-name", serve.served_name]
    words += ["--host", "0.0.0.0", "--port", str(serve.port)]  # noqa: S104 - an endpoint for the network
    if serve.max_model_len is not None:
        words += ["--max-model-len", str(serve.max_model_len)]
    if utilization is not None:
        words += ["--gpu-memory-utilization", f"{utilization:.2f}"]
    words += serve.args
    words += ["--tensor-parallel-size", str(parallel.tensor), "--pipeline-parallel-size", str(parallel.pipeline)]
    words += ["--distributed-executor-backend", backend.value]
    if backend is Backend.MP and parallel.world_size > 1:
        words += ["--nnodes", str(parallel.world_size), "--node-rank", str(rank)]
        words += ["--master-addr", head_address, "--master-port", str(serve.rendezvous_port)]
        words += ["--headless"] if rank > 0 else []
    return tuple(words)
