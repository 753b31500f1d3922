"""What a node lacks, and whether there is room for it."""

from __future__ import annotations

import pytest

from spark_pipeline.errors import ImageError
from spark_pipeline.image.transfer import (
    Room,
    Transfer,
    groups,
    layers_on,
    refuse_without_room,
    refuse_without_room_to_read,
    room_on,
    transfer,
)
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.unit.image.samples import LAYERS, image


def classic() -> ScriptedHost:
    return ScriptedHost("peer").on("docker", "info", ..., stdout='[["Backing Filesystem","extfs"]]\n')


def test_a_node_without_images_needs_all_of_it_and_twice_the_room() -> None:
    wanted = transfer("peer", image(size_bytes=1000), [400, 600], present=[])
    assert wanted == Transfer("peer", (), 2000)


def test_a_node_that_has_the_lower_layers_needs_room_for_the_rest_only() -> None:
    wanted = transfer("peer", image(size_bytes=1000), [0, 100, 0, 300, 600], present=[LAYERS[:2]])
    assert [layer.diff_id for layer in wanted.leave_out] == list(LAYERS[:2])
    assert wanted.needed_bytes == 200


def test_no_room_is_said_with_both_amounts_before_anything_is_sent() -> None:
    with pytest.raises(ImageError) as caught:
        refuse_without_room(
            image(), [Transfer("peer", (), 7_400_000_000)], {"peer": Room("/var/lib/docker", 1_500_000_000)}
        )
    assert caught.value.node == "peer"
    assert caught.value.observed.startswith("1.5 GB free in /var/lib/docker, 7.4 GB needed")


def test_reading_takes_the_images_size_once_more_on_the_head() -> None:
    held = image(size_bytes=3_700_000_000)
    refuse_without_room_to_read(held, "head", Room("/var/lib/docker", 3_700_000_000))
    with pytest.raises(ImageError) as caught:
        refuse_without_room_to_read(held, "head", Room("/var/lib/docker", 1_500_000_000))
    assert caught.value.node == "head"
    assert caught.value.observed.startswith("1.5 GB free in /var/lib/docker, 3.7 GB needed")


def test_enough_room_is_no_error() -> None:
    refuse_without_room(image(), [Transfer("peer", (), 10)], {"peer": Room("/var/lib/docker", 10)})


def test_nodes_that_lack_the_same_share_one_stream() -> None:
    fresh = [Transfer("one", (), 2), Transfer("two", (), 2)]
    half = transfer("three", image(), [8], present=[LAYERS[:1]])
    assert [[item.node for item in group] for group in groups([fresh[0], half, fresh[1]])] == [
        ["one", "two"],
        ["three"],
    ]


def test_layers_are_asked_of_every_image_named_or_not() -> None:
    peer = classic()
    peer.on("docker", "image", "ls", "--all", "--quiet", "--no-trunc", stdout="sha256:2\nsha256:1\nsha256:2\n")
    peer.on("docker", "image", "inspect", ..., "sha256:1", "sha256:2", stdout='["sha256:a","sha256:b"]\nnull\n')
    assert layers_on(peer) == (("sha256:a", "sha256:b"), ())


def test_a_node_without_images_is_not_asked_for_layers() -> None:
    assert layers_on(classic().on("docker", "image", "ls", ...)) == ()


def test_an_engine_with_the_containerd_store_is_sent_everything_at_once() -> None:
    peer = ScriptedHost("peer")
    peer.on("docker", "info", ..., stdout='[["driver-type","io.containerd.snapshotter.v1"]]\n')
    assert layers_on(peer) == ()


def test_room_is_that_of_the_engines_own_directory() -> None:
    peer = ScriptedHost("peer").on("docker", "info", ..., stdout="/data/docker\n")
    peer.on("df", "--block-size=1", "--output=avail", "/data/docker", stdout="     Avail\n123456789\n")
    assert room_on(peer) == Room("/data/docker", 123_456_789)
