"""Image references, read as Docker reads them."""

from __future__ import annotations

import pytest

from spark_pipeline.image.reference import Reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "registry", "repository", "manifest", "tagged"),
    [
        ("vllm-node", "docker.io", "library/vllm-node", "latest", "vllm-node:latest"),
        ("team/engine:1.2", "docker.io", "team/engine", "1.2", "team/engine:1.2"),
        ("docker.io/team/engine", "docker.io", "team/engine", "latest", "docker.io/team/engine:latest"),
        ("10.77.0.1:5000/engine:1", "10.77.0.1:5000", "engine", "1", "10.77.0.1:5000/engine:1"),
        ("localhost/team/engine", "localhost", "team/engine", "latest", "localhost/team/engine:latest"),
        ("r.example/a/b/c:x", "r.example", "a/b/c", "x", "r.example/a/b/c:x"),
        (f"team/engine@{DIGEST}", "docker.io", "team/engine", DIGEST, None),
        (f"r.example:5000/engine:1@{DIGEST}", "r.example:5000", "engine", DIGEST, "r.example:5000/engine:1"),
    ],
)
def test_a_reference_is_taken_apart_by_dockers_grammar(
    text: str, registry: str, repository: str, manifest: str, tagged: str | None
) -> None:
    parsed = Reference.parse(text)
    assert (parsed.registry, parsed.repository) == (registry, repository)
    assert (parsed.manifest, parsed.tagged) == (manifest, tagged)


def test_a_pinned_reference_keeps_the_name_as_it_was_written() -> None:
    assert Reference.parse("10.77.0.1:5000/engine:1").at(DIGEST) == f"10.77.0.1:5000/engine@{DIGEST}"


def test_the_digest_of_this_name_is_found_however_it_is_spelt() -> None:
    others = (f"other/engine@sha256:{'b' * 64}", f"engine@{DIGEST}")
    assert Reference.parse("docker.io/library/engine:3").digest_among(others) == DIGEST
    assert Reference.parse("team/engine:3").digest_among(others) is None
