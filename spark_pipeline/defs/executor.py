"""Dagster's multiprocess executor, which first takes back what dead runs hold.

A run that ends while its steps are starting (Ctrl-C at the wrong moment) keeps its places in the pools. Only the daemon
would free them, and `dagster asset materialize` is used without one: the next run then waited for ever, at full load
and without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.multiprocess import MultiprocessExecutor

# Steps are forked from a server that has the definitions loaded: a no-op step costs a tenth of a second, not two.
# Two at once: weights and image may travel side by side; nothing else in the chain can.
MAX_CONCURRENT = 2
PRELOAD = ["spark_pipeline.definitions"]


class TidyExecutor(MultiprocessExecutor):
    """See the module."""

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        for line in tidy_pools(plan_context.instance, plan_context.run_id):
            plan_context.log.info(line)
        yield from super().execute(plan_context, execution_plan)


@dg.executor(name="multiprocess", requirements=dg.multiple_process_executor_requirements())
def tidy_executor(_: dg.InitExecutorContext) -> TidyExecutor:
    return TidyExecutor(
        retries=RetryMode.ENABLED,
        max_concurrent=MAX_CONCURRENT,
        start_method="forkserver",
        explicit_forkserver_preload=PRELOAD,
    )


def tidy_pools(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Free the places in pools that ended runs still hold; say which runs rightly hold others, a line each.

    Args:
        run_id: of the run that asks; its own places are left alone.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return []
    said: list[str] = []
    for pool in sorted(storage.get_concurrency_keys()):
        info = storage.get_concurrency_info(pool)
        holders = {slot.run_id for slot in info.claimed_slots}
        for holder in sorted(holders | {step.run_id for step in info.pending_steps} - {run_id}):
            run = instance.get_run_by_id(holder)
            if run is None or run.is_finished:
                storage.free_concurrency_slots_for_run(holder)
                said.append(f"pool {pool}: freed what run {holder[:8]} held, which has ended")
            elif holder in holders:
                said.append(
                    f"pool {pool} is held by run {holder[:8]} ({run.status.value}): waiting for it. If its process is "
                    "dead, mark it canceled in the UI, or `dagster run delete`"
                )
    return said
