"""Every mistake in a declaration is answered with file, line and what to write instead."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_pipeline.errors import DeclarationError
from spark_pipeline.spec.project import Project

SHIPPED = Path(__file__).resolve().parents[3] / "data"
DEPLOYMENT = "deployments/qwen35_122b.yaml"
FLEET = "fleets/sparks.yaml"
PROFILE = "profiles/smoke.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the shipped declarations, to be broken."""
    for folder in ("fleets", "deployments", "profiles"):
        shutil.copytree(SHIPPED / folder, tmp_path / "data" / folder)
    return tmp_path


def replace(root: Path, file: str, old: str, new: str) -> int:
    """Replace a text that stands once in a file; give the line on which it begins."""
    path = root / "data" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return text[: text.index(old)].count("\n") + 1


def refusal(root: Path) -> str:
    with pytest.raises(DeclarationError) as caught:
        Project.load(root)
    return str(caught.value)


def case(identifier: str, file: str, old: str, new: str, says: str, below: int = 0):
    """`below`: lines from where the edit begins to the line that the message must name."""
    return pytest.param(file, old, new, says, below, id=identifier)


MISTAKES = [
    case("misspelt key", DEPLOYMENT, "  port: 8000", "  prot: 8000", "serve: unknown key 'prot': write 'port'"),
    case(
        "misspelt key at the top", DEPLOYMENT, "backend: auto", "bakend: auto", "unknown key 'bakend': write 'backend'"
    ),
    case(
        "key that no node has",
        FLEET,
        "    fabric: 192.168.200.12",
        "    fabric: 192.168.200.12\n    gpus: 2",
        "nodes.0: unknown key 'gpus' (known: name, ssh, local, fabric, internet)",
        below=1,
    ),
    case(
        "missing key", DEPLOYMENT, "  served_name: qwen3.5-122b\n", "", "serve: key 'served_name' is missing: write", -2
    ),
    case("word for a number", DEPLOYMENT, "port: 8000", "port: http", "serve.port: Input should be a valid integer"),
    case(
        "privileged port",
        DEPLOYMENT,
        "port: 8000",
        "port: 80",
        "serve.port: Input should be greater than or equal to 1024",
    ),
    case("list for a mapping", DEPLOYMENT, "{tensor: 2, pipeline: 1}", "[2, 1]", "parallel: Input should be"),
    case(
        "word not of the choice",
        DEPLOYMENT,
        "augment: auto",
        "augment: sometimes",
        "image.augment: Input should be 'auto' or 'never'",
    ),
    case(
        "neither auto nor a number",
        DEPLOYMENT,
        "gpu_memory_utilization: auto",
        "gpu_memory_utilization: lots",
        "Input should be 'auto'; or: Input should be a valid number",
    ),
    case("unknown backend", DEPLOYMENT, "backend: auto", "backend: mpi", "'auto'; or: Input should be 'ray' or 'mp'"),
    case("name with a dash", DEPLOYMENT, "name: qwen35_122b", "name: qwen35-122b", "name: write at most 40 lower-case"),
    case(
        "repository without its owner",
        DEPLOYMENT,
        "Qwen/Qwen3.5-122B-A10B-FP8",
        "Qwen3.5",
        "model.repo: write the hub's",
    ),
    case(
        "revision that climbs",
        DEPLOYMENT,
        "revision: main",
        "revision: a/../b",
        "model.revision: must not contain '..'",
    ),
    case(
        "image with a scheme",
        DEPLOYMENT,
        "vllm-node:latest",
        "docker://vllm-node",
        "image.candidates.1: write an image as",
    ),
    case(
        "no image",
        DEPLOYMENT,
        "[hellohal2064/vllm-qwen3.5-gb10:latest, vllm-node:latest]",
        "[]",
        "image.candidates: Tuple should have at least 1",
    ),
    case(
        "six cron fields",
        DEPLOYMENT,
        "0 4 * * 0",
        "0 0 4 * * 0",
        "policy.redeploy_cron: write five cron fields, such as",
    ),
    case("hour 25", DEPLOYMENT, "0 4 * * 0", "0 25 * * 0", "cron field hour is '25': write numbers from 0 to 23"),
    case(
        "empty value",
        DEPLOYMENT,
        "max_model_len: 65536",
        "max_model_len: 0",
        "serve.max_model_len: Input should be greater",
    ),
    case(
        "login as user@host",
        FLEET,
        "host: 10.1.230.180",
        "host: aurora@10.1.230.180",
        "nodes.0.ssh.host: write a host name or an address, without user@",
    ),
    case(
        "address that is none",
        FLEET,
        "fabric: 192.168.200.12",
        "fabric: 192.168.200.312",
        "nodes.0.fabric: Input is not a valid IPv4 address",
    ),
    case(
        "relative weights directory",
        FLEET,
        "/home/aurora/models",
        "models",
        "weights_dir: must be an absolute directory",
    ),
    case(
        "fewer requests than in flight",
        PROFILE,
        "concurrency: 8, requests: 32",
        "concurrency: 8, requests: 4",
        "requests (4) must be at least concurrency (8)",
    ),
    case("key twice", DEPLOYMENT, "  port: 8000", "  port: 8000\n  port: 8001", "key 'port' stands twice", below=1),
    case("template instead of a value", DEPLOYMENT, "name: qwen35_122b", "name: {{ name }}", "a key must be one word"),
    case("unclosed bracket", DEPLOYMENT, "{tensor: 2, pipeline: 1}", "{tensor: 2, pipeline: 1", "not YAML", below=1),
    case("tab", DEPLOYMENT, "  port: 8000", "\tport: 8000", "not YAML: found character '\\t'"),
]


@pytest.mark.parametrize(("file", "old", "new", "says", "below"), MISTAKES)
def test_a_mistake_is_named_with_its_line_and_its_cure(root, file, old, new, says, below):
    line = replace(root, file, old, new) + below
    message = refusal(root)
    assert f"{root}/data/{file}:{line}: " in message
    assert says in message
    assert "remedy:" in message


@pytest.mark.parametrize(
    ("word", "field"),
    [("--port=9000", "serve.port"), ("-tp", "parallel.tensor"), ("--max_model_len", "serve.max_model_len")],
)
def test_a_flag_that_the_pipeline_sets_itself_is_refused_in_args(root, word, field):
    line = replace(root, DEPLOYMENT, "--enable-prefix-caching", f"{word}")
    message = refusal(root)
    assert f":{line}: serve.args: '{word}' is set from `{field}`; give it there, not in args" in message


def test_a_bare_true_among_the_args_must_be_quoted(root):
    replace(root, DEPLOYMENT, "--enable-prefix-caching", "--some-flag, true")
    assert "serve.args.3: write true or false in quotes" in refusal(root)


def test_a_login_in_the_hubs_url_is_refused_and_not_repeated(root):
    replace(root, DEPLOYMENT, "revision: main}", "revision: main, hub_url: 'https://me:s3cr3t@hub.invalid'}")
    message = refusal(root)
    assert "model.hub_url: write http(s)://host without a login in it" in message
    assert "s3cr3t" not in message


def test_a_jump_host_must_be_a_node_declared_before(root):
    replace(root, FLEET, "via: head", "via: haed")
    assert "node 'peer': via 'haed' is not a node of this fleet: head, peer" in refusal(root)


def test_two_nodes_cannot_share_a_fabric_address(root):
    replace(root, FLEET, "fabric: 192.168.200.13", "fabric: 192.168.200.12")
    assert "fabric address given twice: 192.168.200.12" in refusal(root)


def test_a_head_without_internet_is_refused(root):
    replace(root, FLEET, "    fabric: 192.168.200.12", "    fabric: 192.168.200.12\n    internet: false")
    assert "the first node, 'head', downloads weights and image: it needs internet: true" in refusal(root)


def test_a_missing_fleet_is_named_with_the_declared_ones(root):
    line = replace(root, DEPLOYMENT, "fleet: sparks", "fleet: spark")
    assert f"{DEPLOYMENT}:{line}: no fleet 'spark'; declared: lab, sparks" in refusal(root)


def test_a_missing_profile_is_named_with_the_declared_ones(root):
    line = replace(root, DEPLOYMENT, "profiles: [smoke, chat]", "profiles: [smoke, caht]")
    assert f"{DEPLOYMENT}:{line}: no profile 'caht'; declared: chat, smoke" in refusal(root)


def test_a_layout_larger_than_the_fleet_is_refused_with_the_largest_that_fits(root):
    line = replace(root, DEPLOYMENT, "tensor: 2, pipeline: 1", "tensor: 4, pipeline: 2")
    message = refusal(root)
    assert f"{DEPLOYMENT}:{line}: tensor 4 x pipeline 2 needs 8 accelerators; fleet sparks has 2" in message
    assert "write a layout whose product is at most 2" in message


@pytest.mark.parametrize(
    ("port", "says"),
    [
        pytest.param(8000, "port 8000 of fleet lab is also tiny's port", id="the API's"),
        pytest.param(29500, "port 29500 of fleet lab is also tiny's rendezvous port", id="the rendezvous'"),
    ],
)
def test_two_deployments_of_one_fleet_cannot_share_a_port(root, port, says):
    line = replace(root, "deployments/tiny_qwen35.yaml", "port: 8001", f"port: {port}")
    message = refusal(root)
    assert f"deployments/tiny_qwen35.yaml:{line}: {says}: write another port" in message


def test_a_declaration_must_be_named_as_its_file(root):
    replace(root, PROFILE, "name: smoke", "name: smok")
    assert f"{PROFILE}:1: name 'smok' must be the file's: write 'smoke'" in refusal(root)


def test_a_file_that_would_be_overlooked_is_pointed_out(root):
    (root / "data" / "deployments" / "mine.yml").write_text("name: mine\n")
    assert "mine.yml:1: is not read: call it mine.yaml" in refusal(root)


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "just words\n"])
def test_a_file_that_is_no_mapping_is_refused(root, content):
    (root / "data" / PROFILE).write_text(content)
    assert f"{PROFILE}:1: must be a mapping of keys to values" in refusal(root)


def test_a_file_that_is_no_text_is_refused(root):
    (root / "data" / PROFILE).write_bytes(b"\xff\xfe\x00name")
    assert f"{PROFILE}:1: cannot be read as UTF-8 text" in refusal(root)


def test_all_mistakes_of_all_files_come_in_one_answer(root):
    first = replace(root, DEPLOYMENT, "port: 8000", "port: http")
    second = replace(root, DEPLOYMENT, "  max_model_len: 65536", "  max_model_lenght: 65536")
    third = replace(root, FLEET, "accelerator: nvidia", "accelerator: amd")
    message = refusal(root)
    assert all(
        f"{file}:{line}: " in message for file, line in ((DEPLOYMENT, first), (DEPLOYMENT, second), (FLEET, third))
    )


def test_an_undeclared_name_is_answered_with_the_declared_ones(root):
    project = Project.load(root)
    with pytest.raises(DeclarationError, match="no deployment 'tyni'") as caught:
        project.deployment("tyni")
    assert caught.value.remedy == "one of: qwen35_122b, tiny, tiny_qwen35"


def test_the_shipped_declarations_are_sound():
    assert set(Project.load(SHIPPED.parent).deployments) >= {"qwen35_122b", "tiny", "tiny_qwen35"}


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "Some_Password"])
def test_a_secret_in_the_environment_is_refused(root: Path, name: str):
    line = replace(root, DEPLOYMENT, "env: {}", f"env: {{{name}: x}}")
    assert f"{DEPLOYMENT}:{line}: serve.env: {name}: a secret in a declaration" in refusal(root)


def test_an_api_key_among_the_arguments_is_refused(root: Path):
    replace(root, DEPLOYMENT, "--enable-prefix-caching", "--api-key=x")
    assert "--api-key: the word would stand in `ps`" in refusal(root)
