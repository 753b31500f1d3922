"""Ray or mp, and why; impossible wishes are refused before anything starts."""

from __future__ import annotations

import pytest

from spark_pipeline.cluster.backend import choose_backend
from spark_pipeline.errors import ClusterError
from spark_pipeline.spec.deployment import Backend
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.unit.cluster import samples


def deployment(backend: str, tensor: int = 2):
    declared = Project.load(samples.ROOT).deployment("qwen35_122b")
    parallel = declared.parallel.model_copy(update={"tensor": tensor})
    wish = backend if backend == "auto" else Backend(backend)
    return declared.model_copy(update={"backend": wish, "parallel": parallel})


@pytest.mark.parametrize(
    ("wish", "ray", "nnodes", "backend", "reason"),
    [
        ("auto", "2.53.0", True, Backend.RAY, "the image carries Ray 2.53.0"),
        ("auto", None, True, Backend.MP, "the image has no Ray"),
        ("ray", "2.53.0", True, Backend.RAY, "declared"),
        ("mp", "2.53.0", True, Backend.MP, "declared"),
    ],
)
def test_the_image_decides_and_the_reason_is_kept(wish, ray, nnodes, backend, reason):
    choice = choose_backend(deployment(wish), samples.engine(ray, nnodes=nnodes))
    assert choice.backend is backend
    assert reason in choice.reason


def test_one_rank_needs_no_cluster():
    choice = choose_backend(deployment("auto", tensor=1), samples.engine(None, nnodes=False))
    assert choice.backend is Backend.MP
    assert "needs no cluster" in choice.reason


@pytest.mark.parametrize(
    ("wish", "ray", "nnodes", "words"),
    [
        ("ray", None, True, "carries no Ray"),
        ("mp", "2.53.0", False, "knows no --nnodes"),
        ("auto", None, False, "cannot be joined"),
    ],
)
def test_what_the_image_cannot_do_is_refused_with_a_remedy(wish, ray, nnodes, words):
    with pytest.raises(ClusterError) as caught:
        choose_backend(deployment(wish), samples.engine(ray, nnodes=nnodes))
    assert words in caught.value.what
    assert caught.value.remedy
