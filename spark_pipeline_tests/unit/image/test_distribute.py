"""Sending the image: what is left out, what happens when a node refuses, and the proof at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from spark_pipeline.errors import ImageDiffersError, ImageError
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.image.distribute import Parcel, distribute, shown
from spark_pipeline.image.transfer import Transfer, transfer
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.unit.image.samples import LAYERS, image

IMAGE = image()
OTHER = replace(IMAGE, layers=LAYERS[:1])
PARTLY = transfer("peer", IMAGE, [8], present=[LAYERS[:2]])


def ended(*, sent: int = 10, read: int = 100, **ends: tuple[int, str]) -> str:
    done = {node: {"status": status, "said": said} for node, (status, said) in ends.items()}
    return f'{{"read": 0, "sent": 0}}\n{json.dumps({"done": done, "read": read, "sent": sent, "left_out": 0})}\n'


def parcel(head: ScriptedHost, arrived: Sequence[ImageFacts | None]) -> Parcel:
    """`arrived`: what the node holds each time it is asked."""
    answers = iter(arrived)
    ways = {"peer": ("ssh", "peer"), "third": ("ssh", "third")}
    return Parcel(head, IMAGE, ("own:1", "engine:1"), ways, lambda node: next(answers))


def orders(head: ScriptedHost) -> list[dict]:
    return [json.loads(argv[-1]) for argv in head.commands]


def test_layers_that_are_there_are_left_out_and_the_bytes_are_told() -> None:
    head = ScriptedHost().on("python3", "-", ..., stdout=ended(peer=(0, "Loaded image: own:1")))
    (sent,) = distribute(parcel(head, [IMAGE]), [PARTLY], print)
    assert (sent.node, sent.sent_bytes, sent.full_bytes) == ("peer", 10, 100)
    (order,) = orders(head)
    assert order["references"] == ["own:1", "engine:1"]
    assert list(order["leave_out"].values()) == list(LAYERS[:2])
    assert order["targets"] == {"peer": ["ssh", "peer", "docker", "load", "--quiet"]}


def test_while_nothing_travels_it_says_what_is_done_instead() -> None:
    gathering, unpacking = '{"read": 0, "sent": 0}\n' * 12, '{"read": 100, "sent": 10}\n' * 12
    silent = gathering + unpacking
    head = ScriptedHost().on("python3", "-", ..., stdout=silent + ended(peer=(0, "")))
    said: list[str] = []
    distribute(parcel(head, [IMAGE]), [PARTLY], said.append)
    assert said[1:] == [
        "engine:1 to peer: head: gathering the layers (10 s)",
        "engine:1 to peer: peer: unpacking (10 s)",
    ]


def test_two_nodes_that_lack_the_same_are_served_by_one_stream() -> None:
    head = ScriptedHost().on("python3", "-", ..., stdout=ended(peer=(0, ""), third=(0, "")))
    sent = distribute(parcel(head, [IMAGE, IMAGE]), [Transfer("peer", (), 1), Transfer("third", (), 1)], print)
    assert [item.node for item in sent] == ["peer", "third"]
    assert list(orders(head)[0]["targets"]) == ["peer", "third"]


@pytest.mark.parametrize(
    ("end", "arrived"),
    [((1, "open /var/lib/docker/tmp/layer.tar: no such file"), [IMAGE]), ((0, "Loaded"), [OTHER, IMAGE])],
)
def test_a_node_that_does_not_take_it_without_its_layers_is_sent_everything(
    end: tuple[int, str], arrived: list[ImageFacts]
) -> None:
    head = ScriptedHost().on("python3", "-", ..., stdout=ended(peer=end))
    head.on("python3", "-", ..., stdout=ended(sent=100, peer=(0, "")))
    said: list[str] = []
    (sent,) = distribute(parcel(head, arrived), [PARTLY], said.append)
    assert sent.sent_bytes == 100
    assert [order["leave_out"] for order in orders(head)][1] == {}
    assert any("sending everything to peer" in line for line in said)


def test_a_full_disk_is_not_tried_again() -> None:
    head = ScriptedHost().on("python3", "-", ..., stdout=ended(peer=(1, "write: no space left on device")))
    with pytest.raises(ImageError) as caught:
        distribute(parcel(head, []), [PARTLY], print)
    assert caught.value.node == "peer"
    assert caught.value.observed == "status 1: write: no space left on device"
    assert "docker image prune" in caught.value.remedy
    assert len(head.commands) == 1


@pytest.mark.parametrize("arrived", [OTHER, None])
def test_what_arrived_must_be_the_same_image(arrived: ImageFacts | None) -> None:
    head = ScriptedHost().on("python3", "-", ..., stdout=ended(peer=(0, "")))
    with pytest.raises(ImageDiffersError) as caught:
        distribute(parcel(head, [arrived]), [Transfer("peer", (), 1)], print)
    assert caught.value.node == "peer"
    assert IMAGE.fingerprint in caught.value.observed


def test_an_image_that_the_head_cannot_read_is_the_heads_error() -> None:
    head = ScriptedHost().on("python3", "-", ..., status=1, stdout='{"error": "no space left on device"}\n')
    with pytest.raises(ImageError) as caught:
        distribute(parcel(head, []), [PARTLY], print)
    assert (caught.value.node, caught.value.observed) == ("head", "no space left on device")


def test_a_head_without_python_is_named_with_its_own_words() -> None:
    head = ScriptedHost().on("python3", "-", ..., status=127, stderr="python3: not found")
    with pytest.raises(ImageError) as caught:
        distribute(parcel(head, []), [PARTLY], print)
    assert caught.value.observed == "python3: not found"


def test_the_command_is_shown_as_a_person_would_type_it() -> None:
    loads = {"peer": ("ssh", "peer", "docker", "load", "--quiet")}
    assert shown(("own:1",), (), loads) == "docker save own:1 | ssh peer docker load --quiet"
    assert shown(("own:1",), PARTLY.leave_out, loads) == (
        "docker save own:1 | [without 2 layers that are there] | ssh peer docker load --quiet"
    )
