"""Runs inside the head's serving container (`python3 - PORT`): who answers there, and how much it has done.

Standard library only, any Python 3: it is sent over standard input into an image that is somebody else's. Prints one
JSON object. Counters are the engine's Prometheus ones, summed over its processes; null where it publishes none.
"""

import json
import re
import sys
import urllib.request

# An environment with http_proxy must not send the loopback address to a proxy.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(path: str) -> str:
    with OPENER.open(f"http://127.0.0.1:{sys.argv[1]}{path}", timeout=20) as answer:
        return answer.read().decode("utf-8", "replace")


def counter(text: str, name: str):  # no `float | None` before Python 3.10
    values = re.findall(rf"^vllm:{name}(?:_total)?(?:\{{[^\n]*\}})? ([0-9.eE+-]+)", text, re.MULTILINE)
    return sum(float(value) for value in values) if values else None


def main() -> None:
    try:
        models = [model["id"] for model in json.loads(get("/v1/models"))["data"]]
    except (OSError, ValueError, KeyError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    try:
        metrics = get("/metrics")
    except OSError:
        metrics = ""
    seen = {
        "models": models,
        "prompt_tokens_looked_up": counter(metrics, "prefix_cache_queries"),
        "prompt_tokens_cached": counter(metrics, "prefix_cache_hits"),
        "requests_finished": counter(metrics, "request_success"),
    }
    print(json.dumps(seen))


main()
