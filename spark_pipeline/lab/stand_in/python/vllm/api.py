"""The endpoints of the stand-in: fixed words for an answer, at a fixed pace, in vLLM's shapes."""

import json
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import __version__

WORDS = ("the ", "lab ", "answers ", "with ", "the ", "same ", "words ", "again ")
FIRST_TOKEN_S, TOKEN_S = 0.005, 0.001


class ApiServer(ThreadingHTTPServer):
    """Bound at once, as vLLM does: a port in use is known before any model work. Serves when it is told to."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, names: list[str], has_fault: Callable[[str], bool]) -> None:
        self.names = ["another/model"] if has_fault("wrong_model_id") else names
        self.accepts = names
        self.has_fault = has_fault
        self.max_model_len = 0
        self.is_rank_lost: Callable[[], bool] = lambda: False
        self.is_dead = threading.Event()
        self.counters = {"request_success": 0, "prefix_cache_queries": 0, "generation_tokens": 0}
        self.lock = threading.Lock()
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.server_bind()

    def serve_forever(self, poll_interval: float = 0.05) -> None:
        self.server_activate()
        super().serve_forever(poll_interval)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Written by log_request, in uvicorn's words."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        host, port = self.client_address[:2]
        print(f'INFO:     {host}:{port} - "{self.requestline}" {int(code)}', flush=True)

    def do_GET(self) -> None:
        if self.path in ("/health", "/ping"):
            return self._send(200, b"")
        if self.path == "/version":
            return self._send_json(200, {"version": __version__})
        if self.path == "/v1/models":
            models = [
                {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": self.server.max_model_len}
                for name in self.server.names
            ]
            return self._send_json(200, {"object": "list", "data": models})
        if self.path == "/metrics":
            return self._send(200, self._metrics().encode(), "text/plain; version=0.0.4")
        return self._send_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            return self._send_json(404, {"detail": "Not Found"})
        if body.get("model") not in (None, *self.server.accepts):
            text = f"The model `{body['model']}` does not exist."
            return self._error(404, text, "NotFoundError")
        if self.server.is_rank_lost():
            self._error(500, "EngineCore encountered an issue. See stack trace (above)", "InternalServerError")
            return self.server.is_dead.set()
        marked = self.headers.get("X-Standin-Request")
        if self.server.has_fault("bench_failures") and marked is not None and int(marked) % 4 == 0:
            return self._error(500, "EngineCore encountered an issue.", "InternalServerError")
        is_chat = self.path.endswith("/chat/completions")
        prompt = " ".join(str(m.get("content")) for m in body["messages"]) if is_chat else str(body.get("prompt", ""))
        read = max(1, len(prompt.split()))
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        if read + asked > self.server.max_model_len:
            text = f"This model's maximum context length is {self.server.max_model_len} tokens."
            return self._error(400, text, "BadRequestError")
        tokens = [WORDS[index % len(WORDS)] for index in range(asked)]
        if self.server.has_fault("empty_answer"):
            tokens = [""] * asked
        self._count(read, asked)
        usage = {"prompt_tokens": read, "completion_tokens": asked, "total_tokens": read + asked}
        return (
            self._stream(body, is_chat, tokens, usage)
            if body.get("stream")
            else self._whole(body, is_chat, tokens, usage)
        )

    def _whole(self, body: dict, is_chat: bool, tokens: list[str], usage: dict) -> None:
        time.sleep(FIRST_TOKEN_S + TOKEN_S * len(tokens))
        text = "".join(tokens)
        choice: dict = {"index": 0, "finish_reason": "length", "stop_reason": None, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        if not is_chat and body.get("logprobs") is not None:
            value = float("nan") if self.server.has_fault("empty_answer") else -1.5
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": [value] * len(tokens)}
        self._send_json(200, {**self._head(is_chat, chunk=False), "choices": [choice], "usage": usage})

    def _stream(self, body: dict, is_chat: bool, tokens: list[str], usage: dict) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        head = self._head(is_chat, chunk=True)
        for index, token in enumerate(tokens):
            time.sleep(TOKEN_S if index else FIRST_TOKEN_S)
            choice: dict = {"index": 0, "finish_reason": "length" if index == len(tokens) - 1 else None}
            choice |= {"delta": {"content": token}} if is_chat else {"text": token}
            self._event({**head, "choices": [choice]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({**head, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _head(self, is_chat: bool, *, chunk: bool) -> dict:
        kind = ("chat.completion" + (".chunk" if chunk else "")) if is_chat else "text_completion"
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex[:16]}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.server.names[0]}

    def _count(self, read: int, written: int) -> None:
        with self.server.lock:
            self.server.counters["request_success"] += 1
            self.server.counters["prefix_cache_queries"] += read
            self.server.counters["generation_tokens"] += written

    def _metrics(self) -> str:
        labels = f'{{engine="0",model_name="{self.server.names[0]}"}}'
        counters = {**self.server.counters, "prefix_cache_hits": 0}
        lines = [f"# TYPE vllm:{name} counter\nvllm:{name}_total{labels} {float(n)}" for name, n in counters.items()]
        return "\n".join([*lines, f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} 0.0\n"])

    def _event(self, content: dict) -> None:
        self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())

    def _error(self, status: int, text: str, kind: str) -> None:
        self._send_json(status, {"error": {"message": text, "type": kind, "param": None, "code": status}})

    def _send_json(self, status: int, content: dict) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
