"""What a registry says of a tag, asked of a server on loopback that speaks as little of the protocol as it takes."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from spark_pipeline.errors import ImageNotFoundError, RegistryError
from spark_pipeline.image.registry import RemoteImage, remote_digest, remote_image
from spark_pipeline.image.registry_client import NotAllowedError, _may_be_plain

MANIFEST = b'{"schemaVersion": 2}'
MANIFEST_TYPE = "application/vnd.oci.image.index.v1+json"
DIGEST = "sha256:" + hashlib.sha256(MANIFEST).hexdigest()
Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Asked:
    method: str
    path: str
    authorization: str


@dataclass
class Registry:
    """A server that answers by a function, and remembers what it was asked."""

    address: str
    asked: list[Asked] = field(default_factory=list)
    answer: Callable[[Asked], Answer] = lambda asked: found()


def found(digest: str | None = DIGEST, kind: str = MANIFEST_TYPE) -> Answer:
    return 200, {"Content-Type": kind, **({"Docker-Content-Digest": digest} if digest else {})}, MANIFEST


def refused(status: int, **headers: str) -> Answer:
    return status, {"Content-Type": "application/json", **headers}, b"{}"


def serve(context: ssl.SSLContext | None) -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = Asked(self.command, self.path, self.headers.get("Authorization", ""))
            registry.asked.append(asked)
            status, headers, body = registry.answer(asked)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that does not trust us hangs up

    server = Server(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    registry = Registry(f"127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield registry
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_credentials_and_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docker").mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "docker" / "config.json"


@pytest.fixture
def plain() -> Iterator[Registry]:
    yield from serve(None)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry of a test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "registry.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def secure(certificate: Path) -> Iterator[Registry]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    yield from serve(context)


@pytest.fixture
def trusted(secure: Registry, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    return secure


def with_tokens(registry: Registry) -> Callable[[Asked], Answer]:
    """As Docker Hub does it: a 401 that names a token server, which gives a token for reading."""

    def answer(asked: Asked) -> Answer:
        if asked.path.startswith("/token?"):
            return 200, {"Content-Type": "application/json"}, b'{"token": "t0ken"}'
        if asked.authorization == "Bearer t0ken":
            return found()
        challenge = f'Bearer realm="https://{registry.address}/token",service="s",scope="repository:team/engine:pull"'
        return refused(401, **{"WWW-Authenticate": challenge})

    return answer


def test_the_digest_is_asked_for_with_one_head_request(plain: Registry) -> None:
    assert remote_digest(f"{plain.address}/team/engine:1.2") == DIGEST
    assert [(asked.method, asked.path) for asked in plain.asked] == [("HEAD", "/v2/team/engine/manifests/1.2")]


def test_a_reference_by_digest_is_confirmed_by_that_digest(plain: Registry) -> None:
    assert remote_digest(f"{plain.address}/team/engine:1.2@{DIGEST}") == DIGEST
    assert plain.asked[0].path == f"/v2/team/engine/manifests/{DIGEST}"


def test_a_registry_that_sends_no_digest_header_is_asked_for_the_manifest(plain: Registry) -> None:
    plain.answer = lambda asked: found(digest=None)
    assert remote_digest(f"{plain.address}/team/engine") == DIGEST
    assert [asked.method for asked in plain.asked] == ["HEAD", "GET"]


def test_an_unknown_tag_is_not_found(plain: Registry) -> None:
    plain.answer = lambda asked: refused(404)
    with pytest.raises(ImageNotFoundError, match=r"has no .*/team/engine:9"):
        remote_digest(f"{plain.address}/team/engine:9")


def test_a_login_page_is_not_taken_for_a_manifest(plain: Registry) -> None:
    plain.answer = lambda asked: found(digest=None, kind="text/html")
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{plain.address}/team/engine")
    assert "'text/html' instead of a manifest" in caught.value.observed


def test_a_digest_that_is_none_is_refused(plain: Registry) -> None:
    plain.answer = lambda asked: found(digest="sha256:beef")
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{plain.address}/team/engine")
    assert "sha256:beef" in caught.value.observed


@pytest.mark.parametrize(
    ("status", "remedy"), [(403, "docker login"), (429, "raise the limit"), (503, "try again later")]
)
def test_a_refusal_is_named_with_what_to_do(plain: Registry, status: int, remedy: str) -> None:
    plain.answer = lambda asked: refused(status)
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{plain.address}/team/engine")
    assert caught.value.observed.startswith(str(status))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(("status", "final"), [(401, True), (403, True), (429, False), (500, False), (503, False)])
def test_a_final_no_is_told_from_a_fault_that_passes(plain: Registry, status: int, final: bool) -> None:
    plain.answer = lambda asked: refused(status)
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{plain.address}/team/engine")
    assert isinstance(caught.value, NotAllowedError) is final


def test_a_registry_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(RegistryError) as caught:
        remote_digest(f"127.0.0.1:{deaf.getsockname()[1]}/team/engine", timeout_seconds=0.2)
    assert caught.value.observed == "no answer within 0.2 s"


def test_a_registry_where_nobody_listens_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{address}/team/engine")
    assert address in caught.value.what
    assert "Connection refused" in caught.value.observed
    assert "Max retries" not in caught.value.observed


def test_a_public_image_is_read_with_a_token_for_nobody(trusted: Registry) -> None:
    trusted.answer = with_tokens(trusted)
    assert remote_digest(f"{trusted.address}/team/engine") == DIGEST
    (token,) = [asked for asked in trusted.asked if asked.path.startswith("/token?")]
    assert "scope=repository%3Ateam%2Fengine%3Apull" in token.path
    assert token.authorization == ""


def test_a_private_image_is_read_with_the_credentials_of_docker_login(
    trusted: Registry, no_credentials_and_no_proxy: Path
) -> None:
    trusted.answer = with_tokens(trusted)
    login = base64.b64encode(b"anna:s3cret").decode()
    no_credentials_and_no_proxy.write_text(json.dumps({"auths": {trusted.address: {"auth": login}}}))
    assert remote_digest(f"{trusted.address}/team/engine") == DIGEST
    (token,) = [asked for asked in trusted.asked if asked.path.startswith("/token?")]
    assert token.authorization == f"Basic {login}"


def test_a_registry_with_passwords_of_its_own_is_read_too(trusted: Registry, no_credentials_and_no_proxy: Path) -> None:
    login = base64.b64encode(b"anna:s3cret").decode()
    wanted = f"Basic {login}"
    trusted.answer = lambda asked: (
        found() if asked.authorization == wanted else refused(401, **{"WWW-Authenticate": 'Basic realm="r"'})
    )
    no_credentials_and_no_proxy.write_text(json.dumps({"auths": {trusted.address: {"auth": login}}}))
    assert remote_digest(f"{trusted.address}/team/engine") == DIGEST


def test_a_refused_login_shows_no_secret(trusted: Registry, no_credentials_and_no_proxy: Path) -> None:
    trusted.answer = lambda asked: refused(401, **{"WWW-Authenticate": 'Basic realm="r"'})
    login = base64.b64encode(b"anna:s3cret").decode()
    no_credentials_and_no_proxy.write_text(json.dumps({"auths": {trusted.address: {"auth": login}}}))
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{trusted.address}/team/engine")
    assert f"docker login {trusted.address}" in caught.value.remedy
    assert "s3cret" not in str(caught.value)
    assert login not in str(caught.value)


def test_credentials_are_never_sent_in_plain_http(plain: Registry, no_credentials_and_no_proxy: Path) -> None:
    plain.answer = lambda asked: refused(401, **{"WWW-Authenticate": 'Basic realm="r"'})
    login = base64.b64encode(b"anna:s3cret").decode()
    no_credentials_and_no_proxy.write_text(json.dumps({"auths": {plain.address: {"auth": login}}}))
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{plain.address}/team/engine")
    assert "plain http" in caught.value.observed
    assert {asked.authorization for asked in plain.asked} == {""}


def test_a_certificate_that_is_not_trusted_ends_the_matter(secure: Registry) -> None:
    with pytest.raises(RegistryError) as caught:
        remote_digest(f"{secure.address}/team/engine")
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.observed
    assert secure.asked == []


@pytest.mark.parametrize(
    ("registry", "plain"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("10.77.0.1:5000", True),
        ("[::1]:5000", True),
        ("docker.io", False),
        ("registry.example.com:5000", False),
        ("8.8.8.8:5000", False),
    ],
)
def test_plain_http_is_for_literal_private_addresses_only(registry: str, plain: bool) -> None:
    assert _may_be_plain(registry) is plain


# --- platforms and size, before a pull

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def holding(documents: dict[str, tuple[str, bytes]]) -> Callable[[Asked], Answer]:
    """A registry that has these: path behind /v2/<repository>/ -> (content type, content)."""

    def answer(asked: Asked) -> Answer:
        kind, content = documents[asked.path.partition("/v2/team/engine/")[2]]
        return 200, {"Content-Type": kind, "Docker-Content-Digest": digest_of(content)}, content

    return answer


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def manifest_of(config: bytes, *sizes: int) -> bytes:
    layers = [{"digest": f"sha256:{size:064d}", "size": size} for size in sizes]
    return json.dumps({"schemaVersion": 2, "config": {"digest": digest_of(config)}, "layers": layers}).encode()


def test_an_image_for_one_platform_tells_it_and_its_size(plain: Registry) -> None:
    config = b'{"architecture": "amd64", "os": "linux"}'
    manifest = manifest_of(config, 100, 23)
    plain.answer = holding(
        {
            "manifests/1": (DOCKER_MANIFEST, manifest),
            f"manifests/{digest_of(manifest)}": (DOCKER_MANIFEST, manifest),
            f"blobs/{digest_of(config)}": ("application/octet-stream", config),
        }
    )
    found = remote_image(f"{plain.address}/team/engine:1", "amd64")
    assert found == RemoteImage(digest_of(manifest), ("linux/amd64",), 123)
    assert found.runs_on("amd64")
    assert not found.runs_on("arm64")


def index_of(**manifests: bytes) -> bytes:
    """An index with one manifest for each platform, and an attestation as buildx adds it."""
    entries = [
        {"digest": digest_of(content), "platform": {"os": "linux", "architecture": name, "variant": "v8"}}
        if name == "arm64"
        else {"digest": digest_of(content), "platform": {"os": "linux", "architecture": name}}
        for name, content in manifests.items()
    ]
    entries.append({"digest": "sha256:" + "a" * 64, "platform": {"os": "unknown", "architecture": "unknown"}})
    return json.dumps({"schemaVersion": 2, "manifests": entries}).encode()


def test_an_image_for_several_platforms_tells_them_all_and_the_size_of_ours(plain: Registry) -> None:
    amd64, arm64 = manifest_of(b"{}", 100), manifest_of(b"{}", 7, 80)
    index = index_of(amd64=amd64, arm64=arm64)
    plain.answer = holding(
        {
            "manifests/1": (MANIFEST_TYPE, index),
            f"manifests/{digest_of(index)}": (MANIFEST_TYPE, index),
            f"manifests/{digest_of(arm64)}": (DOCKER_MANIFEST, arm64),
        }
    )
    found = remote_image(f"{plain.address}/team/engine:1", "arm64")
    assert found == RemoteImage(digest_of(index), ("linux/amd64", "linux/arm64/v8"), 87)
    assert found.runs_on("arm64")


def test_an_image_that_is_not_made_for_ours_has_no_size(plain: Registry) -> None:
    index = index_of(amd64=manifest_of(b"{}", 100))
    plain.answer = holding(
        {"manifests/1": (MANIFEST_TYPE, index), f"manifests/{digest_of(index)}": (MANIFEST_TYPE, index)}
    )
    found = remote_image(f"{plain.address}/team/engine:1", "arm64")
    assert (found.platforms, found.size_bytes, found.runs_on("arm64")) == (("linux/amd64",), None, False)


def test_a_manifest_that_is_none_is_an_error_and_no_traceback(plain: Registry) -> None:
    with pytest.raises(RegistryError, match="does not show"):
        remote_image(f"{plain.address}/team/engine:1", "arm64")  # MANIFEST has neither config nor list
