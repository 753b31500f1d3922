"""The UI as its users start it: the webserver answers with the whole graph, and draws it; a mistake in a declaration is
shown with its line. Marked `lab` for its Chromium; no node is contacted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_pipeline_tests.webserver import REPOSITORY, Webserver, draw_asset_graph, webserver

pytestmark = pytest.mark.lab

LOCATION = "workspaceOrError{...on Workspace{locationEntries{name loadStatus locationOrLoadError{__typename"
LOCATION += " ...on PythonError{errorChain{error{message}}}}}}}"
SELECTOR = '(repositorySelector: {repositoryLocationName: "spark_pipeline", repositoryName: "__repository__"})'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DAGSTER_HOME of the tests' own, with the project's instance settings."""
    home = tmp_path_factory.mktemp("dagster_home")
    shutil.copy(REPOSITORY / "dagster.yaml", home)
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Webserver]:
    """Started from another folder, as a service is."""
    with webserver(home, cwd=home, SPARK_PIPELINE_ROOT=str(REPOSITORY)) as running:
        yield running


def test_the_workspace_loads(server):
    (entry,) = server.ask(f"{{{LOCATION}}}")["workspaceOrError"]["locationEntries"]
    assert entry["name"] == "spark_pipeline"
    assert entry["locationOrLoadError"]["__typename"] == "RepositoryLocation", entry


def test_the_graph_leads_from_weights_and_image_to_the_dashboard(server):
    nodes = server.ask("{assetNodes{assetKey{path} groupName dependencyKeys{path}}}")["assetNodes"]
    needs = {tuple(node["assetKey"]["path"]): {tuple(key["path"]) for key in node["dependencyKeys"]} for node in nodes}
    for stage in ("model_weights", "vllm_image"):
        assert needs["tiny", stage] == {("tiny", "compatibility_report")}
    assert needs["tiny", "ray_cluster"] == {("tiny", "model_weights"), ("tiny", "vllm_image")}
    assert needs["tiny", "serving_endpoint"] == {("tiny", "ray_cluster")}
    assert ("tiny", "benchmark_results") in needs["benchmark_dashboard",]
    assert {node["groupName"] for node in nodes} == {"qwen35_122b", "tiny", "tiny_qwen35", "reports"}


def test_sensors_and_the_schedule_are_there_and_stopped(server):
    answer = server.ask(
        f"{{sensorsOrError{SELECTOR}{{...on Sensors{{results{{name sensorState{{status}}}}}}}}"
        f"schedulesOrError{SELECTOR}{{...on Schedules{{results{{name scheduleState{{status}}}}}}}}}}"
    )
    found = {item["name"]: item["sensorState"]["status"] for item in answer["sensorsOrError"]["results"]}
    found |= {item["name"]: item["scheduleState"]["status"] for item in answer["schedulesOrError"]["results"]}
    assert found == {
        "model_revision_sensor": "STOPPED",
        "vllm_image_sensor": "STOPPED",
        "redeploy_qwen35_122b": "STOPPED",
    }


def test_the_pools_have_the_limit_that_the_instance_sets(server):
    instance = server.ask("{instance{poolConfig{poolGranularity defaultPoolLimit} runQueuingSupported}}")["instance"]
    assert instance["poolConfig"] == {"poolGranularity": "op", "defaultPoolLimit": 1}


def test_the_browser_draws_the_whole_graph(server, tmp_path):
    picture = tmp_path / "asset_graph.png"
    words = draw_asset_graph(server, ["qwen35_122b", "tiny", "tiny_qwen35", "reports"], picture)
    shown = ("compatibil…_report", "model_weights", "vllm_image", "ray_cluster")  # the UI shortens long names
    assert {name: words.count(name) for name in shown} == dict.fromkeys(shown, 3)
    assert picture.stat().st_size > 50_000


def test_a_mistake_in_a_declaration_is_shown_with_its_line(home, tmp_path):
    shutil.copytree(REPOSITORY / "data" / "fleets", tmp_path / "data" / "fleets")
    shutil.copytree(REPOSITORY / "data" / "deployments", tmp_path / "data" / "deployments")
    shutil.copytree(REPOSITORY / "data" / "profiles", tmp_path / "data" / "profiles")
    file = tmp_path / "data" / "deployments" / "tiny.yaml"
    file.write_text(file.read_text().replace("  port: 8000", "  prot: 8000"))
    with webserver(home, cwd=home, SPARK_PIPELINE_ROOT=str(tmp_path)) as server:
        (entry,) = server.ask(f"{{{LOCATION}}}")["workspaceOrError"]["locationEntries"]
    assert entry["locationOrLoadError"]["__typename"] == "PythonError"
    assert f"{file}:11: serve: unknown key 'prot': write 'port'" in str(entry["locationOrLoadError"]["errorChain"])
