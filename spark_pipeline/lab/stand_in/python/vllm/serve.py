"""`vllm serve` without a model: the same log lines, checks, ranks and endpoints as vLLM 0.32, ready in a second.

Faults, by STANDIN_FAULT in the container's environment (several with commas, `name@host` on one node only):
    exit_at_start      ends with status 1 before it is ready, with vLLM's last words
    exit_after_start   becomes ready, then its engine dies: status 0 after STANDIN_LIFE_S, as vLLM does
    never_ready        loads for ever
    wrong_model_id     /v1/models lists another id
    empty_answer       completions hold no text, and NaN log probabilities (a checkpoint with wrong bytes)
    bench_failures     every fourth request of `vllm bench serve` gets a 500 (bench.py marks them)
    ray_missing_member a worker's `ray start` runs but never joins (ray/__main__.py)
STANDIN_START_S: seconds until it is ready, 1 by default.

A rank that dies is noticed as by the real one (tried with 0.32.0): in Ray mode within seconds, and the head's engine
ends with status 0; in mp mode /health stays 200 until the next request, which gets a 500 and ends it.
"""

import argparse
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from . import __version__, has_fault
from .api import ApiServer
from .engine.arg_utils import serve_parser
from .model_executor.models.registry import _VLLM_MODELS

LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR"}


def log(who: str, text: str, where: str, level: str = "I") -> None:
    """One line as vLLM's loggers write it."""
    now = time.strftime("%m-%d %H:%M:%S")
    print(f"({who} pid={os.getpid()}) {LEVELS[level]} {now} [{where}] {text}", flush=True)


class StartUpError(Exception):
    """What ends the start; `is_config` is vLLM's family of ModelConfig errors, the rest comes from the engine."""

    def __init__(self, text: str, *, is_config: bool = False) -> None:
        super().__init__(text)
        self.is_config = is_config


def serve(words: list[str]) -> int:
    arguments, _ = serve_parser().parse_known_args(words)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    names = arguments.served_model_name or [arguments.model_tag]
    is_headless = arguments.node_rank > 0
    who = "MainProcess" if is_headless else "APIServer"
    for line in ("", "  vLLM stand-in", f"  version {__version__}", f"  model   {arguments.model_tag}", ""):
        log(who, line, "api_utils.py:347")
    log(who, f"non-default args: {vars(arguments)}", "api_utils.py:286")
    server = None
    try:
        if not is_headless:
            server = ApiServer(arguments.host, arguments.port, names, has_fault)
        maximum = _check_model(who, Path(arguments.model_tag), arguments.max_model_len)
        if has_fault("exit_at_start"):
            raise StartUpError("RuntimeError: the stand-in was told to fail (exit_at_start)")
        is_rank_lost = _meet_the_others(who, arguments)
        worker = f"Worker_TP{arguments.node_rank}"
        log(worker, f"Starting to load model {arguments.model_tag}...", "cpu_model_runner.py:68")
        if has_fault("never_ready"):
            threading.Event().wait()
        _load(worker, Path(arguments.model_tag))
        time.sleep(float(os.environ.get("STANDIN_START_S", "1")))
        log(worker, "Loading weights took 0.01 seconds", "default_loader.py:501")
    except OSError as error:
        print(f"Traceback (most recent call last):\nOSError: {error}", file=sys.stderr, flush=True)
        return 1
    except StartUpError as error:
        return _report(error)
    if server is None:
        threading.Event().wait()  # a headless rank stays, also when the head is gone: vLLM 0.32's does
        return 0
    server.max_model_len = maximum
    log("EngineCore", "init engine (profile, create kv cache, warmup model) took 0.01 s", "core.py:402")
    log(who, f"Starting vLLM server on http://{arguments.host}:{arguments.port}", "entry.py:140")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("INFO:     Started server process\nINFO:     Application startup complete.", flush=True)
    lives_until = time.monotonic() + float(os.environ.get("STANDIN_LIFE_S", "2"))
    server.is_rank_lost = is_rank_lost
    is_ray = arguments.distributed_executor_backend == "ray"
    while not server.is_dead.wait(0.2):
        if (has_fault("exit_after_start") and time.monotonic() > lives_until) or (is_ray and is_rank_lost()):
            break
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)"
    log(who, f"{dead} for the root cause.", "async_llm.py:906", "E")
    time.sleep(0.2)  # the answer to the request that met it goes out
    return 0


def _check_model(who: str, directory: Path, wanted: int | None) -> int:
    """vLLM's questions to config.json; returns the context length that will be served."""
    try:
        config = json.loads((directory / "config.json").read_text())
    except OSError:
        text = f"Invalid repository ID or local directory specified: '{directory}'."
        raise StartUpError(text, is_config=True) from None
    architectures = config.get("architectures", [])
    if not set(architectures) & set(_VLLM_MODELS):
        known = f"dict_keys({sorted(_VLLM_MODELS)})"
        text = f"Model architectures {architectures} are not supported for now. Supported architectures: {known}"
        raise StartUpError(text, is_config=True)
    log(who, f"Resolved architecture: {architectures[0]}", "model.py:733")
    derived = config.get("text_config", config).get("max_position_embeddings", 2048)
    if wanted is not None and wanted > derived:
        text = f"User-specified max_model_len ({wanted}) is greater than the derived max_model_len "
        text += f"(max_position_embeddings={derived} or model_max_length=None in model's config.json)."
        raise StartUpError(text, is_config=True)
    log(who, f"Using max model len {wanted or derived}", "model.py:2152")
    return wanted or derived


def _load(who: str, directory: Path) -> None:
    """Every shard of the index is there and as long as its header says."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = sorted(path.name for path in directory.glob("*.safetensors"))
    missing = {str(directory / name) for name in names if not (directory / name).exists()}
    if missing:
        raise StartUpError(f"FileNotFoundError: Weight files referenced in index but missing: {missing}")
    for name in names:
        data = (directory / name).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        if len(data) != 8 + length + max(ends):
            text = "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: "
            raise StartUpError(text + "incomplete metadata, file not fully covered")
    log(who, f"Loading safetensors checkpoint shards: 100% Completed | {len(names)}/{len(names)}", "weight_utils.py:1")


def _meet_the_others(who: str, arguments: argparse.Namespace) -> Callable[[], bool]:
    """Wait for every rank: through Ray's placement group, or the master port. Returns what tells that one is lost."""
    world = arguments.tensor_parallel_size * arguments.pipeline_parallel_size
    if arguments.distributed_executor_backend == "ray":
        return _wait_for_ray(world)
    if arguments.nnodes > 1:
        return _wait_for_ranks(who, arguments)
    if world > 1:
        raise StartUpError(
            "AssertionError: Not enough allowed NUMA nodes to bind threads of "
            f"{world} local CPUWorkers. Allowed NUMA nodes are [0]. Please try to bind threads manually or decrease "
            "DP/TP/PP."
        )
    return lambda: False


def _wait_for_ray(world: int) -> Callable[[], bool]:
    try:
        ray = import_module("ray")
    except ImportError:
        raise StartUpError("ValueError: Ray is not installed.") from None
    log("EngineCore", "No current placement group found. Creating a new placement group.", "ray_utils.py:607")
    ray.init(address="auto")

    def is_too_few() -> bool:
        try:
            members = ray.nodes()
        except ConnectionError:
            return True
        return sum(node["Resources"].get("GPU", 0) for node in members if node["Alive"]) < world

    last_said = time.monotonic()
    while is_too_few():
        if time.monotonic() - last_said > 10:
            last_said = time.monotonic()
            text = f"Waiting for creating a placement group of specs {[{'GPU': 1.0}] * world}. Check `ray status`"
            log("EngineCore", text, "ray_utils.py:400")
        time.sleep(0.1)
    return is_too_few


def _wait_for_ranks(who: str, arguments: argparse.Namespace) -> Callable[[], bool]:
    """Rank 0 listens on the master port; each other one says its rank and waits for the word to go on."""
    where = (arguments.master_addr, arguments.master_port)
    init = f"distributed_init_method=tcp://{where[0]}:{where[1]} backend=gloo"
    log(who, f"world_size={arguments.nnodes} rank={arguments.node_rank} {init}", "parallel_state.py:1906")
    if arguments.node_rank > 0:
        connection = _join_rank_0(where, arguments.node_rank)
        return lambda: connection.fileno() < 0  # never: it only has to stay open as long as this process lives
    joined: dict[int, socket.socket] = {}
    with socket.create_server(where) as listener:
        while len(joined) < arguments.nnodes - 1:
            connection, _ = listener.accept()
            rank = connection.recv(8).decode().strip()
            if rank.isdecimal():
                joined[int(rank)] = connection
    for connection in joined.values():
        connection.sendall(b"go")
    return lambda: any(map(_is_closed, joined.values()))


def _join_rank_0(where: tuple[str, int], rank: int) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection(where, timeout=2)
            connection.settimeout(None)
            connection.sendall(f"{rank}\n".encode())
            if connection.recv(2) == b"go":
                return connection
        except OSError:
            pass
        time.sleep(0.1)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _report(error: StartUpError) -> int:
    """End as vLLM does: a ModelConfig error as pydantic words it, everything else behind an empty last line."""
    if error.is_config:
        print(
            "Traceback (most recent call last):\n"
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            f"  Value error, {error} [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
            file=sys.stderr,
            flush=True,
        )
        return 1
    log("Worker", "WorkerProc failed to start.", "multiproc_executor.py:953", "E")
    log("Worker", str(error), "multiproc_executor.py:953", "E")
    last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    print(last, file=sys.stderr, flush=True)
    return 1
