"""The stand-in engine, run as processes on loopback: what it promises to play."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_pipeline.lab
from spark_pipeline.lab.tiny_models import tiny_files

PYTHON = Path(spark_pipeline.lab.__file__).parent / "stand_in" / "python"


class Engine:
    """Starts stand-in commands and ends them with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = directory / "model"
        self.model.mkdir()
        for name, content in tiny_files(1).items():
            (self.model / name).write_bytes(content)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, fault: str = "") -> subprocess.Popen[str]:
        own = {"PYTHONPATH": str(PYTHON), "STANDIN_FAULT": fault, "STANDIN_START_S": "0.1", "STANDIN_LIFE_S": "0.3"}
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def serve(self, *words: str, fault: str = "") -> subprocess.Popen[str]:
        return self.start("vllm", "serve", str(self.model), "--served-model-name", "tiny", *words, fault=fault)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.end()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def ask(port: int, path: str, body: dict[str, object] | None = None) -> str:
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=5) as answer:
        return answer.read().decode()


def eventually(is_so: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_ready(port: int) -> bool:
    try:
        ask(port, "/health")
    except OSError:
        return False
    return True


def wait_until_ready(port: int) -> None:
    eventually(lambda: is_ready(port))


def test_serves_the_declared_name_and_answers_with_as_many_tokens_as_asked(engine: Engine, port: int) -> None:
    engine.serve("--port", str(port), "--max-model-len", "512", "--enforce-eager", "--dtype", "bfloat16")
    wait_until_ready(port)

    model = json.loads(ask(port, "/v1/models"))["data"][0]
    assert (model["id"], model["max_model_len"]) == ("tiny", 512)
    answer = json.loads(ask(port, "/v1/completions", {"model": "tiny", "prompt": "a b", "max_tokens": 3}))
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert answer["choices"][0]["text"] == "the lab answers "
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    assert ask(port, "/v1/chat/completions", chat).count('"delta"') == 2


def test_ranks_wait_for_each_other(engine: Engine, port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        master = listener.getsockname()[1]
    words = ["-tp", "2", "--distributed-executor-backend", "mp", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    words += ["--master-port", str(master)]
    head = engine.serve(*words, "--node-rank", "0", "--port", str(port))
    time.sleep(0.5)
    with pytest.raises(urllib.error.URLError):
        ask(port, "/health")

    worker = engine.serve(*words, "--node-rank", "1", "--headless")

    wait_until_ready(port)
    assert head.poll() is None
    # As with the real one: nobody notices that a rank died, until somebody asks for tokens.
    worker.kill()
    worker.wait()
    time.sleep(0.5)
    assert is_ready(port)
    with pytest.raises(urllib.error.HTTPError, match="500"):
        ask(port, "/v1/completions", {"model": "tiny", "prompt": "x"})
    assert head.wait(timeout=10) == 0


def test_ray_counts_members_and_sees_one_go(engine: Engine, port: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{port}"
    program = tmp_path / "members.py"
    program.write_text(
        f"import ray; ray.init(address={address!r}, logging_level='ERROR', log_to_driver=False)\n"
        "print([(n['NodeManagerAddress'], n['Alive'], n['Resources'].get('GPU')) for n in ray.nodes()])"
    )

    def members() -> str:
        own = {**os.environ, "PYTHONPATH": str(PYTHON)}
        return subprocess.run([sys.executable, str(program)], env=own, capture_output=True, text=True).stdout.strip()

    start = ("ray", "start", "--block", "--num-cpus", "2", "--num-gpus", "1", "--node-ip-address")
    engine.start(*start, "127.0.0.1", "--head", "--port", str(port))
    eventually(lambda: members() == "[('127.0.0.1', True, 1.0)]")
    missing = engine.start(*start, "127.0.0.3", "--address", address, fault="ray_missing_member")
    assert missing.stdout is not None
    assert "Ray runtime started" in missing.stdout.readline()

    worker = engine.start(*start, "127.0.0.2", "--address", address)

    eventually(lambda: members() == "[('127.0.0.1', True, 1.0), ('127.0.0.2', True, 1.0)]")
    worker.kill()
    eventually(lambda: members() == "[('127.0.0.1', True, 1.0), ('127.0.0.2', False, 1.0)]")


def test_bench_writes_what_the_real_one_writes(engine: Engine, port: int) -> None:
    engine.serve("--port", str(port))
    wait_until_ready(port)

    result = bench(engine, port)

    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (8, 0, 40)
    assert 0 < float(str(result["p50_ttft_ms"])) < float(str(result["p99_e2el_ms"]))
    assert float(str(result["mean_tpot_ms"])) >= 1.0


def test_bench_ends_well_when_every_request_failed(engine: Engine, port: int) -> None:
    result = bench(engine, port)

    assert (result["completed"], result["failed"], result["p99_ttft_ms"]) == (0, 8, 0.0)


def test_fault_bench_failures_spares_other_requests(engine: Engine, port: int) -> None:
    engine.serve("--port", str(port), fault="bench_failures")
    wait_until_ready(port)

    assert "lab" in ask(port, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 3})
    assert bench(engine, port)["failed"] == 2


def bench(engine: Engine, port: int) -> dict[str, object]:
    done = engine.start(
        *("vllm", "bench", "serve", "--model", str(engine.model), "--served-model-name", "tiny"),
        *("--base-url", f"http://127.0.0.1:{port}", "--dataset-name", "random", "--random-input-len", "4"),
        *("--random-output-len", "5", "--num-prompts", "8", "--max-concurrency", "2", "--ignore-eos"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--save-result"),
        *("--result-dir", str(engine.directory), "--result-filename", "r.json"),
    )
    assert done.wait(timeout=20) == 0
    return json.loads((engine.directory / "r.json").read_text())


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("exit_at_start", 1, "Engine core initialization failed. See root cause above."),
        ("exit_after_start", 0, "EngineDeadError"),
    ],
)
def test_an_engine_that_ends(engine: Engine, port: int, fault: str, status: int, words: str) -> None:
    process = engine.serve("--port", str(port), fault=fault)
    text, _ = process.communicate(timeout=10)
    assert process.returncode == status
    assert words in text


def test_fault_for_one_host_leaves_the_others_alone(engine: Engine, port: int) -> None:
    engine.serve("--port", str(port), fault="exit_at_start@elsewhere,wrong_model_id")
    wait_until_ready(port)
    assert json.loads(ask(port, "/v1/models"))["data"][0]["id"] == "another/model"


def test_fault_empty_answer_shows_in_log_probabilities_only(engine: Engine, port: int) -> None:
    engine.serve("--port", str(port), fault="empty_answer")
    wait_until_ready(port)
    answer = ask(port, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 2, "logprobs": 0})
    assert '"text": ""' in answer
    assert '"token_logprobs": [NaN, NaN]' in answer


def test_what_vllm_refuses_is_refused_in_its_words(engine: Engine, port: int) -> None:
    too_long = engine.serve("--port", str(port), "--max-model-len", "4096").communicate(timeout=10)[0]
    assert "User-specified max_model_len (4096) is greater than the derived max_model_len" in too_long

    (engine.model / "model-00002-of-00003.safetensors").unlink()
    missing = engine.serve("--port", str(port)).communicate(timeout=10)[0]
    assert "FileNotFoundError: Weight files referenced in index but missing: {'" in missing

    (engine.model / "config.json").write_text('{"architectures": ["FooBarForCausalLM"]}')
    unknown = engine.serve("--port", str(port)).communicate(timeout=10)[0]
    assert "Model architectures ['FooBarForCausalLM'] are not supported for now." in unknown


def test_a_port_in_use_is_said_before_any_model_work(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = engine.serve("--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
        text, _ = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "OSError: [Errno 98] Address already in use" in text
    assert "Resolved architecture" not in text
