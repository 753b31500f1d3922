"""`vllm bench serve` by plain requests: really sent, really timed, in the result file's own words.

As the real one, it ends with status 0 when every request failed.
"""

import argparse
import http.client
import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Answer:
    """One request: when it was sent, when each chunk came (seconds), how many tokens went in and out."""

    sent_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


def bench(words: list[str]) -> int:
    options, _ = _parser().parse_known_args(words)
    draw = random.Random(options.seed)  # noqa: S311
    prompts = [
        " ".join(f"w{draw.randrange(1000)}" for _ in range(options.random_input_len))
        for _ in range(options.num_prompts)
    ]
    print("Starting main benchmark run...", flush=True)
    started = time.perf_counter()
    with ThreadPoolExecutor(options.max_concurrency or options.num_prompts) as pool:
        answers = list(pool.map(lambda pair: _ask(options, *pair), enumerate(prompts)))
    result = _result(options, answers, time.perf_counter() - started)
    print("============ Serving Benchmark Result ============")
    for title, key in (("Successful requests:", "completed"), ("Failed requests:", "failed")):
        print(f"{title:<40} {result[key]:<10}")
    print("=" * 50, flush=True)
    if options.save_result:
        (Path(options.result_dir or ".") / options.result_filename).write_text(json.dumps(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    parser.add_argument("--backend", default="openai")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--endpoint", default="/v1/completions")
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--tokenizer")
    parser.add_argument("--random-input-len", type=int, default=1024)
    parser.add_argument("--random-output-len", type=int, default=128)
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--max-concurrency", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--percentile-metrics", default="ttft,tpot,itl")
    parser.add_argument("--metric-percentiles", default="99")
    parser.add_argument("--save-result", action="store_true")
    parser.add_argument("--result-dir")
    parser.add_argument("--result-filename", default="result.json")
    parser.add_argument("--metadata", nargs="*", default=[])
    return parser


def _ask(options: argparse.Namespace, number: int, prompt: str) -> Answer:
    is_chat = options.endpoint.endswith("/chat/completions")
    body = {"model": options.served_model_name or options.model, "max_tokens": options.random_output_len}
    body |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    url = urlsplit(options.base_url)
    answer = Answer()
    connection = http.client.HTTPConnection(url.hostname or "127.0.0.1", url.port or 80, timeout=60)
    try:
        headers = {"Content-Type": "application/json", "X-Standin-Request": str(number)}
        answer.sent_s = time.perf_counter()
        connection.request("POST", options.endpoint, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            answer.error = f"HTTP {response.status}"
            return answer
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            content = json.loads(line[6:])
            if content["choices"]:
                answer.chunks_s.append(time.perf_counter())
            if usage := content.get("usage"):
                answer.input_tokens, answer.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        if not answer.chunks_s:
            answer.error = "no chunk came"
    except OSError as error:
        answer.error = str(error)
    finally:
        connection.close()
    return answer


def _result(options: argparse.Namespace, answers: list[Answer], duration_s: float) -> dict[str, object]:
    good = [answer for answer in answers if not answer.error]
    read, written = sum(answer.input_tokens for answer in good), sum(answer.output_tokens for answer in good)
    several = [answer for answer in good if answer.output_tokens > 1]
    values_s = {
        "ttft": [answer.chunks_s[0] - answer.sent_s for answer in good],
        "tpot": [(answer.chunks_s[-1] - answer.chunks_s[0]) / (answer.output_tokens - 1) for answer in several],
        "itl": [b - a for answer in good for a, b in zip(answer.chunks_s, answer.chunks_s[1:], strict=False)],
        "e2el": [answer.chunks_s[-1] - answer.sent_s for answer in good],
    }
    result: dict[str, object] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": None,
        "model_id": options.model,
        "tokenizer_id": options.tokenizer or options.model,
        "num_prompts": options.num_prompts,
        **dict(pair.split("=", 1) for pair in options.metadata),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": options.max_concurrency,
        "duration": duration_s,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": read,
        "total_output_tokens": written,
        "request_throughput": len(good) / duration_s,
        "request_goodput": None,
        "output_throughput": written / duration_s,
        "total_token_throughput": (read + written) / duration_s,
    }
    for metric in options.percentile_metrics.split(","):
        milliseconds = sorted(1000 * value for value in values_s[metric])
        result[f"mean_{metric}_ms"] = statistics.fmean(milliseconds) if milliseconds else 0.0
        result[f"median_{metric}_ms"] = statistics.median(milliseconds) if milliseconds else 0.0
        result[f"std_{metric}_ms"] = statistics.pstdev(milliseconds) if milliseconds else 0.0
        for rank in options.metric_percentiles.split(","):
            result[f"p{rank}_{metric}_ms"] = _percentile(milliseconds, float(rank))
    return result


def _percentile(ordered: list[float], rank: float) -> float:
    """Linear between the two neighbours, as numpy does by default."""
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * rank / 100
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)
