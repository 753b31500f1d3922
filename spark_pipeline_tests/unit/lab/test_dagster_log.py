"""Dagster's own lines, as 1.13 prints them, and what a newcomer is shown of them."""

from __future__ import annotations

import pytest

from spark_pipeline.lab.dagster_log import DagsterLog

RUN = "dd545a96-3aff-4b12-96bc-0a56cc66c270"
HEAD = "2026-11-30 16:49:11 +0000 - dagster"
EVENT = f"{HEAD} - DEBUG - __ASSET_JOB - {RUN} - 32156"
STEP_FAILED = (
    f"{HEAD} - ERROR - __ASSET_JOB - {RUN} - 32156 - tiny__ray_cluster - STEP_FAILURE - Execution of step failed."
)
FAILED = f"""\
{STEP_FAILED}

dagster._core.definitions.events.Failure: [head] no weights are recorded for tiny
  observed: no data/state/tiny/weights.json
  remedy:   materialize tiny/model_weights first

Stack Trace:
  File "execute_plan.py", line 243, in dagster_event_sequence_for_step
    yield from check.generator(step_events)

The above exception was caused by the following exception:
spark_pipeline.errors.StateError: [head] no weights are recorded for tiny

{HEAD} - ERROR - __ASSET_JOB - {RUN} - 32111 - RUN_FAILURE - Execution of run for "__ASSET_JOB" failed.

dagster._core.definitions.events.Failure: [head] no weights are recorded for tiny

Error: Materialization failed."""
CRASHED = f"""\
{STEP_FAILED}

dagster._core.errors.DagsterExecutionStepExecutionError: Error occurred while executing op "tiny__ray_cluster":

Stack Trace:
  File "execute_plan.py", line 243, in dagster_event_sequence_for_step

The above exception was caused by the following exception:
ZeroDivisionError: division by zero"""


def shown(text: str) -> list[str]:
    log = DagsterLog()
    return [line for line in map(log.readable, text.splitlines()) if line is not None]


def test_what_a_stage_says_is_shown_with_its_asset():
    assert shown(f"{HEAD} - INFO - __ASSET_JOB - {RUN} - tiny__model_weights - head: proven - all of it") == [
        "tiny/model_weights: head: proven - all of it"
    ]


def test_a_step_is_shown_to_begin_and_to_end():
    start = f'{EVENT} - tiny__model_weights - STEP_START - Started execution of step "tiny__model_weights".'
    end = f'{EVENT} - tiny__model_weights - STEP_SUCCESS - Finished execution of step "tiny__model_weights" in 1.58s.'
    assert shown(f"{start}\n{end}") == ["tiny/model_weights: begins", "tiny/model_weights: done in 1.58s"]


@pytest.mark.parametrize(
    "line",
    [
        f'{EVENT} - RUN_START - Started execution of run for "__ASSET_JOB".',
        f"{EVENT} - ENGINE_EVENT - Executing steps using multiprocess executor: parent process (pid: 32111)",
        f"{EVENT} - LOGS_CAPTURED - Capturing logs for process (pid: 32156).",
        f'{EVENT} - tiny__model_weights - STEP_OUTPUT - Yielded output "result" of type "Any". (Type check passed).',
        f"{EVENT} - tiny__model_weights - ASSET_MATERIALIZATION - Materialized value tiny model_weights.",
    ],
)
def test_dagsters_own_bookkeeping_is_not_shown(line):
    assert shown(line) == []


def test_colours_do_not_hide_a_line():
    line = f"\x1b[32m{HEAD}\x1b[0m - \x1b[34mINFO\x1b[0m - __ASSET_JOB - {RUN} - tiny__vllm_image - copied"
    assert shown(line) == ["tiny/vllm_image: copied"]


def test_a_stages_error_is_shown_once_and_without_traceback():
    assert shown(FAILED) == [
        "tiny/ray_cluster: FAILED",
        "[head] no weights are recorded for tiny",
        "  observed: no data/state/tiny/weights.json",
        "  remedy:   materialize tiny/model_weights first",
    ]


def test_an_error_of_the_program_is_shown_with_its_whole_traceback():
    lines = shown(CRASHED)
    assert '  File "execute_plan.py", line 243, in dagster_event_sequence_for_step' in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_what_is_not_dagsters_is_shown_as_it_is():
    assert shown("Error: no definitions, the declarations are wrong") == [
        "Error: no definitions, the declarations are wrong"
    ]


def test_an_interrupt_is_one_word_and_no_traceback():
    lines = [
        STEP_FAILED,
        "",
        "dagster._core.errors.DagsterExecutionInterruptedError",
        "",
        "Stack Trace:",
        '  File "execute_plan.py", line 243, in dagster_event_sequence_for_step',
        f"{HEAD} - INFO - __ASSET_JOB - {RUN} - tiny__ray_cluster - removing generation 7",
    ]
    log = DagsterLog()
    shown = [text for line in lines if (text := log.readable(line)) is not None]
    assert shown == ["tiny/ray_cluster: FAILED", "interrupted", "tiny/ray_cluster: removing generation 7"]
