"""What a model is, from a real hub on loopback: how much is fetched, and what is said where it cannot be told."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_pipeline.errors import HubError, WeightsError
from spark_pipeline.lab.hub_faults import Fault
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.lab.tiny_models import tiny_files, tiny_qwen35_files
from spark_pipeline.spec.project import Project
from spark_pipeline.weights.headers import FIRST_BYTES
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.manifest import Manifest
from spark_pipeline.weights.model_facts import DtypeShare, ModelFacts, facts_path, find_model_facts, model_facts

CONFIG = {"architectures": ["TinyForCausalLM"], "model_type": "tiny", "num_hidden_layers": 2}
BITS = {"BF16": 16, "F8_E4M3": 8, "U8": 8, "F4": 4}
INDEX = "model.safetensors.index.json"
DATA_BYTES = 3_000_000


def as_json(content: object) -> bytes:
    return json.dumps(content).encode()


def shard(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """A safetensors file of zeros."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = as_json(header)
    return struct.pack("<Q", len(text)) + text + bytes(end)


BIG = shard({"model.layers.0.weight": ("F8_E4M3", (DATA_BYTES,))})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", {}, {}, {})


@pytest.fixture
def facts_of(hub, project):
    """Publish files and ask for the facts; the log then holds what that took."""

    def ask(files: Mapping[str, bytes], *, token: str = "") -> ModelFacts:
        manifest = hub.publish({"config.json": as_json(CONFIG), **files})
        hub.forget()
        return model_facts(Hub(hub.url, token), manifest, project, lambda _: None)

    return ask


def test_of_a_sharded_model_only_headers_are_fetched(facts_of, hub):
    files = {
        "model-1.safetensors": BIG,
        "model-2.safetensors": shard({"norm": ("BF16", (8, 4)), "mtp.fc.weight": ("BF16", (DATA_BYTES,))}),
        INDEX: as_json({"weight_map": {"model.layers.0.weight": "model-1.safetensors", "norm": "model-2.safetensors"}}),
    }

    facts = facts_of(files)

    assert facts.size_evidence == "headers"
    assert facts.dtypes == (
        DtypeShare(dtype="BF16", tensors=2, parameters=DATA_BYTES + 32, size_bytes=2 * DATA_BYTES + 64),
        DtypeShare(dtype="F8_E4M3", tensors=1, parameters=DATA_BYTES, size_bytes=DATA_BYTES),
    )
    assert facts.size_bytes == 3 * DATA_BYTES + 64
    assert (facts.extra_head_layers, facts.extra_head_bytes) == (1, 2 * DATA_BYTES)
    assert [entry["status"] for entry in hub.file_requests(".safetensors")] == [206, 206]
    assert hub.sent_bytes(".safetensors") == 2 * FIRST_BYTES


def test_a_second_call_asks_nothing_and_needs_no_hub_client(facts_of, hub, project):
    facts = facts_of({"model.safetensors": BIG})
    manifest = hub.publish({"config.json": as_json(CONFIG), "model.safetensors": BIG})
    hub.forget()

    assert model_facts(Hub("http://127.0.0.1:9"), manifest, project, lambda _: None) == facts
    assert find_model_facts(project, hub.repo, manifest.commit) == facts
    assert find_model_facts(project, hub.repo, "d" * 40) is None

    program = (
        "import sys; from pathlib import Path\n"
        "from spark_pipeline.spec.project import Project\n"
        "from spark_pipeline.weights.hub import Hub\n"
        "from spark_pipeline.weights.manifest import Manifest\n"
        "from spark_pipeline.weights.model_facts import model_facts\n"
        "manifest = Manifest.model_validate_json(sys.argv[2])\n"
        "model_facts(Hub('http://127.0.0.1:9'), manifest, Project(Path(sys.argv[1]), {}, {}, {}), print)\n"
        "assert 'huggingface_hub' not in sys.modules\n"
    )
    arguments = [str(project.root), manifest.model_dump_json()]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert hub.log() == []


def test_a_stored_record_of_another_schema_is_written_anew(facts_of, hub, project):
    facts = facts_of({"model.safetensors": BIG})
    path = facts_path(project, facts.repo, facts.commit)
    path.write_text('{"schema_version": 0}')

    assert facts_of({"model.safetensors": BIG}) == facts
    assert ModelFacts.model_validate_json(path.read_text()) == facts


def test_a_header_longer_than_the_first_request_takes_one_more_for_its_rest(facts_of, hub):
    tensors = {f"model.layers.1.a_rather_long_name.{number}": ("BF16", (2, 2)) for number in range(3000)}
    content = shard(tensors)
    header_bytes = 8 + struct.unpack("<Q", content[:8])[0]
    assert header_bytes > 2 * FIRST_BYTES

    facts = facts_of({"model.safetensors": content})

    assert facts.dtypes[0].tensors == 3000
    assert hub.sent_bytes(".safetensors") == header_bytes
    assert len(hub.file_requests(".safetensors")) == 2


@pytest.mark.parametrize("name_bytes", [10, 500])
def test_a_server_that_ignores_range_is_left_as_soon_as_the_header_is_there(facts_of, hub, name_bytes):
    tensors = {f"{number}".ljust(name_bytes, "x"): ("BF16", (2,)) for number in range(1000)}
    content = shard({**tensors, "big": ("U8", (40_000_000,))})
    hub.fault(Fault(kind="ignore_range"))

    facts = facts_of({"model.safetensors": content})

    assert facts.dtypes[0].size_bytes == 40_000_000
    # What the sockets' buffers took was sent too; the rest of the 40 MB never was.
    assert all(entry["sent_bytes"] < 20_000_000 for entry in hub.file_requests(".safetensors"))


def test_with_an_index_the_same_weights_in_another_layout_do_not_count(facts_of, hub):
    files = {
        "model-1.safetensors": BIG,
        "consolidated.safetensors": BIG,
        "other.safetensors": BIG,
        INDEX: as_json({"weight_map": {"a": "model-1.safetensors"}}),
    }

    assert facts_of(files).size_bytes == DATA_BYTES
    assert {entry["path"].rpartition("/")[2] for entry in hub.file_requests(".safetensors")} == {"model-1.safetensors"}


def test_without_an_index_consolidated_counts_only_alone_and_folders_do_not(facts_of):
    both = {"model.safetensors": BIG, "consolidated.safetensors": BIG, "original/model.safetensors": BIG}

    assert facts_of(both).size_bytes == DATA_BYTES
    assert facts_of({"consolidated.safetensors": BIG}).size_bytes == DATA_BYTES


def test_packed_formats_are_sized_by_bytes(facts_of):
    tensors = {"a": ("U8", (100, 50)), "b": ("F4", (100, 50)), "c": ("F8_E4M3", (100,))}

    facts = facts_of({"model.safetensors": shard(tensors)})

    assert [(share.dtype, share.parameters, share.size_bytes) for share in facts.dtypes] == [
        ("U8", 5000, 5000),
        ("F4", 5000, 2500),
        ("F8_E4M3", 100, 100),
    ]
    assert facts.size_bytes == 7600


def test_deepseeks_extra_layer_is_the_one_behind_the_models_own(facts_of):
    tensors = {f"model.layers.{layer}.weight": ("BF16", (100,)) for layer in range(3)}

    facts = facts_of(
        {
            "config.json": as_json({**CONFIG, "num_nextn_predict_layers": 1}),
            "model.safetensors": shard(tensors),
        }
    )

    assert (facts.extra_head_layers, facts.extra_head_bytes, facts.size_bytes) == (1, 200, 600)


def test_declared_extra_layers_whose_tensors_are_not_there_do_not_count(facts_of):
    facts = facts_of({"config.json": as_json({**CONFIG, "mtp_num_hidden_layers": 1}), "model.safetensors": BIG})

    assert (facts.extra_head_layers, facts.extra_head_bytes) == (0, 0)


@pytest.mark.parametrize(("name", "other"), [("pytorch_model.bin", "also.gguf"), ("q4/model.gguf", "README.md")])
def test_weights_that_are_not_safetensors_are_sized_by_their_files(facts_of, hub, name, other):
    facts = facts_of({name: b"w" * 1000, other: b"o" * 50, "training_args.bin": b"t" * 10})

    assert (facts.size_evidence, facts.size_bytes, facts.dtypes) == ("file sizes", 1000, ())
    assert [entry["path"].rpartition("/")[2] for entry in hub.file_requests()] == ["config.json"]


@pytest.mark.parametrize("files", [tiny_files, tiny_qwen35_files])
def test_the_labs_models(facts_of, hub, files):
    published = files(1)

    facts = facts_of(published)

    index = json.loads(published[INDEX])
    assert facts.size_bytes == index["metadata"]["total_size"]
    assert [share.dtype for share in facts.dtypes] == ["BF16"]
    assert facts.dtypes[0].tensors == len(index["weight_map"])
    assert (facts.layers, facts.kv_heads, facts.head_dim, facts.context_tokens) == (2, 2, 32, 2048)
    assert (facts.quantization, facts.extra_head_layers, facts.has_remote_code) == ("", 0, False)
    shards = {path: len(content) for path, content in published.items() if path.endswith(".safetensors")}
    assert hub.sent_bytes(".safetensors") == sum(min(FIRST_BYTES, size_bytes) for size_bytes in shards.values())


def test_nvidias_quantization_file_is_read_where_config_json_says_nothing(facts_of):
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}

    facts = facts_of({"model.safetensors": BIG, "hf_quant_config.json": as_json(own)})

    assert facts.quantization == "modelopt nvfp4"


@pytest.mark.parametrize(
    ("config", "what", "remedy"),
    [
        (b"<html>", "config.json of lab/weights cannot be used", "another model.revision"),
        (b"[]", "config.json of lab/weights cannot be used", "another model.revision"),
        (b"\xff\xfe", "config.json of lab/weights cannot be used", "another model.revision"),
        (b'{"model_type": "qwen3"}', "names no architectures", "embedding model"),
        (b'{"architectures": []}', "names no architectures", "embedding model"),
        (b'{"architectures": null}', "names no architectures", "embedding model"),
        (b'{"architectures": "Qwen3"}', "names no architectures", "embedding model"),
    ],
)
def test_a_config_that_says_too_little(hub, manifest_of, project, config, what, remedy):
    # The lab's hub reads config.json itself and would fail on these, so the manifest is made by hand.
    manifest = served(hub, manifest_of, {"config.json": config, "model.bin": b"w"})

    with pytest.raises(WeightsError, match=what) as caught:
        model_facts(Hub(hub.url), manifest, project, lambda _: None)

    assert remedy in caught.value.remedy
    assert not facts_path(project, manifest.repo, manifest.commit).exists()


def served(hub, manifest_of, files: Mapping[str, bytes]) -> Manifest:
    return manifest_of(files, commit=publish(hub.server.root, hub.repo, files))


def test_a_repository_without_a_config(hub, manifest_of, project):
    manifest = served(hub, manifest_of, {"model.gguf": b"w"})

    with pytest.raises(WeightsError, match=r"has no config\.json") as caught:
        model_facts(Hub(hub.url), manifest, project, lambda _: None)

    assert "the repository that these weights were made from" in caught.value.remedy


def test_weights_in_folders_only(facts_of):
    with pytest.raises(WeightsError, match="no weights where a server looks"):
        facts_of({"unet/model.safetensors": BIG})


def test_an_index_that_names_a_file_that_is_not_there(facts_of):
    index = as_json({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})

    with pytest.raises(WeightsError, match="names files that the repository does not have") as caught:
        facts_of({INDEX: index, "model-1.safetensors": BIG})

    assert "1 of 2, such as model-2.safetensors" in caught.value.observed


@pytest.mark.parametrize("index", [b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b"not JSON"])
def test_an_index_that_cannot_be_used(facts_of, index):
    with pytest.raises(WeightsError, match=f"{INDEX} of lab/weights cannot be used"):
        facts_of({INDEX: index, "model-1.safetensors": BIG})


HEADER = as_json({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}})


@pytest.mark.parametrize(
    ("content", "observed"),
    [
        (b"", "the file has 0 bytes"),
        (b"short", "the file has 5 bytes"),
        (struct.pack("<Q", 2**63) + b"x" * 100, "it says that it has 9223372036854775808 bytes"),
        (struct.pack("<Q", 5) + b"{oops" + bytes(4), "Expecting property name"),
        (struct.pack("<Q", 2) + b"[]", "it: Input should be a valid dictionary"),
        (struct.pack("<Q", 10) + b'{"a": 123}', "a: "),
        (struct.pack("<Q", len(HEADER)) + HEADER + bytes(3), "end after 4 bytes of data, the file has 3"),
        (struct.pack("<Q", len(HEADER)) + HEADER + bytes(5), "end after 4 bytes of data, the file has 5"),
        (struct.pack("<Q", 60) + b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[4,0]}}'.ljust(60), "ends before"),
        (struct.pack("<Q", 60) + b'{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}'.ljust(60), "a: shape"),
    ],
)
def test_a_header_that_does_not_parse(hub, manifest_of, project, content, observed):
    manifest = served(hub, manifest_of, {"config.json": as_json(CONFIG), "model.safetensors": content})

    with pytest.raises(WeightsError, match=r"the header of model\.safetensors in lab/weights does not parse") as caught:
        model_facts(Hub(hub.url), manifest, project, lambda _: None)

    assert observed in caught.value.observed
    assert "no server can load this file" in caught.value.remedy


def test_a_gated_repository_says_what_to_do_and_a_token_that_may_read_it_helps(facts_of, hub):
    hub.fault(Fault(kind="gated", token="hf_right"))

    for token in ("", "hf_wrong"):
        with pytest.raises(HubError, match="is gated") as caught:
            facts_of({"model.safetensors": BIG}, token=token)
        assert "accept the licence" in caught.value.remedy
        assert "HF_TOKEN" in caught.value.remedy
        assert "hf_wrong" not in str(caught.value)
    assert facts_of({"model.safetensors": BIG}, token="hf_right").size_bytes == DATA_BYTES


def test_weights_that_are_gated_although_the_config_is_not(facts_of, hub):
    hub.fault(Fault(kind="gated", path="*.safetensors"))

    with pytest.raises(HubError, match="is gated"):
        facts_of({"model.safetensors": BIG})


def test_one_503_is_waited_for_and_a_hub_that_keeps_saying_so_is_an_error(facts_of, hub):
    hub.fault(Fault(kind="unavailable", path="*.safetensors", times=1, retry_after_s=0))
    assert facts_of({"model.safetensors": BIG}).size_bytes == DATA_BYTES

    hub.fault(Fault(kind="unavailable", path="config.json", retry_after_s=0))
    with pytest.raises(HubError, match=r"does not give config\.json of lab/weights") as caught:
        facts_of({"model.safetensors": BIG, "README.md": b"another commit"})
    assert "HTTP 503" in caught.value.observed
    assert "later" in caught.value.remedy


def test_a_hub_that_cannot_be_reached(hub, project):
    manifest = hub.publish({"config.json": as_json(CONFIG), "model.safetensors": BIG})

    with pytest.raises(HubError, match="cannot be reached") as caught:
        model_facts(Hub("http://127.0.0.1:9", "hf_secret"), manifest, project, lambda _: None)

    assert "network" in caught.value.remedy
    assert "hf_secret" not in str(caught.value)


def test_a_connection_that_is_cut_in_a_header_is_not_taken_for_a_bad_file(facts_of, hub):
    hub.fault(Fault(kind="cut", path="*.safetensors", after_bytes=50))

    with pytest.raises(HubError, match="cannot be reached"):
        facts_of({"model.safetensors": BIG})


def test_a_config_that_changes_on_the_way_is_not_believed(facts_of, hub):
    hub.fault(Fault(kind="flip", path="config.json"))

    with pytest.raises(WeightsError, match=r"config\.json of lab/weights did not come as the hub lists it") as caught:
        facts_of({"model.safetensors": BIG})

    assert "proxies" in caught.value.remedy


def test_the_token_does_not_follow_a_redirect_to_another_host(hub, manifest_of, project):
    """As the public hub does it: the file itself comes from a content network."""
    files = {"config.json": as_json(CONFIG), "model.safetensors": BIG}
    shown: list[tuple[str, str | None]] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append((self.path, self.headers.get("Authorization")))
            content = files[self.path.rpartition("/")[2]]
            if asked := self.headers.get("Range"):
                first, _, last = asked.removeprefix("bytes=").partition("-")
                content = content[int(first) : int(last) + 1]
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Front(Elsewhere):
        def do_GET(self) -> None:
            shown.append((self.path, self.headers.get("Authorization")))
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{behind.server_address[1]}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    behind, front = (ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (Elsewhere, Front))
    for server in (behind, front):
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    url = f"http://127.0.0.1:{front.server_address[1]}"
    facts = model_facts(Hub(url, "hf_secret"), manifest_of(files), project, lambda _: None)
    for server in (behind, front):
        server.shutdown()
        server.server_close()

    assert facts.size_bytes == DATA_BYTES
    assert [token for _, token in shown] == ["Bearer hf_secret", None] * 2


def test_the_token_stays_out_of_what_is_said_and_written(facts_of, hub, project):
    hub.fault(Fault(kind="gated", token="hf_very_secret"))

    facts = facts_of({"model.safetensors": BIG}, token="hf_very_secret")

    assert "hf_very_secret" not in facts_path(project, facts.repo, facts.commit).read_text()
