"""The endpoint, asked from the head itself: no firewall or proxy on the way can make it look dead or alive."""

from __future__ import annotations

import json
import math

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_pipeline.errors import MachineError, ReadinessTimeoutError, WrongAnswerError
from spark_pipeline.fleet.host import Host

# The first request may still compile a kernel.
COMPLETION_TIMEOUT_SECONDS = 300
PROMPT = "The capital of France is"


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model]


class _Logprobs(BaseModel):
    token_logprobs: list[float | None] = []


class _Choice(BaseModel):
    text: str
    logprobs: _Logprobs | None = None


class _Usage(BaseModel):
    completion_tokens: int


class _Completion(BaseModel):
    choices: list[_Choice]
    usage: _Usage


class Completion(BaseModel):
    """One real answer. `tokens`: how many were generated."""

    model_config = ConfigDict(frozen=True)

    prompt: str
    text: str
    tokens: int


# curl's own exit statuses: nothing listens (7), no answer in time (28), the connection broke (52, 55, 56).
_NOT_YET = (7, 28, 52, 55, 56)


def _curl(host: Host, url: str, *, max_seconds: int, body: str | None = None) -> tuple[int, str]:
    """HTTP status and body; status 0 while nothing answers. Raises MachineError if curl itself cannot do it."""
    words = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", str(max_seconds)]
    words += ["--write-out", "\n%{http_code}"]
    if body is not None:
        words += ["--header", "Content-Type: application/json", "--data-binary", "@-"]
    done = host.run([*words, url], input=body, timeout=max_seconds + 10, check=False)
    if done.status not in (0, *_NOT_YET):
        raise MachineError(
            "the endpoint cannot be asked from this node",
            node=host.name,
            observed=f"curl ended with status {done.status}: {done.stderr.strip()[-300:]}",
            remedy="install curl there if it is missing",
        )
    text, _, status = done.stdout.rpartition("\n")
    return (int(status) if status.isdecimal() else 0), text


def model_ids(host: Host, port: int) -> tuple[str, ...] | None:
    """What /v1/models lists; None while nothing answers there.

    Raises:
        WrongAnswerError: something answers that wants an API key.
    """
    status, text = _curl(host, f"http://127.0.0.1:{port}/v1/models", max_seconds=5)
    if status in (401, 403):
        raise WrongAnswerError(
            f"port {port} wants an API key, so it cannot be looked after",
            node=host.name,
            observed=f"/v1/models answers {status}",
            remedy="put keys into a proxy in front of the endpoint, not into the engine",
        )
    if status != 200:
        return None
    try:
        return tuple(model.id for model in _Models.model_validate_json(text).data)
    except ValidationError:
        return None


def complete(host: Host, port: int, model_id: str) -> Completion:
    """Ask for a few tokens and look at them.

    A shard with wrong bytes still answers 200 with text; only the log probabilities show it, as NaN (facts: vllm_cpu
    part 3, d7 and d10).

    Raises:
        WrongAnswerError: no 200, no token, or log probabilities that are not numbers.
    """
    body = {"model": model_id, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 0}
    status, text = _curl(
        host,
        f"http://127.0.0.1:{port}/v1/completions",
        max_seconds=COMPLETION_TIMEOUT_SECONDS,
        body=json.dumps(body),
    )
    remedy = "see the engine's log; wrong bytes in the weights are found by materializing model_weights with rehash"
    if status == 0:
        raise ReadinessTimeoutError(
            "the endpoint gives no completion",
            node=host.name,
            observed=f"/v1/models answers, /v1/completions does not, or not within {COMPLETION_TIMEOUT_SECONDS} s",
            remedy=remedy,
        )
    if status != 200:
        raise WrongAnswerError(
            f"the endpoint refused a completion with status {status}", node=host.name, observed=text[-500:]
        )
    try:
        answer = _Completion.model_validate_json(text)
    except ValidationError as error:
        # NaN is no JSON: vLLM answers 500 or writes a bare NaN, depending on its version.
        raise WrongAnswerError(
            "the endpoint's completion cannot be read", node=host.name, observed=text[-500:], remedy=remedy
        ) from error
    choice = answer.choices[0] if answer.choices else None
    if choice is None or answer.usage.completion_tokens < 1:
        raise WrongAnswerError("the completion holds no token", node=host.name, observed=text[-500:], remedy=remedy)
    probabilities = choice.logprobs.token_logprobs if choice.logprobs else []
    if any(value is None or not math.isfinite(value) for value in probabilities):
        raise WrongAnswerError(
            "the completion's log probabilities are not numbers: the model computes nonsense",
            node=host.name,
            observed=text[-500:],
            remedy=remedy,
        )
    return Completion(prompt=PROMPT, text=choice.text, tokens=answer.usage.completion_tokens)
