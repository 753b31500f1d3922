from __future__ import annotations

import pytest

from spark_pipeline.benchmark.plan import plan_benchmark
from spark_pipeline.errors import BenchmarkError
from spark_pipeline.spec.profile import Point, Profile
from spark_pipeline_tests.unit.benchmark.samples import COMMIT, SMOKE, generation, point


def after(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_every_point_of_every_profile_is_measured_in_order_after_one_warm_up():
    long = Profile(name="long", points=(Point(input_tokens=256, output_tokens=64, concurrency=2, requests=4),))
    plan = plan_benchmark(generation(), [SMOKE, long], [], salt="run-1")
    assert [run.title for run in plan.runs] == [
        "smoke: 64 in, 16 out, concurrency 1",
        "smoke: 64 in, 16 out, concurrency 8",
        "long: 256 in, 64 out, concurrency 2",
    ]
    assert plan.warm_up is not None
    assert (plan.warm_up.point.concurrency, plan.warm_up.point.requests) == (8, 8)
    assert len(plan.stage_plan().commands) == 4


def test_the_command_runs_in_the_heads_container_and_asks_the_endpoint_beside_it():
    run = plan_benchmark(generation(), [SMOKE], [], salt="run-1").runs[1]
    command = plan_benchmark(generation(), [SMOKE], [], salt="run-1").stage_plan().commands[2]
    assert command.node == "head"
    assert command.argv[:5] == ("docker", "exec", "-w", "/", "sp-tiny-g3-r0")
    assert command.argv[5:] == run.argv
    assert run.argv == (
        "env", "HF_HUB_OFFLINE=1", "timeout", "-k", "10", str(run.timeout_seconds),
        "vllm", "bench", "serve", "--backend", "openai", "--base-url", "http://127.0.0.1:8000",
        "--endpoint", "/v1/completions", "--model", f"/home/spark/models/lab/tiny/{COMMIT}",
        "--served-model-name", "tiny", "--tokenizer", f"/home/spark/models/lab/tiny/{COMMIT}",
        "--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "16", "--ignore-eos",
        "--num-prompts", "32", "--max-concurrency", "8", "--num-warmups", "0", "--temperature", "0",
        "--seed", str(run.seed), "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "50,90,95,99", "--disable-tqdm", "--save-result", "--result-dir", "/tmp",
        "--result-filename", f"spark_pipeline_benchmark_{run.seed}.json",
    )  # fmt: skip
    assert run.result_file == f"/tmp/spark_pipeline_benchmark_{run.seed}.json"


def test_no_two_runs_share_a_seed_and_a_new_salt_gives_new_seeds():
    plans = [plan_benchmark(generation(), [SMOKE], [], salt=salt) for salt in ("run-1/1", "run-1/2")]
    seeds = [run.seed for plan in plans for run in (*plan.runs, plan.warm_up) if run]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_point_measured_for_this_spec_is_not_repeated():
    plan = plan_benchmark(generation(), [SMOKE], [point(concurrency=8, requests=32)], salt="run-1")
    assert [run.point.concurrency for run in plan.runs] == [1]
    assert "1 of 2 points are not measured yet" in plan.reasons[0]


def test_nothing_runs_when_all_points_are_measured():
    history = [point(concurrency=1, requests=8), point(concurrency=8, requests=32)]
    plan = plan_benchmark(generation(), [SMOKE], history, salt="run-1")
    assert (plan.runs, plan.warm_up) == ((), None)
    assert not plan.stage_plan().changes
    assert plan.stage_plan().commands == ()


@pytest.mark.parametrize(
    "measured",
    [{"spec_hash": "another"}, {"requests": 64}, {"profile": "other"}, {"output_tokens": 32}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_point_of_another_spec_or_shape_counts_for_nothing(measured: dict[str, object]):
    assert len(plan_benchmark(generation(), [SMOKE], [point(**measured)], salt="run-1").runs) == 2


def test_force_measures_again():
    history = [point(concurrency=1, requests=8), point(concurrency=8, requests=32)]
    plan = plan_benchmark(generation(), [SMOKE], history, salt="run-1", force=True)
    assert len(plan.runs) == 2
    assert "again" in plan.reasons[0]


def test_a_point_that_does_not_fit_into_the_served_context_is_refused_before_anything_runs():
    with pytest.raises(BenchmarkError) as refused:
        plan_benchmark(generation(max_model_len=79), [SMOKE], [], salt="run-1")
    assert "64 + 16 tokens, served context 79" in refused.value.observed
    assert plan_benchmark(generation(max_model_len=80), [SMOKE], [], salt="run-1").runs
    assert plan_benchmark(generation(max_model_len=None), [SMOKE], [], salt="run-1").runs


@pytest.mark.parametrize(
    ("serve_args", "passed_on"),
    [
        (("--trust-remote-code", "--enforce-eager"), ("--trust-remote-code",)),
        (("--tokenizer-mode", "mistral"), ("--tokenizer-mode", "mistral")),
        (("--tokenizer-mode=mistral",), ("--tokenizer-mode=mistral",)),
    ],
)
def test_what_the_engine_was_told_about_the_tokenizer_the_load_generator_is_told_too(
    serve_args: tuple[str, ...], passed_on: tuple[str, ...]
):
    run = plan_benchmark(generation(serve_args=serve_args), [SMOKE], [], salt="run-1").runs[0]
    start = run.argv.index("--dataset-name") - len(passed_on)
    assert run.argv[start : start + len(passed_on)] == passed_on
    assert "--enforce-eager" not in run.argv


def test_the_time_allowed_grows_with_the_tokens_of_one_stream():
    def seconds(**changed: int) -> int:
        values = {"input_tokens": 64, "output_tokens": 16, "concurrency": 1, "requests": 8} | changed
        profile = Profile(name="one", points=(Point(**values),))
        return plan_benchmark(generation(max_model_len=None), [profile], [], salt="s").runs[0].timeout_seconds

    # At one token a second: 8 requests of 16 tokens one after the other, and five minutes for the tool to start.
    assert seconds() >= 300 + 8 * 16
    assert seconds(output_tokens=256) >= 300 + 8 * 256
    assert seconds(concurrency=8) < seconds()


def test_a_deployment_without_profiles_says_so():
    plan = plan_benchmark(generation(), [], [], salt="run-1")
    assert not plan.stage_plan().changes
    assert "no profile" in plan.reasons[0]
