"""Which layers a target has, and how much room the others take."""

from __future__ import annotations

from spark_pipeline.image.layers import LayerId, at_most_bytes, chain_ids, left_out

A, B, C = ("sha256:" + letter * 64 for letter in "abc")


def test_a_chain_id_is_the_hash_of_what_is_below_and_of_the_layer() -> None:
    # sha256("sha256:aa.. sha256:bb.."), worked out with sha256sum
    below, above = chain_ids([A, B])
    assert below == A
    assert above == "sha256:ccd722928bd92476ba1745586fed6e45a102504185ad88cd89e01ff116fd146c"


def test_layers_are_left_out_up_to_the_first_that_the_target_lacks() -> None:
    kept = left_out([A, B, C], present=[[A], [A, B]])
    assert [layer.diff_id for layer in kept] == [A, B]
    assert kept[1] == LayerId(chain_ids([A, B])[1], B)


def test_the_same_bytes_on_other_layers_are_another_layer() -> None:
    assert left_out([A, C, B], present=[[A, B]]) == (LayerId(A, A),)


def test_a_layer_that_stands_in_the_image_twice_goes_along_unless_both_places_are_there() -> None:
    twice = [A, B, A]
    assert [layer.diff_id for layer in left_out(twice, present=[[A, B]])] == [B]
    assert [layer.diff_id for layer in left_out(twice, present=[twice])] == [A, B, A]


def test_nothing_is_left_out_for_a_target_without_images() -> None:
    assert left_out([A, B], present=[]) == ()


def test_missing_layers_weigh_at_most_as_much_as_the_topmost_steps() -> None:
    # newest first; steps without a layer weigh nothing: recorded from an image of three layers
    history = [0, 100_000, 0, 11, 23_283_082]
    assert at_most_bytes(1, history, 23_383_093) == 100_000
    assert at_most_bytes(2, history, 23_383_093) == 100_011
    assert at_most_bytes(0, history, 23_383_093) == 0


def test_a_history_that_does_not_account_for_the_image_bounds_nothing() -> None:
    assert at_most_bytes(1, [0, 11], 23_383_093) == 23_383_093
