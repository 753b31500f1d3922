"""The probe as it runs in a container: a Python process that reads it from standard input and asks loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from spark_pipeline.benchmark.sight import PROBE, Endpoint

MODELS = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]})
# Lines as vLLM 0.32 prints them, two engines.
METRICS = """# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1536.0
vllm:prefix_cache_queries_total{engine="1",model_name="tiny"} 1.0e+03
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7645e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 64.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"} 7.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 40.0
"""


@contextmanager
def server(pages: dict[str, str]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = pages.get(self.path)
            self.send_response(200 if text is not None else 404)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running.server_address[1]
        running.shutdown()


def probe(port: int) -> Endpoint:
    done = subprocess.run(
        [sys.executable, "-", str(port)],
        input=PROBE.read_text(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        # A proxy in the container's environment must not be asked for the loopback address.
        env={"http_proxy": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"},
    )
    return Endpoint.model_validate_json(done.stdout)


def test_model_ids_and_counters_are_read_and_summed_over_engines():
    with server({"/v1/models": MODELS, "/metrics": METRICS}) as port:
        seen = probe(port)
    assert seen == Endpoint(
        models=("tiny",), prompt_tokens_looked_up=2536.0, prompt_tokens_cached=64.0, requests_finished=41.0
    )


def test_without_metrics_the_counters_are_unknown_not_zero():
    with server({"/v1/models": MODELS}) as port:
        seen = probe(port)
    assert seen.models == ("tiny",)
    assert (seen.prompt_tokens_looked_up, seen.requests_finished) == (None, None)


def test_nobody_there_is_an_answer_of_its_own():
    with server({}) as port:
        pass
    assert "refused" in (probe(port).error or "")


def test_something_that_is_no_model_server_is_said_to_be_wrong():
    with server({"/v1/models": "<html>hello</html>"}) as port:
        assert "JSONDecodeError" in (probe(port).error or "")
