"""Which candidate it is, and why not the others."""

from __future__ import annotations

import pytest

from spark_pipeline.errors import ImageError, ImageNotFoundError
from spark_pipeline.image.choose import Candidate, Machine, RegistryAnswer, choose
from spark_pipeline_tests.unit.image.samples import DIGEST, image

LAB = (Machine("head", "x86_64"), Machine("peer", "x86_64"))
SPARKS = (Machine("head", "aarch64"), Machine("peer", "aarch64"))


def test_the_first_candidate_on_the_head_is_taken_as_it_is() -> None:
    choice = choose([Candidate("a:1", image("a:1")), Candidate("b:1", image("b:1"))], LAB)
    assert (choice.declared, choice.pull, choice.digest) == ("a:1", None, None)
    assert choice.reasons == ("a:1: on the head, from no registry",)


def test_an_image_that_was_pulled_keeps_its_registry_digest() -> None:
    held = image("r.example/a:1", repo_digests=(f"r.example/a@{DIGEST}",))
    assert choose([Candidate("r.example/a:1", held)], LAB).digest == DIGEST


def test_a_candidate_in_its_registry_comes_before_a_later_one_on_the_head() -> None:
    choice = choose([Candidate("r.example/a:1", None, RegistryAnswer(DIGEST)), Candidate("b:1", image("b:1"))], LAB)
    assert choice.declared == "r.example/a:1"
    assert choice.pull == f"r.example/a@{DIGEST}"
    assert choice.digest == DIGEST


def test_a_candidate_that_is_nowhere_is_passed_over_with_its_reason() -> None:
    nowhere = Candidate("a:1", None, RegistryAnswer(None, "registry docker.io has no a:1 (404 Not Found)"))
    choice = choose([nowhere, Candidate("b:1", image("b:1"))], LAB)
    assert choice.declared == "b:1"
    assert choice.reasons[0] == "a:1: not on the head; registry docker.io has no a:1 (404 Not Found)"


def test_with_a_digest_the_image_is_pinned_to_it() -> None:
    choice = choose([Candidate("r.example/a:1", None, RegistryAnswer(DIGEST))], LAB, DIGEST)
    assert choice.pull == f"r.example/a@{DIGEST}"
    held = choose([Candidate("r.example/a:1", image("r.example/a:1"))], LAB, DIGEST)
    assert (held.pull, held.digest) == (None, DIGEST)


def test_when_nothing_is_anywhere_each_answer_is_listed() -> None:
    candidates = [
        Candidate("a:1", None, RegistryAnswer(None, "registry docker.io has no a:1 (404 Not Found)")),
        Candidate("10.77.0.1:5000/b:1", None, RegistryAnswer(None, "no answer (Connection refused)")),
    ]
    with pytest.raises(ImageNotFoundError) as caught:
        choose(candidates, LAB)
    assert caught.value.observed.splitlines() == [
        "a:1: not on the head; registry docker.io has no a:1 (404 Not Found)",
        "10.77.0.1:5000/b:1: not on the head; no answer (Connection refused)",
    ]
    assert "docker pull" in caught.value.remedy


def test_an_image_for_other_processors_is_refused_in_clear_words() -> None:
    with pytest.raises(ImageError) as caught:
        choose([Candidate("a:1", image("a:1"))], SPARKS)
    assert caught.value.observed == "a:1: amd64 image on arm64 node head (aarch64)"


def test_one_node_of_another_kind_is_enough_to_refuse() -> None:
    with pytest.raises(ImageError, match="can run on these nodes") as caught:
        choose([Candidate("a:1", image("a:1"))], (LAB[0], SPARKS[1]))
    assert "amd64 image on arm64 node peer" in caught.value.observed


def test_after_an_unfit_candidate_the_next_one_gets_its_turn() -> None:
    choice = choose([Candidate("a:1", image("a:1")), Candidate("b:1", image("b:1", architecture="arm64"))], SPARKS)
    assert choice.declared == "b:1"
    assert choice.reasons[0] == "a:1: amd64 image on arm64 node head (aarch64)"
