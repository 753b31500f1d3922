"""Which layers a target has already, and how much room the others take: pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def chain_ids(layers: Sequence[str]) -> tuple[str, ...]:
    """Docker's chain id of each layer: what it is, on top of what (OCI image specification, "Layer ChainID").

    An engine finds a layer again by its chain id only: the same bytes on other layers are another layer to it.

    Args:
        layers: diff ids, `sha256:...`, lowest first (RootFS.Layers of `docker image inspect`).
    """
    chains: list[str] = []
    for layer in layers:
        above = hashlib.sha256(f"{chains[-1]} {layer}".encode()).hexdigest() if chains else layer.partition(":")[2]
        chains.append(f"sha256:{above}")
    return tuple(chains)


@dataclass(frozen=True)
class LayerId:
    """One layer, by the two names that `docker save` uses, depending on the engine's version."""

    chain_id: str
    diff_id: str


def left_out(layers: Sequence[str], present: Iterable[Sequence[str]]) -> tuple[LayerId, ...]:
    """The layers that need not be sent to a target.

    The same diff id may stand in an image twice, and is then saved once: it is left out only if the target has every
    layer that is made of it.

    Args:
        layers: diff ids of the image, lowest first.
        present: the same for every image that the target has.
    """
    has = {chain for image in present for chain in chain_ids(image)}
    pairs = [LayerId(chain, layer) for chain, layer in zip(chain_ids(layers), layers, strict=True)]
    needed = {pair.diff_id for pair in pairs if pair.chain_id not in has}
    return tuple(pair for pair in pairs if pair.diff_id not in needed)


def at_most_bytes(missing: int, history_sizes: Sequence[int], image_bytes: int) -> int:
    """An upper bound for the size of the top `missing` layers.

    The history has an entry of size 0 for every step that made no layer, and a real layer may be of size 0 too, so
    entries cannot be matched to layers; but the missing ones that weigh anything are among the topmost entries that do.

    Args:
        history_sizes: bytes, newest first (`docker history`).
        image_bytes: of the whole image; returned where the history does not account for it.
    """
    if sum(history_sizes) < 0.98 * image_bytes:
        return image_bytes
    return min(image_bytes, sum([size for size in history_sizes if size > 0][:missing]))
