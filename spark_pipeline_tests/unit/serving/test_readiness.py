"""The line that tells most, found in whole logs of real failures; wrong model ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_pipeline.cluster.plan import Running, plan
from spark_pipeline.errors import WrongAnswerError
from spark_pipeline.serving.readiness import check_model_ids, first_cause, last_words
from spark_pipeline_tests.unit.cluster import samples

LOGS = Path(__file__).parents[2] / "recorded" / "logs"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("port_in_use.log", "Address already in use"),
        ("truncated_shard.log", "SafetensorError"),
        ("missing_shard.log", "Weight files referenced in index but missing"),
        ("max_model_len_too_large.log", "max seq len"),
        ("unknown_architecture.log", "are not supported for now"),
        ("unknown_model_type.log", "Transformers does not recognize this architecture"),
        ("engine_dies_on_first_request.log", "Unexpected head dim size, 32"),
    ],
)
def test_the_cause_is_found_above_the_last_line_that_says_nothing(log, words):
    assert words in first_cause((LOGS / log).read_text(encoding="utf-8"))


def test_an_empty_log_is_said_to_be_empty():
    assert first_cause("") == "the log is empty"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "no word yet"),
        (
            "W1130 torch/_library/triton.py:53] Triton not available\n",
            "W1130 torch/_library/triton.py:53] Triton not available",
        ),
        (
            "(EngineCore pid=7) INFO 11-30 12:31:40 [gpu_worker.py:10] Loading weights took 0.02 seconds\n"
            "(EngineCore pid=7) WARNING 11-30 12:31:41 [system_utils.py:3] Found ulimit of 20000\n"
            "2026-11-30 16:44:03,514 INFO scripts.py:1014 --   ray status\n",
            "Loading weights took 0.02 seconds",
        ),
    ],
)
def test_what_an_engine_is_doing_is_its_own_last_report(log: str, words: str):
    assert last_words(log) == words


def test_another_model_on_the_port_is_refused():
    generation = plan(
        samples.target(), samples.facts(), Running(()), joined=None, others=(), last_number=0, run_id="r"
    ).generation
    assert generation is not None
    check_model_ids(generation, ("qwen3.5-122b", "adapter"))
    with pytest.raises(WrongAnswerError, match="another model"):
        check_model_ids(generation, ("glm-4.7-flash",))
