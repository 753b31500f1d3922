"""What a hub says, taken in once, and refused where it cannot be trusted."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError

from spark_pipeline.errors import HubError, RevisionNotFoundError, WeightsError
from spark_pipeline.lab.hub_store import publish
from spark_pipeline.spec.deployment import Model
from spark_pipeline.weights.hub import Hub
from spark_pipeline.weights.manifest import ManifestFile, keep_manifest, manifest_path, read_manifest
from spark_pipeline.weights.revision import ask, resolve

FILES = {"config.json": b"{}", "model.bin": b"weights"}


def test_a_branch_becomes_forty_hex_digits_and_every_file_has_size_and_digest(hub):
    manifest = hub.publish(FILES)

    assert len(manifest.commit) == 40
    config, weights = manifest.files
    assert (config.path, config.size_bytes, config.sha256) == ("config.json", 2, None)
    assert config.git_sha1 == "9e26dfeeb6e641a33dae4961196235bdb965b21b"  # `printf '{}' | git hash-object --stdin`
    assert (weights.sha256, weights.git_sha1) == (hashlib.sha256(b"weights").hexdigest(), None)
    assert manifest.size_bytes == 9


def test_one_call_for_a_branch_and_none_for_a_commit_whose_manifest_is_stored(hub, tmp_path):
    hub.publish(FILES)
    hub.forget()
    model = Model(repo=hub.repo, hub_url=hub.url)

    first = resolve(model, "main", tmp_path)
    keep_manifest(tmp_path, first)
    assert len(hub.log()) == 1

    assert resolve(model, first.commit, tmp_path) == first
    assert len(hub.log()) == 1


def test_the_stored_manifest_is_read_without_any_hub(hub, tmp_path):
    manifest = hub.publish(FILES)
    keep_manifest(tmp_path, manifest)

    stored = read_manifest(tmp_path)

    assert stored == manifest
    assert stored is not None
    assert stored.sha256 == manifest.sha256


def test_a_manifest_that_is_stored_already_is_not_written_again(hub, tmp_path):
    manifest = hub.publish(FILES)
    keep_manifest(tmp_path, manifest)
    before = manifest_path(tmp_path).stat().st_ino

    keep_manifest(tmp_path, manifest)

    assert manifest_path(tmp_path).stat().st_ino == before


def test_the_manifests_name_changes_with_any_file(manifest_of):
    assert manifest_of(FILES).sha256 == manifest_of(FILES).sha256
    assert manifest_of(FILES).sha256 != manifest_of({**FILES, "config.json": b"{ }"}).sha256
    assert manifest_of(FILES).sha256 != manifest_of(FILES, commit="d" * 40).sha256


def test_an_unknown_revision_and_an_unknown_repository_are_told_apart(hub):
    hub.publish(FILES)

    with pytest.raises(RevisionNotFoundError, match="has no revision 'nope'"):
        ask(Hub(hub.url), hub.repo, "nope")
    with pytest.raises(RevisionNotFoundError, match="no model 'lab/other'"):
        ask(Hub(hub.url), "lab/other", "main")


def test_a_hub_that_cannot_be_reached_is_said_so_with_a_way_on(hub, tmp_path):
    manifest = hub.publish(FILES)
    keep_manifest(tmp_path, manifest)
    gone = Model(repo=hub.repo, hub_url="http://127.0.0.1:9")

    with pytest.raises(HubError, match="cannot be reached") as caught:
        resolve(gone, "main", tmp_path)

    assert f"declare revision: {manifest.commit}" in caught.value.remedy


def test_the_token_comes_from_the_environment_and_shows_nowhere(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub = Hub.of(Model(repo="a/b", hub_url="http://127.0.0.1:9"))

    assert hub.token == "hf_secret"
    assert "hf_secret" not in repr(hub)
    with pytest.raises(HubError) as caught:
        ask(hub, "a/b", "main")
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize(
    "token", ["hf_secret\nhf_other", "hf_secret hf_other", "\u201chf_secret\u201d", "hf_secret\x7f"]
)
def test_what_cannot_be_a_token_is_refused_before_a_library_quotes_it(hub, monkeypatch, tmp_path, token):
    hub.publish(FILES)
    hub.forget()
    monkeypatch.setenv("HF_TOKEN", token)

    with pytest.raises(WeightsError, match="HF_TOKEN holds what cannot be a token") as caught:
        resolve(Model(repo=hub.repo, hub_url=hub.url), "main", tmp_path)

    assert "secret" not in str(caught.value)
    assert "the token alone" in caught.value.remedy
    assert hub.log() == []


def test_white_space_around_a_token_is_nobodys_fault(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    assert Hub.of(Model(repo="a/b", hub_url="http://127.0.0.1:9")).token == "hf_secret"


@pytest.mark.parametrize(
    ("url", "named", "shown"),
    [
        ("https://hub.example", "", True),
        ("http://localhost:8080", "", True),
        ("http://127.0.0.2:8080/", "", True),
        ("http://[::1]:8080", "", True),
        ("http://10.77.0.1:8080", "http://10.77.0.1:8080/", True),
        ("http://10.77.0.1:8080", "http://10.77.0.1:80", False),
        ("http://10.77.0.1:8080", "", False),
        ("http://hub.example", "https://hub.example", False),
        ("http://localhost.hub.example", "", False),
    ],
)
def test_a_token_crosses_a_network_in_the_clear_only_to_the_hub_that_the_environment_names(
    monkeypatch, url, named, shown
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", named)

    hub = Hub.of(Model(repo="a/b", hub_url=url))

    assert hub.token == ("hf_secret" if shown else "")
    assert hub.is_token_withheld is not shown


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("is_withheld", [True, False])
def test_a_refusal_says_whether_the_token_was_not_sent(status, is_withheld):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"

    with pytest.raises(HubError) as caught:
        ask(Hub(url, is_token_withheld=is_withheld), "a/b", "main")
    server.shutdown()
    server.server_close()

    assert ("HF_TOKEN is set, but was not sent" in caught.value.remedy) is is_withheld
    assert (f"export HF_ENDPOINT={url}" in caught.value.remedy) is is_withheld


def test_a_token_stored_on_this_machine_is_not_shown_to_a_hub_it_was_not_meant_for(monkeypatch, tmp_path):
    shown: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization"))
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "token").write_text("hf_stored")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"

    with pytest.raises(HubError):
        ask(Hub.of(Model(repo="a/b", hub_url=url)), "a/b", "main")
    server.shutdown()
    server.server_close()

    assert shown == [None]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "a//b", ".", "", "./a", ".spark_pipeline/x", "a/"])
def test_paths_that_leave_the_directory_or_enter_ours_are_refused(path):
    with pytest.raises(ValidationError, match="would leave"):
        ManifestFile(path=path, size_bytes=1, sha256="0" * 64)


@pytest.mark.parametrize("path", ["-rf", "a b/$(x)", "..x", "x..", "é", "#a", "q'\"", "a/.spark_pipeline"])
def test_odd_but_harmless_paths_are_taken(path):
    assert ManifestFile(path=path, size_bytes=1, sha256="0" * 64).path == path


COMMIT = "c" * 40
SMALL = {"rfilename": "config.json", "size": 2, "blobId": "9" * 40}
LARGE = {"rfilename": "model.bin", "size": 7, "blobId": "8" * 40, "lfs": {"sha256": "7" * 64, "size": 7}}


@pytest.fixture
def answering():
    """A hub that gives one answer to everything; it is read like any other hub's."""
    servers: list[ThreadingHTTPServer] = []

    def make(answer: object) -> Hub:
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return Hub(f"http://127.0.0.1:{servers[-1].server_address[1]}")

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def described(*siblings: object, sha: object = COMMIT) -> dict[str, object]:
    return {"id": "a/b", "sha": sha, "siblings": list(siblings)}


def test_an_answer_with_more_and_less_than_is_needed_is_enough(answering):
    manifest = ask(answering(described(SMALL, LARGE)), "a/b", COMMIT)

    assert [(file.path, file.size_bytes) for file in manifest.files] == [("config.json", 2), ("model.bin", 7)]


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (described(SMALL, {**LARGE, "lfs": {"size": 7}}), "model.bin: lfs: sha256"),
        (described(SMALL, {**LARGE, "lfs": "yes"}), "model.bin: lfs"),
        (described(SMALL, {**LARGE, "size": None}), "model.bin: size"),
        (described({"rfilename": "config.json"}, LARGE), "config.json: size"),
        (described(SMALL, LARGE, {"size": 1}), "a file without a name: rfilename"),
        (described(SMALL, LARGE, LARGE), "listed twice: model.bin"),
        (described(SMALL, LARGE, sha="main"), "commit 'main'"),
        (described(SMALL, LARGE, sha=None), "sha: "),
        ({"id": "a/b", "sha": COMMIT}, "siblings: "),
        ([], "it begins: '[]'"),
        (b"<html>Please log in to this network</html>", "Please log in"),
        (b"", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
    ],
)
def test_an_odd_answer_is_told_with_what_is_odd_in_it(answering, answer, named):
    with pytest.raises(HubError, match="answer about a/b is of no use") as caught:
        ask(answering(answer), "a/b", "main")

    assert named in caught.value.observed
    assert "model.hub_url" in caught.value.remedy


def test_a_file_without_any_digest_is_named(answering):
    with pytest.raises(WeightsError, match="is not taken as it is") as caught:
        ask(answering(described({**SMALL, "blobId": None}, LARGE)), "a/b", "main")

    assert "config.json has no digest" in caught.value.observed


def test_another_commit_than_the_one_that_was_asked_for_is_not_believed(answering):
    with pytest.raises(HubError, match="of no use") as caught:
        ask(answering(described(SMALL, LARGE)), "a/b", "d" * 40)

    assert "d" * 40 in caught.value.observed
    assert COMMIT in caught.value.observed


def test_a_repository_without_weights_is_no_model(hub):
    publish(hub.server.root, hub.repo, {"README.md": b"soon"})

    with pytest.raises(WeightsError, match="holds no weights"):
        ask(Hub(hub.url), hub.repo, "main")
