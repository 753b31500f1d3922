"""The case of scenario.md, replayed with real releases: every "why not" is known before a byte of weights.

One image is too old, the other serves by itself what it likes; the model fits on no single node; files of the newer
vLLM do not work in the older one. Real vLLM 0.14.1 and 0.17.0, a hub with headers of the real sizes, real Docker.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from spark_pipeline.cli import main
from spark_pipeline.compatibility import stage as compatibility
from spark_pipeline.compatibility.record import CompatibilityReport, report_path
from spark_pipeline.errors import CompatibilityError, HubError, ImageError, WeightsError
from spark_pipeline.fleet.docker import Docker
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.image import stage as image
from spark_pipeline.image.choice import ImageChoice, read_choice
from spark_pipeline.image.strategy import Option, Way
from spark_pipeline.image.verdict import Evidence, Kind
from spark_pipeline.lab.content import prepare_hub, publish_replay
from spark_pipeline.lab.hub_faults import Fault, write_faults
from spark_pipeline.lab.hub_server import ACCESS_LOG
from spark_pipeline.lab.lab import Lab
from spark_pipeline.lab.replay_images import ReplayName, replay_image
from spark_pipeline.spec import store
from spark_pipeline.spec.project import Project

pytestmark = pytest.mark.lab

DATA = Path(__file__).parents[2] / "data"
ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
OLD, NEW = "vllm-node:0.14.1", "vllm-qwen35:0.17.0"
OLD_WITHOUT_RAY, NEW_WITHOUT_RAY = "vllm-node:0.14.1-noray", "vllm-qwen35:0.17.0-noray"
BIG, TINY = "lab/qwen35_122b", "lab/tiny_qwen35"
GB = 1_000_000_000


def say(text: str) -> None:
    print(text, file=sys.stderr)


class Replay:
    """One project on the lab's fleet; a deployment is declared anew for each question."""

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab = lab
        self.root = root

    def declare(self, repo: str, *candidates: str, **changes: Any) -> Project:
        declared = {
            "name": "replay",
            "fleet": "lab",
            "model": {"repo": repo, "hub_url": self.lab.plan.hub_url},
            "image": {"candidates": list(candidates), **changes.pop("image", {})},
            "parallel": {"tensor": 2},
            "serve": {"served_name": "replay", "port": 8200},
            **changes,
        }
        path = self.root / "data" / "deployments" / "replay.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(declared), encoding="utf-8")
        return Project.load(self.root)

    def ask(self, repo: str, *candidates: str, **changes: Any) -> tuple[CompatibilityReport, ImageChoice | None]:
        """The report, whether it ends with a decision or with an error."""
        with open_session(self.declare(repo, *candidates, **changes), "replay", progress=say, run_id="t") as session:
            try:
                return compatibility.ensure(session).report, read_choice(session)
            except CompatibilityError as error:
                say(str(error))
                report = store.read(report_path(session), CompatibilityReport)
                assert report is not None
                return report, None


@pytest.fixture(scope="module")
def replay(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    root = tmp_path_factory.mktemp("replay")
    (root / "data").mkdir()
    for folder in ("fleets", "profiles"):
        shutil.copytree(DATA / folder, root / "data" / folder)
    (root / "data" / "fleets" / "sparks.yaml").unlink()
    names: tuple[ReplayName, ...] = ("vllm-node", "vllm-qwen35", "vllm-node-noray", "vllm-qwen35-noray")
    for name in names:
        replay_image(lab, say, name)
    prepare_hub(lab.paths.hub, say)
    publish_replay(lab.paths.hub)
    project = Project.load(root)
    enroll(project.fleet("lab"), project.known_hosts, say)
    yield Replay(lab, root)
    write_faults(lab.paths.hub, [])


@pytest.fixture(scope="module")
def case(replay: Replay) -> CompatibilityReport:
    """What is said of the user's case: the real model, both images."""
    report, choice = replay.ask(BIG, OLD, NEW)
    assert choice is None
    return report


def ways(report: CompatibilityReport, candidate: str) -> dict[Way, Option]:
    return {option.way: option for option in report.options if option.candidate == candidate}


# --- the six failures


def test_one_node_does_not_fit_and_the_smallest_layout_is_named(case: CompatibilityReport) -> None:
    assert 119 * GB < case.model.size_bytes < 126 * GB
    assert case.model.size_evidence == "headers"
    first = case.layouts[0]
    assert (first.nodes, first.fits) == (1, False)
    assert first.needs_bytes > case.model.size_bytes > first.has_bytes
    assert case.layouts[-1].fits
    assert case.problem == "the model does not fit into the nodes' memory"  # two nodes of this machine are no Sparks


def test_the_older_image_does_not_know_the_architecture_and_the_release_that_does_is_named(
    case: CompatibilityReport,
) -> None:
    verdict = case.candidates[0].verdict
    assert verdict is not None
    assert (verdict.kind, verdict.evidence, verdict.first_version) == (Kind.UNSUPPORTED, Evidence.IMPORT, "0.17.0")
    assert not verdict.knows_model_type
    for way in (Way.OWN_RAY, Way.MP, Way.RAY_LAYERED):
        assert "0.17.0" in ways(case, OLD)[way].why


def test_mounting_or_grafting_its_files_is_ruled_out_before_anything_is_built(case: CompatibilityReport) -> None:
    graft = ways(case, OLD)[Way.GRAFT]
    assert (graft.possible, graft.donor) == (False, NEW)
    assert "vLLM 0.14.1+cpu here, 0.17.0 in vllm-qwen35:0.17.0" in graft.why
    assert "the registry is a table" in graft.why


def test_the_conflict_over_transformers_names_both_requirements(case: CompatibilityReport) -> None:
    why = ways(case, OLD)[Way.TRANSFORMERS].why
    assert "requires transformers<5,>=4.56.0" in why
    assert case.model.transformers_version in why
    assert case.model.transformers_version.startswith("5.")


def test_the_newer_image_is_native_by_inspection_once_its_entrypoint_is_out_of_the_way(
    case: CompatibilityReport,
) -> None:
    newer = case.candidates[1]
    assert newer.verdict is not None
    assert (newer.verdict.kind, newer.verdict.evidence) == (Kind.NATIVE, Evidence.INSPECTED)
    assert newer.entrypoint != ()
    assert (newer.installed_as, newer.directory) == ("source_tree", "/opt/vllm/vllm")
    assert newer.engine is not None
    assert (newer.engine.vllm, newer.engine.ray) == ("0.17.0", "2.53.0")
    chosen = case.choice
    assert chosen is not None
    assert (chosen.candidate, chosen.way) == (NEW, Way.OWN_RAY)


def test_no_weights_were_downloaded_for_all_that(case: CompatibilityReport, replay: Replay) -> None:
    lines = (replay.lab.paths.hub / ACCESS_LOG).read_text().splitlines()
    asked = [record for record in map(json.loads, lines) if BIG in record["path"] and "safetensors" in record["path"]]
    shards = [record for record in asked if not record["path"].endswith(".json")]
    assert shards
    assert all(record["range"] for record in shards)
    assert max(record["sent_bytes"] for record in shards) < 2_000_000


def test_the_same_question_again_starts_no_container_and_reads_no_shard(
    case: CompatibilityReport, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay.declare(BIG, OLD, NEW)
    monkeypatch.setenv("SPARK_PIPELINE_ROOT", str(replay.root))
    words = ["probe", NEW, "--model", f"{BIG}@{case.model.commit}", "--json"]
    before = len((replay.lab.paths.hub / ACCESS_LOG).read_text().splitlines())
    started = time.time()

    result = CliRunner().invoke(main, words)

    window = ["docker", "events", "--since", f"{started:.3f}", "--until", f"{time.time():.3f}"]
    containers = ["--filter", "type=container", "--format", "{{.Action}}"]
    assert replay.lab.run_in_node("head", [*window, *containers], timeout=60).stdout == ""
    asked = (replay.lab.paths.hub / ACCESS_LOG).read_text().splitlines()[before:]
    assert not [line for line in asked if ".safetensors" in line]
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["image"]["verdict"]["kind"] == "native"
    assert facts["answer"]["registry"]["architectures"][ARCHITECTURE]


# --- variants without Ray, and what is declared


@pytest.mark.parametrize(
    ("candidates", "changes", "expected"),
    [
        ((OLD, NEW), {}, (NEW, Way.OWN_RAY)),
        ((OLD, NEW), {"backend": "mp"}, (NEW, Way.MP)),
        ((OLD_WITHOUT_RAY, NEW_WITHOUT_RAY), {}, (NEW_WITHOUT_RAY, Way.MP)),
        ((OLD_WITHOUT_RAY, NEW_WITHOUT_RAY), {"backend": "ray"}, (NEW_WITHOUT_RAY, Way.RAY_LAYERED)),
        ((NEW_WITHOUT_RAY,), {"backend": "ray", "image": {"augment": "never"}}, None),
        ((OLD,), {}, None),
    ],
)
def test_the_way_that_works_is_chosen(
    replay: Replay, candidates: tuple[str, ...], changes: dict[str, Any], expected: tuple[str, Way] | None
) -> None:
    _, choice = replay.ask(TINY, *candidates, **changes)
    assert (choice and (choice.declared, choice.way)) == expected


def test_a_graft_that_is_asked_for_is_stopped_in_the_build_by_the_real_error(replay: Replay) -> None:
    graft = {"graft": {"base": OLD, "donor": NEW}}
    with open_session(replay.declare(TINY, OLD, NEW, image=graft), "replay", progress=say, run_id="t") as session:
        compatibility.ensure(session)
        choice = read_choice(session)
        assert choice.way is Way.GRAFT
        assert choice.augmentation is not None
        with pytest.raises(ImageError, match="it goes nowhere") as caught:
            image.ensure(session)
        assert "cannot import name 'MambaStateCopyFunc'" in caught.value.observed
        assert caught.value.node == "head"
        assert held(session, choice.augmentation.tag) == {"head": False, "peer": False}
        assert containers_left(session) == ""


def held(session: Session, reference: str) -> dict[str, bool]:
    return session.connection.each(["head", "peer"], lambda host: Docker(host).image(reference) is not None)


def containers_left(session: Session) -> str:
    return session.head.run(["docker", "ps", "--all", "--quiet"], timeout=60).stdout


# --- models that cannot be asked, or served


def test_a_model_without_architectures_is_refused(replay: Replay) -> None:
    with pytest.raises(WeightsError) as caught:
        replay.ask("lab/no_architectures", OLD, NEW)
    assert "architectures" in str(caught.value)


def test_a_gated_model_says_what_to_do(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    hub = replay.lab.paths.hub
    write_faults(hub, [Fault(kind="gated", repo=TINY)])
    try:
        shutil.rmtree(replay.root / "data" / "state" / "models" / TINY, ignore_errors=True)
        with pytest.raises(HubError) as caught:
            replay.ask(TINY, OLD, NEW)
    finally:
        write_faults(hub, [])
    assert "accept the licence" in caught.value.remedy


def test_the_plan_tells_the_same_and_changes_nothing(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    replay.declare(TINY, OLD, NEW)
    monkeypatch.setenv("SPARK_PIPELINE_ROOT", str(replay.root))
    result = CliRunner().invoke(main, ["plan", "replay", "--json"])
    assert result.exit_code == 0, result.output
    first, *_ = json.loads(result.stdout)
    assert first["stage"] == "compatibility_report"
    assert not first["changes"]
    assert [NEW, "as it is, with its own Ray", "chosen"] in [row[:3] for row in first["table"]]
