"""Small files and parts of large ones, straight from the hub to this machine's memory.

Why not huggingface_hub's parse_safetensors_file_metadata for the headers: from a server that ignores Range it reads
whole files of weights into memory. Its session, its token rules and its waiting after 429 and 5xx are used here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from spark_pipeline.errors import WeightsError
from spark_pipeline.weights.hub import TIMEOUT_SECONDS, Hub, explained
from spark_pipeline.weights.manifest import Manifest, ManifestFile
from spark_pipeline.weights.node.verify import new_digest

if TYPE_CHECKING:
    from httpx2 import Response  # huggingface_hub's, which may change it

# One more try after a 429 or 5xx; the wait is what the hub asks for.
_RETRIES = 1
_BLOCK_BYTES = 64 * 1024
# An index of 75,000 tensors has 9 MB; anything far beyond is not one, and would only fill the memory.
MAX_SMALL_FILE_BYTES = 256 << 20


def read_file(hub: Hub, manifest: Manifest, path: str) -> bytes:
    """A small file as the manifest knows it: size and digest are checked.

    Raises:
        HubError: the hub refuses, or cannot be reached.
        WeightsError: the file is absurdly large, or what came is not the file of the manifest.
    """
    file = next(file for file in manifest.files if file.path == path)
    if file.size_bytes > MAX_SMALL_FILE_BYTES:
        raise WeightsError(
            f"{path} of {manifest.repo} is too large to be read whole",
            observed=f"{file.size_bytes} bytes at {manifest.commit}",
            remedy="look at the repository on the hub; this file is a few megabytes everywhere else",
        )
    content = b""
    with _answer(hub, manifest, path) as response:
        for block in response.iter_bytes(_BLOCK_BYTES):
            content += block
            if len(content) > file.size_bytes:
                break
    digest = new_digest(file.wanted)
    digest.update(content)
    if len(content) != file.size_bytes or digest.hexdigest() != file.wanted.digest:
        raise WeightsError(
            f"{path} of {manifest.repo} did not come as the hub lists it",
            observed=f"{len(content)} bytes, {file.wanted.algorithm} {digest.hexdigest()}; listed: {file.size_bytes} "
            f"bytes, {file.wanted.digest}",
            remedy="something on the way changes it: see proxies and mirrors (HF_ENDPOINT, model.hub_url)",
        )
    return content


def read_part(hub: Hub, manifest: Manifest, file: ManifestFile, part: range) -> bytes:
    """Some bytes of a file, and not one more, whatever the server does with Range; fewer only if the file ends.

    Raises:
        HubError: the hub refuses, or cannot be reached.
    """
    content = b""
    with _answer(hub, manifest, file.path, {"Range": f"bytes={part.start}-{part.stop - 1}"}) as response:
        skipped = 0 if response.status_code == 206 else part.start  # 200: it sends the file from its first byte
        for block in response.iter_bytes(_BLOCK_BYTES):
            content += block[skipped:]
            skipped = max(0, skipped - len(block))
            if len(content) >= len(part):
                break
    return content[: len(part)]


@contextmanager
def _answer(hub: Hub, manifest: Manifest, path: str, headers: dict[str, str] | None = None) -> Iterator[Response]:
    """The hub's answer before its body is read. Leaving early closes the connection: the rest is never sent."""
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

    url = f"{hub.files_url(manifest.repo, manifest.commit)}/{quote(path)}"
    # A redirect to another host loses the token: httpx drops Authorization there.
    shown = build_hf_headers(token=hub.token or False, library_name="spark_pipeline")
    with (
        explained(hub, manifest.repo, manifest.commit, refusal=f"does not give {path} of {manifest.repo}"),
        http_stream_backoff(
            "GET",
            url,
            headers={**shown, "Accept-Encoding": "identity", **(headers or {})},
            timeout=TIMEOUT_SECONDS,
            max_retries=_RETRIES,
            retry_on_exceptions=(),  # it would close the session under the other threads' feet
        ) as response,
    ):
        hf_raise_for_status(response)
        yield response
