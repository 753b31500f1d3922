"""The command line as a person or a script meets it: what is on stdout, what on stderr, and the exit status."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from spark_pipeline.benchmark.history import append
from spark_pipeline.cli import main
from spark_pipeline.errors import UnreachableError
from spark_pipeline.fleet.facts import parse
from spark_pipeline.fleet.session import Session
from spark_pipeline.serving.status import DeploymentStatus
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.unit.benchmark.samples import point

REPOSITORY = Path(__file__).parents[2]
RECORDED = REPOSITORY / "spark_pipeline_tests" / "recorded" / "sparks"
STAGES = [
    "compatibility_report",
    "model_weights",
    "vllm_image",
    "ray_cluster",
    "serving_endpoint",
    "benchmark_results",
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own with the shipped declarations and no records."""
    for folder in ("fleets", "deployments", "profiles"):
        shutil.copytree(REPOSITORY / "data" / folder, tmp_path / "data" / folder)
    monkeypatch.setenv("SPARK_PIPELINE_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        pytest.fail(f"contacted {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def refused(*words: str) -> str:
    """What a command that must fail says: on stderr alone, without a traceback."""
    result = run(*words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_check_counts_what_it_found_sound(root):
    result = run("check")
    assert result.exit_code == 0
    assert result.stdout == f"{root}/data: 3 deployments, 2 fleets, 2 profiles: all sound\n"


def test_check_refuses_with_file_and_line(root):
    file = root / "data" / "deployments" / "tiny.yaml"
    file.write_text(file.read_text().replace("  port: 8000", "  prot: 8000"))
    assert f"{file}:11: serve: unknown key 'prot': write 'port'" in refused("check")


@pytest.mark.usefixtures("root", "no_network")
def test_the_users_plan_from_recordings_is_exactly_this(snapshot: SnapshotAssertion):
    result = run("plan", "qwen35_122b", "--facts", str(RECORDED))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == snapshot


@pytest.mark.usefixtures("root", "no_network")
def test_a_plan_as_json_is_one_document_with_every_stage_in_order():
    plans = json.loads(run("plan", "qwen35_122b", "--facts", str(RECORDED), "--json").stdout)
    assert [plan["stage"] for plan in plans] == STAGES
    assert not plans[0]["changes"]  # the report asks and decides: nothing on a node is another afterwards
    assert all(plan["changes"] and plan["reasons"] and plan["commands"] for plan in plans[1:])


@pytest.mark.usefixtures("root")
def test_a_recording_that_is_missing_is_named(tmp_path):
    folder = tmp_path / "recorded"
    shutil.copytree(RECORDED, folder)
    (folder / "peer.txt").unlink()
    message = refused("plan", "qwen35_122b", "--facts", str(folder))
    assert f"recording {folder / 'peer.txt'} is missing" in message
    assert "fleet facts FLEET --record DIR" in message


@pytest.mark.usefixtures("root", "no_network")
@pytest.mark.parametrize(
    "words", [("plan", "tyni"), ("status", "tyni"), ("stop", "tyni"), ("history", "tyni")], ids=lambda words: words[0]
)
def test_an_unknown_deployment_is_answered_with_the_known_ones(words):
    assert "one of: qwen35_122b, tiny, tiny_qwen35" in refused(*words)


@pytest.mark.usefixtures("root", "no_network")
@pytest.mark.parametrize(
    "words", [("fleet", "facts", "spark"), ("fleet", "enroll", "spark")], ids=lambda words: words[1]
)
def test_an_unknown_fleet_is_answered_with_the_known_ones(words):
    assert "one of: lab, sparks" in refused(*words)


@pytest.mark.usefixtures("root", "no_network")
def test_status_contacts_nobody_for_what_was_never_deployed():
    assert run("status").stdout == "nothing was deployed from here yet\n"
    assert json.loads(run("status", "--json").stdout) == []


@pytest.mark.parametrize("words", [("status",), ("status", "--json")], ids=len)
def test_status_of_a_fleet_that_cannot_be_asked_does_not_hide_the_others(root, monkeypatch, words):
    for name in ("qwen35_122b", "tiny", "tiny_qwen35"):
        Project.load(root).state_dir(name).mkdir(parents=True)

    def look(session: Session) -> DeploymentStatus:
        if session.deployment.name == "qwen35_122b":
            raise UnreachableError("no route", node="head", remedy="see the cable")
        return DeploymentStatus(session.deployment.name, None, None, ())

    monkeypatch.setattr("spark_pipeline.serving.status.status", look)

    result = run(*words)

    assert result.exit_code == 1
    assert result.stderr == "qwen35_122b: [head] no route\n  remedy:   see the cable\n"
    assert "tiny" in result.stdout
    assert "tiny_qwen35" in result.stdout
    assert "qwen35_122b" not in result.stdout


@pytest.mark.usefixtures("root")
def test_history_of_nothing_says_so():
    assert run("history").stdout == "nothing was measured yet\n"
    assert json.loads(run("history", "--json").stdout) == []


def test_history_shows_each_number_with_its_image_and_commit(root):
    measured = point(deployment="tiny")
    append(Project.load(root).benchmarks_file("tiny"), measured)
    lines = run("history", "tiny").stdout.splitlines()
    assert lines[0].split()[:3] == ["MEASURED", "(UTC)", "DEPLOYMENT"]
    assert f"{measured.output_tokens_per_second:.1f}" in lines[1]
    assert measured.image_short in lines[1]
    assert measured.commit_short in lines[1]
    assert json.loads(run("history", "tiny", "--json").stdout)[0]["commit"] == measured.commit


def test_report_prints_where_the_page_is(root):
    page = Path(run("report").stdout.strip())
    assert page == root / "data" / "reports" / "benchmarks.html"
    assert "Nothing has been measured yet" in page.read_text()


def here(root: Path, node: str) -> None:
    fleet = f"name: here\naccelerator: none\nweights_dir: /var/tmp/models\nnodes:\n  - {{name: head, {node}}}\n"
    (root / "data" / "fleets" / "here.yaml").write_text(fleet)


def test_facts_that_were_recorded_can_be_read_again(root, tmp_path):
    here(root, "local: true, fabric: 127.0.0.1")
    folder = tmp_path / "recorded"
    (shown,) = json.loads(run("fleet", "facts", "here", "--record", str(folder), "--json").stdout)
    read = parse("head", (folder / "head.txt").read_text())
    assert (shown["hostname"], shown["memory_total_bytes"]) == (read.hostname, read.memory_total_bytes)


def test_facts_as_text_name_what_a_person_looks_for(root):
    here(root, "local: true, fabric: 127.0.0.1")
    shown = run("fleet", "facts", "here").stdout
    assert shown.startswith("head\n")
    assert all(
        f"\n  {what}" in shown for what in ("machine", "memory", "accelerator", "weights disk", "docker", "login")
    )


def test_an_unreachable_node_is_named_with_what_to_do(root):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    here(root, f"ssh: {{host: 127.0.0.1, user: nobody, port: {port}}}, fabric: 127.0.0.1")
    message = refused("fleet", "enroll", "here")
    assert "[head]" in message
    assert "remedy:" in message


def test_the_lab_belongs_to_the_same_command():
    assert run("lab", "--help").exit_code == 0
    assert "lab" in run("--help").stdout
