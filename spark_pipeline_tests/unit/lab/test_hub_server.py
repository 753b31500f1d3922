"""The hub double against the real huggingface_hub, over loopback."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from spark_pipeline.errors import LabError
from spark_pipeline.lab.hub_faults import Fault, write_faults
from spark_pipeline.lab.hub_server import ACCESS_LOG, HubServer
from spark_pipeline.lab.hub_store import Holed, commit_of, move_branch, publish, revisions

REPO = "lab/demo"
WEIGHTS = bytes(range(256)) * 8
FIRST = {
    "config.json": b'{"architectures": ["X"], "model_type": "x"}',
    "weights.bin": WEIGHTS,
    "sub/readme.txt": b"one",
}
SECOND = {**FIRST, "sub/readme.txt": b"two"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer("127.0.0.1", 0, tmp_path / "hub")
    publish(server.root, REPO, FIRST)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def api(hub: HubServer) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=False)


def access(hub: HubServer) -> list[dict[str, object]]:
    return [json.loads(line) for line in (hub.root / ACCESS_LOG).read_text().splitlines()]


def fetch(hub: HubServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(f"{hub.endpoint}/{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def test_model_info_tells_commit_sizes_and_sha256(api: HfApi) -> None:
    info = api.model_info(REPO, files_metadata=True)

    assert info.sha == commit_of(FIRST)
    assert info.siblings is not None
    files = {sibling.rfilename: sibling for sibling in info.siblings}
    assert sorted(files) == ["config.json", "sub/readme.txt", "weights.bin"]
    weights = files["weights.bin"]
    assert weights.size == len(WEIGHTS)
    assert weights.lfs is not None
    assert weights.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert files["config.json"].lfs is None


def test_tree_tells_git_id_of_small_files_and_sha256_of_weights(api: HfApi) -> None:
    entries = {entry.path: entry for entry in api.list_repo_tree(REPO, recursive=True) if isinstance(entry, RepoFile)}

    blob = hashlib.sha1(b"blob 3\0one").hexdigest()
    assert entries["sub/readme.txt"].blob_id == blob
    assert entries["weights.bin"].lfs is not None
    assert [entry.path for entry in api.list_repo_tree(REPO)] == ["config.json", "sub", "weights.bin"]
    assert [info.path for info in api.get_paths_info(REPO, ["config.json"])] == ["config.json"]


def test_snapshot_gives_the_published_bytes_and_leaves_a_trace(api: HfApi, hub: HubServer, tmp_path: Path) -> None:
    target = tmp_path / "model"

    api.snapshot_download(REPO, revision=commit_of(FIRST), local_dir=target)

    assert {name: (target / name).read_bytes() for name in FIRST} == FIRST
    gets = [line for line in access(hub) if line["method"] == "GET" and "/resolve/" in str(line["path"])]
    assert sorted(int(str(line["sent_bytes"])) for line in gets) == sorted(len(content) for content in FIRST.values())


def test_moving_the_branch_is_seen_at_once(api: HfApi, hub: HubServer) -> None:
    second = publish(hub.root, REPO, SECOND)
    assert api.model_info(REPO).sha == second

    move_branch(hub.root, REPO, "main", commit_of(FIRST))

    assert api.model_info(REPO).sha == commit_of(FIRST)
    assert api.model_info(REPO, revision=second).sha == second
    assert [branch.target_commit for branch in api.list_repo_refs(REPO).branches] == [commit_of(FIRST)]


def test_publishing_the_same_contents_twice_gives_one_revision(hub: HubServer) -> None:
    assert publish(hub.root, REPO, dict(reversed(FIRST.items())), branch=None) == commit_of(FIRST)
    assert revisions(hub.root, REPO) == [commit_of(FIRST)]


def test_a_branch_cannot_move_to_a_commit_that_is_not_there(hub: HubServer) -> None:
    with pytest.raises(LabError, match="Cannot move branch main"):
        move_branch(hub.root, REPO, "main", "0" * 40)


@pytest.mark.parametrize("revision", ["no-such-branch", "0" * 40, "../x"])
def test_unknown_revision_is_named_as_such(api: HfApi, revision: str) -> None:
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision=revision)


def test_unknown_repository_is_named_as_such(api: HfApi) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("lab/none")


def test_gated_files_need_the_right_token(api: HfApi, hub: HubServer, tmp_path: Path) -> None:
    write_faults(hub.root, [Fault(kind="gated", token="right")])

    assert api.model_info(REPO).gated == "manual"
    for token in (False, "wrong"):
        with pytest.raises(GatedRepoError):
            api.hf_hub_download(REPO, "config.json", token=token, local_dir=tmp_path)
    assert Path(api.hf_hub_download(REPO, "config.json", token="right", local_dir=tmp_path)).is_file()
    assert {401, 403} < {line["status"] for line in access(hub)}


def test_a_file_comes_in_parts(hub: HubServer) -> None:
    path = f"{REPO}/resolve/main/weights.bin"

    assert fetch(hub, path, Range="bytes=1000-1009")[2] == WEIGHTS[1000:1010]
    status, headers, body = fetch(hub, path, Range="bytes=2000-")
    assert (status, headers["Content-Range"], body) == (206, "bytes 2000-2047/2048", WEIGHTS[2000:])
    assert fetch(hub, path, Range="bytes=-8")[2] == WEIGHTS[-8:]
    write_faults(hub.root, [Fault(kind="ignore_range")])
    assert fetch(hub, path, Range="bytes=2000-")[::2] == (200, WEIGHTS)


def test_a_file_that_is_mostly_a_hole_is_told_and_read_in_parts_at_once(api: HfApi, hub: HubServer) -> None:
    huge_bytes = 3_000_000_000_000
    files = {"config.json": b"{}", "huge.bin": Holed(b"start", huge_bytes)}
    commit = publish(hub.root, "lab/huge", files)
    assert commit == commit_of(files) != commit_of({**files, "huge.bin": Holed(b"other", huge_bytes)})

    siblings = api.model_info("lab/huge", files_metadata=True).siblings
    assert siblings is not None
    assert [(file.rfilename, file.size) for file in siblings] == [("config.json", 2), ("huge.bin", huge_bytes)]
    path = "lab/huge/resolve/main/huge.bin"
    assert fetch(hub, path, Range="bytes=0-6")[2] == b"start\0\0"
    assert fetch(hub, path, Range="bytes=-3")[2] == bytes(3)
    write_faults(hub.root, [Fault(kind="flip", offset=huge_bytes - 1)])
    assert fetch(hub, path, Range="bytes=-2")[2] == b"\0\xff"


def test_a_download_cut_in_the_middle_is_tried_again(api: HfApi, hub: HubServer, tmp_path: Path) -> None:
    write_faults(hub.root, [Fault(kind="cut", path="*.bin", after_bytes=1500, times=1)])

    path = api.hf_hub_download(REPO, "weights.bin", local_dir=tmp_path)

    assert Path(path).read_bytes() == WEIGHTS
    # Below 10 MB the client starts again from the first byte.
    assert [line["sent_bytes"] for line in access(hub) if line["method"] == "GET"][-2:] == [1500, len(WEIGHTS)]


def test_a_flipped_byte_passes_the_client_and_only_a_digest_shows_it(
    api: HfApi, hub: HubServer, tmp_path: Path
) -> None:
    write_faults(hub.root, [Fault(kind="flip", path="weights.bin", offset=7)])

    content = Path(api.hf_hub_download(REPO, "weights.bin", local_dir=tmp_path)).read_bytes()

    assert [index for index in range(len(WEIGHTS)) if content[index] != WEIGHTS[index]] == [7]


def test_a_wrong_size_is_refused_by_the_client(api: HfApi, hub: HubServer, tmp_path: Path) -> None:
    write_faults(hub.root, [Fault(kind="wrong_size", path="weights.bin", size_delta=-100)])

    with pytest.raises(OSError, match="Consistency check failed"):
        api.hf_hub_download(REPO, "weights.bin", local_dir=tmp_path)


def test_a_slow_hub_keeps_to_its_rate(hub: HubServer) -> None:
    write_faults(hub.root, [Fault(kind="slow", bytes_per_s=len(WEIGHTS) * 5)])
    begin = time.monotonic()

    _, _, body = fetch(hub, f"{REPO}/resolve/main/weights.bin")

    assert body == WEIGHTS
    assert time.monotonic() - begin >= 0.2


def test_a_stalled_connection_stays_open_and_gives_nothing_more(hub: HubServer) -> None:
    write_faults(hub.root, [Fault(kind="stall", path="weights.bin", after_bytes=1000, times=1)])
    path = f"{REPO}/resolve/main/weights.bin"
    with urllib.request.urlopen(f"{hub.endpoint}/{path}", timeout=0.3) as answer:
        first = answer.read(1000)
        with pytest.raises(TimeoutError):
            answer.read(1)

    assert first == WEIGHTS[:1000]
    assert fetch(hub, path)[2] == WEIGHTS
    assert sorted(int(str(entry["sent_bytes"])) for entry in access(hub)) == [1000, len(WEIGHTS)]


@pytest.mark.parametrize("refusal", [503, 429])
def test_unavailable_says_when_to_come_again_and_ends(hub: HubServer, refusal: Literal[503, 429]) -> None:
    write_faults(hub.root, [Fault(kind="unavailable", status=refusal, retry_after_s=3, times=1)])
    path = f"{REPO}/resolve/main/config.json"

    status, headers, _ = fetch(hub, path)

    assert (status, headers["Retry-After"]) == (refusal, "3")
    assert fetch(hub, path)[0] == 200


def test_a_broken_control_file_is_said_and_not_ignored(api: HfApi, hub: HubServer) -> None:
    (hub.root / "faults.json").write_text('{"faults": [{"kind": "explode"}]}')

    with pytest.raises(HfHubHTTPError, match=r"faults\.json"):
        api.model_info(REPO)
