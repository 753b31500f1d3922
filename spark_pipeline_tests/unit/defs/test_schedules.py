"""What a scheduled run is told: the digest that the registry shows at that hour, or nothing."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from spark_pipeline.defs import schedules
from spark_pipeline.defs.build import build
from spark_pipeline.defs.schedules import redeploy_config
from spark_pipeline.defs.upstream import VLLM_IMAGE
from spark_pipeline.errors import RegistryError
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.unit.defs.test_sensors import NEW, NEWER, OLD, failed, serving, told


def answering(monkeypatch: pytest.MonkeyPatch, answer: str | RegistryError) -> None:
    def ask(*_: object) -> str:
        if isinstance(answer, RegistryError):
            raise answer
        return answer

    monkeypatch.setattr(schedules, "VLLM_IMAGE", replace(VLLM_IMAGE, ask=ask))


def test_the_run_is_told_the_digest_behind_the_tag_now(project: Project, monkeypatch: pytest.MonkeyPatch):
    serving(project, image_digest=OLD)
    answering(monkeypatch, NEW)
    assert redeploy_config(project, project.deployment("tiny")) == told("tiny", NEW)


@pytest.mark.parametrize("digest", [None, OLD])
def test_a_registry_that_cannot_be_asked_does_not_stop_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, digest: str | None
):
    serving(project, image_digest=digest)
    answering(monkeypatch, RegistryError("the registry does not answer"))
    assert redeploy_config(project, project.deployment("tiny")) == {}


def test_after_a_failed_deployment_the_run_is_told_the_digest_behind_the_tag_now(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    serving(project, image_digest=OLD)
    failed(project, image_digest=NEW)
    answering(monkeypatch, NEWER)
    assert redeploy_config(project, project.deployment("tiny")) == told("tiny", NEWER)


def test_nothing_is_asked_before_the_first_deployment(project: Project, monkeypatch: pytest.MonkeyPatch):
    answering(monkeypatch, NEW)
    assert redeploy_config(project, project.deployment("tiny")) == {}


def test_the_schedule_of_the_users_deployment_asks_for_one_run_of_its_job(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    serving(project, "qwen35_122b", image_digest=OLD)
    answering(monkeypatch, NEW)
    schedule = build(project).get_repository_def().get_schedule_def("redeploy_qwen35_122b")
    (request,) = list(schedule.evaluate_tick(dg.build_schedule_context()).run_requests or ())
    assert request.run_config == told("qwen35_122b", NEW)
    assert schedule.job_name == "deploy_qwen35_122b"
