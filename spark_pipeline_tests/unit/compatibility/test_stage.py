"""From what was seen to the decision, on the recorded case."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_pipeline.compatibility import describe, stage
from spark_pipeline.compatibility.judge import Asked, judged
from spark_pipeline.compatibility.stage import CompatibilityResult, decide, wanted_of
from spark_pipeline.errors import AugmentError, CompatibilityError, RegistryError, StateError
from spark_pipeline.fleet.docker import parse_image
from spark_pipeline.fleet.facts import NodeFacts, parse
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.answer import ProbeResult
from spark_pipeline.image.augment.augmentation import Augmentation, AugmentKind, Side
from spark_pipeline.image.candidates import Candidate
from spark_pipeline.image.choice import declaration_hash, keep_choice, read_choice
from spark_pipeline.image.strategy import Judged, Way
from spark_pipeline.spec.deployment import Backend
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.model_facts import ModelFacts
from spark_pipeline_tests.doubles import ScriptedConnection, ScriptedHost

RECORDED = Path(__file__).parents[2] / "recorded" / "sparks"
ROOT = Path(__file__).parents[3]
NEW, OLD = "hellohal2064/vllm-qwen3.5-gb10:latest", "vllm-node:latest"
MODEL = ModelFacts.model_validate_json((RECORDED / "model.json").read_text())


def session(**changes: Any) -> Session:
    project = Project.load(ROOT)
    deployment = project.deployment("qwen35_122b").model_copy(update=changes)
    connection = ScriptedConnection([ScriptedHost("head"), ScriptedHost("peer")])
    return Session(project, deployment, connection, print, "run-1")  # type: ignore[arg-type]


def nodes() -> tuple[NodeFacts, ...]:
    return tuple(parse(name, (RECORDED / f"{name}.txt").read_text()) for name in ("head", "peer"))


def asked(number: int, declared: str, change: Callable[[dict[str, Any]], None] = lambda probe: None) -> Asked:
    probe = json.loads((RECORDED / f"probe_{number}.json").read_text())
    change(probe)
    on_head = parse_image(declared, (RECORDED / f"image_{number}.json").read_text())
    result = ProbeResult.model_validate(probe)
    return Asked(Candidate(declared, None, on_head), judged(declared, result, wanted_of(MODEL)))


def both() -> list[Asked]:
    return [asked(0, NEW), asked(1, OLD)]


def test_the_newer_image_is_decided_on_with_everything_that_later_stages_need() -> None:
    work = session()
    result = decide(work, MODEL, nodes(), both(), occupied=False)
    choice = result.choice
    assert choice is not None
    assert (choice.declared, choice.way, choice.augmentation) == (NEW, Way.OWN_RAY, None)
    assert (choice.architecture, choice.model_type) == ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")
    assert choice.fingerprint == parse_image(NEW, (RECORDED / "image_0.json").read_text()).fingerprint
    assert choice.decided_for == declaration_hash(work.deployment)
    assert result.report.problem == ""
    assert [(layout.nodes, layout.fits) for layout in result.report.layouts] == [(1, False), (2, True)]


def test_the_wrapper_of_an_image_is_reported_and_said_not_to_run() -> None:
    report = decide(session(), MODEL, nodes(), both(), occupied=False).report
    newer = report.candidates[0]
    assert newer.entrypoint == ("/opt/entrypoint.sh",)
    assert "its entrypoint /opt/entrypoint.sh is not run" in describe.of_candidate(newer)


def blocked(work: Session, found: list[Asked], facts: tuple[NodeFacts, ...], **more: bool) -> CompatibilityResult:
    result = decide(work, MODEL, facts, found, occupied=more.get("occupied", False))
    assert result.choice is None
    assert any(reason.startswith("BLOCKED: ") for reason in result.plan.reasons)
    return result


def test_a_model_that_does_not_fit_is_blocked_and_the_smallest_layout_named() -> None:
    # 64 GB Sparks exist, too.
    small = tuple(
        replace(
            node,
            memory_available_bytes=node.memory_available_bytes // 2,
            memory_total_bytes=node.memory_total_bytes // 2,
        )
        for node in nodes()
    )
    result = blocked(session(), both(), small)
    assert result.report.problem == "the model does not fit into the nodes' memory"
    assert "`parallel: {tensor: 4}` is the smallest layout that fits such nodes" in result.report.remedy
    assert result.report.choice is not None  # the table still says which image it would be


def test_memory_that_somebody_else_holds_is_to_be_freed() -> None:
    half = tuple(replace(node, memory_available_bytes=node.memory_available_bytes // 2) for node in nodes())
    assert blocked(session(), both(), half).report.remedy.startswith("free memory there: `docker ps`")


def test_a_declared_share_that_is_too_small_for_the_model_is_blocked() -> None:
    serve = session().deployment.serve.model_copy(update={"gpu_memory_utilization": 0.5})
    assert not blocked(session(serve=serve), both(), nodes()).report.fits


def test_the_kv_cache_of_one_long_request_counts() -> None:
    """A dense model whose cache is large: 80 layers, 8 heads of 128, 131072 tokens are 21 GB a rank."""
    dense = MODEL.model_copy(update={"attention_layers": 80, "layers": 80, "kv_heads": 8, "head_dim": 128})
    serve = session().deployment.serve.model_copy(update={"max_model_len": 131072})
    work = session(serve=serve)
    two = decide(work, dense, nodes(), both(), occupied=False).report.layouts[1]
    expected = dense.size_bytes / 2 + 3 * 2**30 + 80 * 2 * 4 * 128 * 2 * 131072
    assert two.needs_bytes == pytest.approx(expected, rel=0.001)
    halved = serve.model_copy(update={"args": ("--kv-cache-dtype", "fp8")})
    assert (
        decide(session(serve=halved), dense, nodes(), both(), occupied=False).report.layouts[1].needs_bytes < expected
    )


def test_a_ray_that_cannot_be_layered_is_ruled_out_with_the_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: object) -> Augmentation:
        raise AugmentError("ray==2.53.0 cannot be layered", observed="protobuf>=3.20.3 is required, 3.19 is there")

    monkeypatch.setattr(stage, "plan_ray", conflict)

    def without_ray(probe: dict[str, Any]) -> None:
        probe["answer"]["engine"]["ray"] = None

    result = blocked(session(backend=Backend.RAY), [asked(0, NEW, without_ray)], nodes())
    layered = next(option for option in result.report.options if option.way is Way.RAY_LAYERED)
    assert not layered.possible
    assert "protobuf>=3.20.3 is required" in layered.why
    assert "protobuf>=3.20.3 is required" in result.report.remedy


def test_memory_that_an_earlier_generation_holds_does_not_count_against_it() -> None:
    half = tuple(replace(node, memory_available_bytes=node.memory_available_bytes // 2) for node in nodes())
    assert decide(session(), MODEL, half, both(), occupied=True).choice is not None


def test_without_an_image_that_knows_it_the_first_release_that_does_is_named() -> None:
    result = blocked(session(), [asked(1, OLD)], nodes())
    assert result.report.problem == "no candidate image can serve the model"
    assert result.report.remedy == "name an image with vLLM 0.17.0 or later under image.candidates"


def test_a_broken_image_is_told_with_its_own_error() -> None:
    def broken(probe: dict[str, Any]) -> None:
        inspection = probe["inspections"]["Qwen3_5MoeForConditionalGeneration"]
        inspection |= {"inspected": False, "error": "ImportError: cannot import name 'MambaStateCopyFunc'"}

    result = blocked(session(), [asked(0, NEW, broken)], nodes())
    assert "ImportError: cannot import name 'MambaStateCopyFunc'" in describe.table(result.report)


def test_ray_is_layered_onto_an_image_without_it_when_ray_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(declared=NEW, fingerprint="f" * 64, python="python3", directory="/opt/vllm/vllm", vllm="0.17.0")
    made = Augmentation(kind=AugmentKind.RAY, base=side, added=("ray==2.53.0",), reason="asked for", tag="x/y:1")
    monkeypatch.setattr(stage, "plan_ray", lambda *_: made)

    def without_ray(probe: dict[str, Any]) -> None:
        probe["answer"]["engine"]["ray"] = None

    result = decide(session(backend=Backend.RAY), MODEL, nodes(), [asked(0, NEW, without_ray)], occupied=False)
    assert result.choice is not None
    assert (result.choice.way, result.choice.augmentation) == (Way.RAY_LAYERED, made)


def test_a_plan_that_waits_for_a_pull_says_so_and_is_not_blocked() -> None:
    waits = Judged(NEW, waits="not on the head; its registry has it (sha256:d, 24.0 GB to pull), asked after the pull")
    found = [Asked(Candidate(NEW, None, None), waits, to_pull=True)]
    result = decide(session(), MODEL, nodes(), found, occupied=False)
    assert result.choice is None
    assert result.plan.changes
    assert result.plan.reasons[-1] == "what is inside an image is known only after the pull"


def test_what_an_image_sets_is_reported_but_no_secrets() -> None:
    text = json.loads((RECORDED / "image_0.json").read_text())
    text["Config"]["Env"] += ["HF_TOKEN=hf_abc", "API_KEY=k"]
    item = replace(asked(0, NEW), candidate=Candidate(NEW, None, parse_image(NEW, json.dumps(text))))
    report = decide(session(), MODEL, nodes(), [item], occupied=False).report
    assert report.candidates[0].environment["PYTHONPATH"] == "/opt/vllm"
    assert "hf_abc" not in report.model_dump_json()
    assert report.candidates[0].environment["API_KEY"] == "***"


@pytest.fixture
def decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose project has a decision from an earlier run."""
    work = session()
    result = decide(work, MODEL, nodes(), both(), occupied=False)
    assert result.choice is not None
    work = replace(work, project=replace(work.project, root=tmp_path))
    keep_choice(work, result.choice)
    manifest = Manifest(repo=MODEL.repo, commit=MODEL.commit, files=(ManifestFile(path="x", size_bytes=1, sha256="0"),))
    monkeypatch.setattr(stage, "resolve_for_run", lambda *_: manifest)
    return work


def test_a_registry_that_is_down_does_not_undo_an_earlier_decision(
    decided: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_choice(decided)

    def look(*_: Any, **__: Any) -> CompatibilityResult:
        raise RegistryError("the registry did not answer", observed="timed out", remedy="try again")

    monkeypatch.setattr(stage, "_look", look)
    with pytest.raises(RegistryError):
        stage.ensure(decided)

    assert read_choice(decided) == before


def test_a_report_that_finds_no_way_undoes_an_earlier_decision(
    decided: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_no_way(decided, monkeypatch)

    with pytest.raises(StateError, match="no image was decided on"):
        read_choice(decided)


def test_no_to_what_a_sensor_saw_says_nothing_of_what_serves_now(
    decided: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_no_way(decided, monkeypatch, digest="sha256:" + "1" * 64)

    assert read_choice(decided).commit == MODEL.commit


def test_no_to_a_new_commit_leaves_the_decision_for_the_old_one(
    decided: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_choice(decided, read_choice(decided).model_copy(update={"commit": "0" * 40}))

    find_no_way(decided, monkeypatch)

    assert read_choice(decided).commit == "0" * 40


def find_no_way(work: Session, monkeypatch: pytest.MonkeyPatch, *, digest: str | None = None) -> None:
    found = decide(work, MODEL, nodes(), [asked(1, OLD)], occupied=False)
    monkeypatch.setattr(stage, "_look", lambda *_, **__: found)
    with pytest.raises(CompatibilityError, match="no candidate image can serve the model"):
        stage.ensure(work, digest=digest)
