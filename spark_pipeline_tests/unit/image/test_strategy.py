"""Every way from the candidates to a serving image: which is possible, which is ruled out by what, which is best."""

from __future__ import annotations

from typing import Any

import pytest

from spark_pipeline.image.answer import ImageAnswer, PythonFound, Registry
from spark_pipeline.image.record import EngineFacts
from spark_pipeline.image.strategy import Judged, Option, Way, chosen, options, requirement_on
from spark_pipeline.image.verdict import Evidence, Kind, Verdict, Wanted
from spark_pipeline.spec.deployment import Deployment

ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
WANTED = Wanted((ARCHITECTURE,), "qwen3_5_moe", "5.2.0")
OLD, NEW = "vllm-node:latest", "vllm-qwen35:latest"


def answer(vllm: str, *, ray: str | None = "2.53.0", nnodes: bool = True, transformers: str = "4.57.6") -> ImageAnswer:
    return ImageAnswer(
        engine=EngineFacts(
            vllm=vllm,
            ray=ray,
            python="3.12.3",
            torch="2.10.0",
            transformers=transformers,
            supports_nnodes=nnodes,
            architecture="arm64",
        ),
        python="/usr/bin/python3",
        directory="/usr/local/lib/python3.12/dist-packages/vllm",
        installed_as="distribution",
        pythons=(PythonFound(executable="/usr/bin/python3", version="3.12.3", vllm_directory="/x/vllm"),),
        packages={},
        requirements=("transformers<5,>=4.56.0", "ray[cgraph]>=2.48.0"),
        registry=Registry(),
        config_types=(),
        transformers_types=(),
    )


def verdict(kind: Kind, why: str = "inspected: the class imports", *, knows_model_type: bool = True) -> Verdict:
    return Verdict(
        kind=kind,
        evidence=Evidence.INSPECTED,
        architecture=ARCHITECTURE,
        why=why,
        first_version="0.17.0",
        knows_model_type=knows_model_type,
    )


def native(declared: str = NEW, **changes: Any) -> Judged:
    return Judged(declared, answer("0.17.1rc1.dev25", **changes), verdict(Kind.NATIVE))


def old(declared: str = OLD) -> Judged:
    why = "its vLLM 0.14.1 does not know it (first in 0.17.0)"
    return Judged(declared, answer("0.14.1"), verdict(Kind.UNSUPPORTED, why, knows_model_type=False))


def deployment(*candidates: str, nodes: int = 2, **changes: Any) -> Deployment:
    image = {"candidates": candidates or (OLD, NEW), **changes.pop("image", {})}
    return Deployment.model_validate(
        {
            "name": "d",
            "fleet": "f",
            "model": {"repo": "a/b"},
            "image": image,
            "parallel": {"tensor": nodes},
            "serve": {"served_name": "d"},
            **changes,
        }
    )


def by_way(found: tuple[Option, ...], candidate: str) -> dict[Way, Option]:
    return {option.way: option for option in found if option.candidate == candidate}


def best(found: tuple[Option, ...]) -> tuple[str, Way] | None:
    option = chosen(found)
    return (option.candidate, option.way) if option else None


# --- the case that the project exists for


def test_of_two_images_with_half_each_the_newer_is_used_as_it_is() -> None:
    found = options(deployment(), [old(), native()], WANTED)
    assert best(found) == (NEW, Way.OWN_RAY)
    ways = by_way(found, OLD)
    assert all(not option.possible for option in ways.values())
    assert "first in 0.17.0" in ways[Way.OWN_RAY].why
    graft = ways[Way.GRAFT]
    assert (graft.donor, graft.possible) == (NEW, False)
    assert "vLLM 0.14.1 here, 0.17.1rc1.dev25 in vllm-qwen35:latest" in graft.why
    assert "the registry is a table" in graft.why
    conflict = "vLLM 0.14.1 requires transformers<5,>=4.56.0, and model type qwen3_5_moe is new to transformers 4.57.6"
    assert ways[Way.TRANSFORMERS].why == f"{conflict}: the checkpoint was written by 5.2.0"
    assert conflict in graft.why


def test_exactly_one_possible_way_is_chosen() -> None:
    found = options(deployment(), [native(OLD), native(NEW)], WANTED)
    assert [option.is_chosen for option in found].count(True) == 1


# --- what is preferred


@pytest.mark.parametrize(
    ("candidates", "changes", "expected"),
    [
        ([native()], {}, (NEW, Way.OWN_RAY)),
        ([native()], {"backend": "mp"}, (NEW, Way.MP)),
        ([native(ray=None)], {}, (NEW, Way.MP)),
        ([native(ray=None)], {"backend": "ray"}, (NEW, Way.RAY_LAYERED)),
        ([native(ray=None, nnodes=False)], {}, (NEW, Way.RAY_LAYERED)),
        ([native(ray=None, nnodes=False)], {"image": {"augment": "never"}}, None),
        ([native(ray=None)], {"backend": "ray", "image": {"augment": "never"}}, None),
        ([native(nnodes=False)], {"backend": "mp"}, None),
        ([native(ray=None)], {"nodes": 1}, (NEW, Way.ONE_NODE)),
        ([old()], {}, None),
        ([native(OLD), native(NEW)], {}, (OLD, Way.OWN_RAY)),
        # An image as it is comes before one that must be built, whatever is declared first.
        ([native(OLD, ray=None, nnodes=False), native(NEW)], {}, (NEW, Way.OWN_RAY)),
        # vLLM's own implementation comes before the Transformers backend.
        (
            [Judged(OLD, answer("0.32.0"), verdict(Kind.TRANSFORMERS_FALLBACK)), native(ray=None, nnodes=False)],
            {},
            (NEW, Way.RAY_LAYERED),
        ),
        ([Judged(OLD, answer("0.32.0"), verdict(Kind.TRANSFORMERS_FALLBACK))], {}, (OLD, Way.OWN_RAY)),
    ],
)
def test_the_least_risk_is_chosen(
    candidates: list[Judged], changes: dict[str, Any], expected: tuple[str, Way] | None
) -> None:
    assert best(options(deployment(**changes), candidates, WANTED)) == expected


@pytest.mark.parametrize("kind", [Kind.BROKEN, Kind.PREVIOUSLY_SUPPORTED, Kind.OUT_OF_TREE, Kind.UNSUPPORTED])
def test_what_cannot_serve_is_ruled_out_by_its_verdict(kind: Kind) -> None:
    found = options(deployment(NEW), [Judged(NEW, answer("0.32.0"), verdict(kind, "this is why"))], WANTED)
    assert chosen(found) is None
    assert by_way(found, NEW)[Way.OWN_RAY].why == "this is why"


def test_a_class_without_a_configuration_cannot_be_loaded() -> None:
    known = Judged(NEW, answer("0.17.0"), verdict(Kind.NATIVE, knows_model_type=False))
    wanted = Wanted((ARCHITECTURE,), "qwen3_5_moe", "4.57.0")
    found = options(deployment(NEW), [known], wanted)
    assert chosen(found) is None
    assert by_way(found, NEW)[Way.OWN_RAY].why == (
        "transformers 4.57.6 does not know model type qwen3_5_moe, nor does vLLM itself"
    )
    assert "it would replace transformers 4.57.6" in by_way(found, NEW)[Way.TRANSFORMERS].why


def test_the_repositorys_own_code_is_only_run_when_that_is_declared() -> None:
    known = Judged(NEW, answer("0.17.0"), verdict(Kind.NATIVE, knows_model_type=False))
    wanted = Wanted((ARCHITECTURE,), "qwen3_5_moe", has_remote_code=True)
    found = options(deployment(NEW), [known], wanted)
    assert chosen(found) is None
    assert "declare --trust-remote-code under serve.args" in by_way(found, NEW)[Way.OWN_RAY].why
    trusting = deployment(NEW, serve={"served_name": "d", "args": ["--trust-remote-code"]})
    assert best(options(trusting, [known], wanted)) == (NEW, Way.OWN_RAY)


# --- candidates that were not asked


def test_a_candidate_that_was_not_asked_has_one_row_with_the_reason() -> None:
    found = options(deployment(), [Judged(OLD, against="amd64 image on arm64 node head (aarch64)"), native()], WANTED)
    assert [(o.way, o.why) for o in found if o.candidate == OLD] == [
        (Way.ANY, "amd64 image on arm64 node head (aarch64)")
    ]
    assert best(found) == (NEW, Way.OWN_RAY)


def test_nothing_is_grafted_from_a_candidate_that_was_not_asked() -> None:
    found = options(deployment(), [old(), Judged(NEW, waits="not on the head")], WANTED)
    assert Way.GRAFT not in by_way(found, OLD)


# --- grafts


GRAFT: dict[str, Any] = {"image": {"graft": {"base": OLD, "donor": NEW}}}


def test_a_graft_that_is_asked_for_by_name_is_the_only_way() -> None:
    found = options(deployment(**GRAFT), [old(), native()], WANTED)
    assert best(found) == (OLD, Way.GRAFT)
    assert [option.way for option in found if option.possible] == [Way.GRAFT]
    assert by_way(found, NEW)[Way.OWN_RAY].why == f"graft of {OLD} is declared"


def test_a_donor_that_does_not_know_the_architecture_has_nothing_to_give() -> None:
    broken = Judged(NEW, answer("0.17.0"), verdict(Kind.BROKEN, "ImportError: no torchvision"))
    found = options(deployment(**GRAFT), [old(), broken], WANTED)
    assert chosen(found) is None
    assert by_way(found, OLD)[Way.GRAFT].why == f"{NEW} has no working files to give: ImportError: no torchvision"


def test_a_graft_within_one_minor_version_waits_to_be_asked_for() -> None:
    near = Judged(OLD, answer("0.17.0"), verdict(Kind.UNSUPPORTED, "not known"))
    graft = by_way(options(deployment(), [near, native()], WANTED), OLD)[Way.GRAFT]
    assert not graft.possible
    assert "only when asked for by name" in graft.why


# --- requirements


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        (("transformers<5,>=4.56.0",), "transformers<5,>=4.56.0"),
        (("torch==2.10.0", "transformers>=5.16.1; python_version > '3'"), "transformers>=5.16.1"),
        (("transformers>=9; extra == 'later'", "transformers<5"), "transformers<5"),
        (("-r common.txt", "git+https://x.example/y", "torch"), None),
    ],
)
def test_what_is_required_of_transformers_is_found(requirements: tuple[str, ...], expected: str | None) -> None:
    found = requirement_on("transformers", requirements)
    assert (str(found) if found else None) == expected
