"""The words of a copy, and how files are shared among streams."""

from __future__ import annotations

from spark_pipeline.spec.fleet import Fleet
from spark_pipeline.weights.node.messages import WantedFile
from spark_pipeline.weights.rsync import SMALL_BYTES, STREAMS, names_on_input, rsync_command, streams

FLEET = Fleet.model_validate(
    {
        "name": "sparks",
        "accelerator": "nvidia",
        "weights_dir": "/home/aurora/my models",
        "nodes": [
            {"name": "head", "ssh": {"host": "10.1.230.180", "user": "aurora"}, "fabric": "192.168.200.12"},
            {"name": "peer", "ssh": {"host": "192.168.200.13", "user": "aurora"}, "fabric": "192.168.200.13"},
        ],
    }
)


def test_the_command_as_a_person_would_read_it():
    words = rsync_command(FLEET, FLEET.nodes[1], "/home/aurora/my models/a/b/c0")

    ssh = words[words.index("-e") + 1]
    assert ssh.startswith("ssh -o BatchMode=yes ")
    assert "StrictHostKeyChecking=yes" in ssh
    assert "aurora@" not in ssh
    assert words[: words.index("-e")] == (
        "rsync",
        "--files-from=-",
        "--from0",
        "--protect-args",
        "--times",
        "--ignore-times",
        "--partial-dir=.spark_pipeline-partial",
        "--timeout=60",
        "--no-human-readable",
        "--info=progress2",
        "--stats",
    )
    assert words[words.index("-e") + 2 :] == (
        "--",
        "/home/aurora/my models/a/b/c0/",
        "aurora@192.168.200.13:/home/aurora/my models/a/b/c0/",
    )


def test_no_name_is_taken_for_a_comment_or_an_option():
    assert names_on_input([_file("#a", 1), _file("-rf", 1), _file("a\nb", 1)]) == b"./#a\0./-rf\0./a\nb\0"


def test_little_travels_in_one_stream():
    assert len(streams([_file("a", 1), _file("b", SMALL_BYTES - 2)])) == 1


def test_much_travels_in_streams_of_about_the_same_size():
    files = [_file(str(index), SMALL_BYTES + index) for index in range(9)]

    shares = streams(files)

    sizes = [sum(file.size_bytes for file in share) for share in shares]
    assert len(shares) == STREAMS
    assert sorted(file.path for share in shares for file in share) == sorted(file.path for file in files)
    assert max(sizes) - min(sizes) <= SMALL_BYTES + 9


def test_each_file_is_looked_at_a_few_times_however_many_there_are():
    looks: list[int] = []

    class CountedFile(WantedFile):
        def __getattribute__(self, name: str) -> object:
            looks.append(1)
            return super().__getattribute__(name)

    files = [CountedFile(str(number), SMALL_BYTES, "sha256", "0" * 64) for number in range(300)]
    looks.clear()

    assert [len(share) for share in streams(files)] == [75, 75, 75, 75]
    assert len(looks) < 10 * 300


def test_one_large_file_is_one_stream():
    assert streams([_file("a", 10 * SMALL_BYTES)]) == ((_file("a", 10 * SMALL_BYTES),),)


def _file(path: str, size_bytes: int) -> WantedFile:
    return WantedFile(path, size_bytes, "sha256", "0" * 64)
