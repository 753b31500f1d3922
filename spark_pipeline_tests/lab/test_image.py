"""The image stage on two real engines, over the real fabric, with a real registry; images of 23 MB instead of 3 GB."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from requests import delete

from spark_pipeline.compatibility import stage as compatibility
from spark_pipeline.compatibility.stage import CompatibilityResult
from spark_pipeline.errors import CompatibilityError
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.fabric import fabric_ssh, prepare_fabric
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.fleet.session import Session, open_session
from spark_pipeline.image import stage
from spark_pipeline.image.distribute import Parcel, distribute
from spark_pipeline.image.layers import left_out
from spark_pipeline.image.plan import own_tag
from spark_pipeline.image.record import read_record
from spark_pipeline.image.reference import Reference
from spark_pipeline.image.registry import remote_digest
from spark_pipeline.image.transfer import Transfer, room_on
from spark_pipeline.lab.lab import Lab
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.choices import decide_on_first
from spark_pipeline_tests.lab.interrupt import interrupt_when
from spark_pipeline_tests.lab.small_images import (
    ENGINE,
    archive,
    build,
    forget,
    make_base,
    make_hostname_only,
    make_larger,
)

pytestmark = pytest.mark.lab

DATA = Path(__file__).parents[2] / "data"
BOTH = ("head", "peer")


@pytest.fixture(scope="module")
def registry(lab: Lab) -> str:
    return lab.plan.registry_address


@pytest.fixture(scope="module")
def root(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of its own on the lab's fleet."""
    directory = tmp_path_factory.mktemp("project")
    for kind, name in (("fleets", "lab"), ("deployments", "tiny"), ("profiles", "smoke")):
        (directory / "data" / kind).mkdir(parents=True)
        text = (DATA / kind / f"{name}.yaml").read_text(encoding="utf-8")
        (directory / "data" / kind / f"{name}.yaml").write_text(text)
    fleet = Project.load(directory).fleet("lab")
    enroll(fleet, directory / "data" / "state" / "known_hosts", lambda line: None)
    return directory


class Work:
    """Sessions with candidates of a test's choice, and what was said in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []

    def declare(self, *candidates: str) -> Project:
        path = self.root / "data" / "deployments" / "tiny.yaml"
        declared = yaml.safe_load(path.read_text(encoding="utf-8"))
        declared["image"]["candidates"] = list(candidates)
        path.write_text(yaml.safe_dump(declared))
        return Project.load(self.root)

    def ensure(self, *candidates: str, digest: str | None = None) -> stage.ImageResult:
        project = self.declare(*candidates)
        with open_session(project, "tiny", progress=self.said.append, run_id="test") as session:
            decide_on_first(session, digest)
            return stage.ensure(session, digest=digest)

    def judge(self, *candidates: str) -> CompatibilityResult:
        with open_session(self.declare(*candidates), "tiny", progress=self.said.append, run_id="test") as session:
            return compatibility.ensure(session)


@pytest.fixture
def work(root: Path) -> Work:
    return Work(root)


@pytest.fixture(scope="module")
def session(root: Path) -> Iterator[Session]:
    """For a look at the machines."""
    with open_session(Project.load(root), "tiny", progress=lambda line: None, run_id="test") as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def only_own_images(session: Session) -> Iterator[None]:
    """A base image on the head before; every image of these tests gone from both nodes after."""
    make_base(session.head)
    yield
    session.connection.each(BOTH, forget)


@pytest.fixture(autouse=True)
def a_peer_without_images_of_these_tests(session: Session, only_own_images: None) -> None:
    forget(session.connection.host("peer"))


def held(session: Session, node: str, reference: str) -> ImageFacts | None:
    return Docker(session.connection.host(node)).image(reference)


def fingerprint(session: Session, node: str, reference: str) -> str:
    found = held(session, node, reference)
    assert found is not None, f"{node} has no {reference}"
    return found.fingerprint


def probes(session: Session) -> str:
    argv = ["docker", "ps", "--all", "--quiet", "--filter", "label=spark_pipeline.probe"]
    return session.head.run(argv, timeout=60).stdout


# --- from the head to the peer


def test_the_peer_gets_the_image_of_the_head_and_it_is_the_same(session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:first", ENGINE)
    result = work.ensure("sp-test/engine:first")

    assert result.changed
    peer = result.nodes[1]
    assert not peer.already_there
    assert peer.sent_bytes >= 20_000_000
    record = read_record(session)
    for name in (record.reference, "sp-test/engine:first"):
        assert {fingerprint(session, node, name) for node in BOTH} == {record.fingerprint}
    assert (record.engine.vllm, record.engine.ray, record.engine.supports_nnodes) == ("0.99.0", "2.53.0", True)
    assert record.engine.architecture == "amd64"
    assert probes(session) == ""


def test_a_second_time_nothing_is_sent_or_started(session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:again", ENGINE, {"again.txt": "again"})
    work.ensure("sp-test/engine:again")
    started = time.time()
    result = work.ensure("sp-test/engine:again")
    took = time.time() - started

    assert not result.changed
    assert result.plan.commands == ()
    assert all(node.already_there and node.sent_bytes == 0 for node in result.nodes)
    assert work.said[-1] == "sp-test/engine:again is on every node already: nothing was copied"
    window = [
        "docker",
        "events",
        "--since",
        f"{started:.3f}",
        "--until",
        f"{started + took:.3f}",
        "--format",
        "{{.Action}}",
    ]
    happened = session.connection.each(BOTH, lambda host: host.run(window, timeout=60).stdout.split())
    assert happened == {"head": [], "peer": []}


def test_of_an_image_that_differs_in_one_layer_only_that_layer_is_sent(session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:old", ENGINE, {"version.txt": "old"})
    build(session.head, "sp-test/engine:new", ENGINE, {"version.txt": "new"})
    work.ensure("sp-test/engine:old")
    result = work.ensure("sp-test/engine:new")

    peer = result.nodes[1]
    assert peer.sent_bytes < 50_000
    assert peer.full_bytes > 20_000_000
    program = "print(open('/opt/image/version.txt').read())"
    run = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "python3",
        result.record.reference,
        "-c",
        program,
    ]
    shown = session.connection.host("peer").run(run, timeout=60)
    assert shown.stdout.strip() == "new"


def test_an_image_that_differs_in_its_configuration_only_is_another_image(session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:plain", ENGINE)
    build(session.head, "sp-test/engine:configured", ENGINE, extra='LABEL odd="<a> & é"\nENV MODE=x')
    work.ensure("sp-test/engine:plain")
    result = work.ensure("sp-test/engine:configured")

    assert result.nodes[1].sent_bytes < 50_000
    assert fingerprint(session, "peer", result.record.reference) == result.record.fingerprint


def test_another_image_under_the_same_name_on_the_peer_is_replaced(session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:moved", ENGINE, {"version.txt": "one"})
    before = work.ensure("sp-test/engine:moved").record
    build(session.head, "sp-test/engine:moved", ENGINE, {"version.txt": "two"})
    result = work.ensure("sp-test/engine:moved")

    assert result.changed
    assert result.record.fingerprint != before.fingerprint
    assert fingerprint(session, "peer", "sp-test/engine:moved") == result.record.fingerprint
    assert fingerprint(session, "peer", before.reference) == before.fingerprint


def test_an_image_whose_names_were_lost_on_the_peer_is_named_again_not_sent(session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:named", ENGINE, {"named.txt": ""})
    record = work.ensure("sp-test/engine:named").record
    session.connection.host("peer").run(["docker", "tag", record.reference, "sp-test/kept:1"], timeout=60)
    session.connection.host("peer").run(["docker", "rmi", record.reference, "sp-test/engine:named"], timeout=60)
    result = work.ensure("sp-test/engine:named")

    assert result.changed
    assert result.nodes[1].already_there
    assert fingerprint(session, "peer", "sp-test/engine:named") == record.fingerprint


def test_an_engine_that_refuses_missing_layers_is_sent_everything(session: Session) -> None:
    build(session.head, "sp-test/engine:refused", ENGINE, {"refused.txt": ""})
    image = held(session, "head", "sp-test/engine:refused")
    assert image is not None
    name = own_tag(image.fingerprint)
    session.head.run(["docker", "tag", image.image_id, name], timeout=60)
    peer = session.fleet.node("peer")
    prepare_fabric(session.connection, session.fleet, session.project.known_hosts, [peer])
    parcel = Parcel(
        session.head, image, (name,), {"peer": fabric_ssh(session.fleet, peer)}, lambda node: held(session, node, name)
    )
    # The peer has none of them: docker load finds out.
    wrong = Transfer("peer", left_out(image.layers, [image.layers[:2]]), 0)
    said: list[str] = []
    (sent,) = distribute(parcel, [wrong], said.append)

    assert sent.sent_bytes > 20_000_000
    assert any("sending everything to peer" in line for line in said)
    assert fingerprint(session, "peer", name) == image.fingerprint


def test_free_room_is_that_of_the_nodes_own_engine(lab: Lab, session: Session) -> None:
    rooms = session.connection.each(BOTH, room_on)
    for node, room in rooms.items():
        shown = lab.run_in_node(node, ["df", "--block-size=1", "--output=avail", "/var/lib/docker"]).stdout
        assert room.directory == "/var/lib/docker"
        assert room.free_bytes == pytest.approx(int(shown.split()[-1]), rel=0.05)


# --- what cannot work


def test_an_image_that_exists_nowhere_is_named_with_every_answer(work: Work, registry: str) -> None:
    with pytest.raises(CompatibilityError, match="no candidate image can serve the model") as caught:
        work.judge(f"{registry}/sp-test/nowhere:1", f"{registry}/sp-test/neither:1")
    for name in ("nowhere", "neither"):
        assert f"{registry}/sp-test/{name}:1: not on the head; registry {registry} has no " in caught.value.observed
    assert "404 Not Found" in caught.value.observed


def test_an_image_for_another_processor_is_refused_before_it_is_run(session: Session, work: Work) -> None:
    session.head.run(["docker", "load", "--quiet"], input=archive("sp-test/arm:1", "arm64"), timeout=60)
    with pytest.raises(CompatibilityError) as caught:
        work.judge("sp-test/arm:1")
    assert "sp-test/arm:1: arm64 image on amd64 node head (x86_64)" in caught.value.observed
    assert probes(session) == ""


def test_an_image_for_another_processor_in_a_registry_is_not_even_pulled(
    session: Session, work: Work, registry: str
) -> None:
    reference = f"{registry}/sp-test/arm:2"
    session.head.run(["docker", "load", "--quiet"], input=archive(reference, "arm64"), timeout=60)
    session.head.run(["docker", "push", "--quiet", reference], timeout=120)
    session.head.run(["docker", "image", "rm", reference], timeout=60)
    digest = remote_digest(reference)
    try:
        with pytest.raises(CompatibilityError) as caught:
            work.judge(reference)
    finally:
        delete(f"http://{registry}/v2/sp-test/arm/manifests/{digest}", timeout=10)
    assert "its registry has it for linux/arm64 only, head is linux/amd64 (x86_64)" in caught.value.observed
    assert held(session, "head", reference) is None


@pytest.mark.parametrize(
    ("reference", "layer", "words"),
    [("sp-test/engine:empty", {"readme.txt": ""}, "has no vLLM"), ("sp-test/hostname:1", None, "could not be asked")],
)
def test_an_image_without_vllm_or_python_goes_nowhere(
    session: Session, work: Work, reference: str, layer: dict[str, str] | None, words: str
) -> None:
    if layer is None:
        make_hostname_only(session.head, reference)
    else:
        build(session.head, reference, layer)
    with pytest.raises(CompatibilityError, match="no candidate image") as caught:
        work.judge(reference)
    assert words in caught.value.observed
    assert "image.candidates" in caught.value.remedy
    assert held(session, "peer", reference) is None
    assert probes(session) == ""


def test_after_ctrl_c_no_container_of_the_probe_is_left(session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:asleep", {"sitecustomize.py": "import time; time.sleep(600)"})
    stop = interrupt_when(lambda: probes(session) != "")
    with pytest.raises(KeyboardInterrupt):
        work.judge("sp-test/engine:asleep")
    stop.join()
    assert probes(session) == ""


def test_after_ctrl_c_no_copy_goes_on_and_nothing_half_arrives(lab: Lab, session: Session, work: Work) -> None:
    build(session.head, "sp-test/engine:large", ENGINE, extra="")
    make_larger(session.head, "sp-test/engine:large")
    stop = interrupt_when(lambda: lab.run_in_node("peer", ["pgrep", "-f", "docker load"]).stdout != "")
    with pytest.raises(KeyboardInterrupt):
        work.ensure("sp-test/engine:large")
    stop.join()

    end = time.monotonic() + 20
    while (left := busy(lab)) and time.monotonic() < end:
        time.sleep(0.5)
    assert left == ""
    assert held(session, "peer", "sp-test/engine:large") is None


def busy(lab: Lab) -> str:
    return "".join(lab.run_in_node(node, ["pgrep", "-a", "-f", "docker (load|save)"]).stdout for node in BOTH)


# --- from the registry


@pytest.fixture
def pushed(session: Session, registry: str) -> Iterator[tuple[str, str, str]]:
    """(reference, first digest, second digest): a tag that has moved; the head holds neither."""
    reference = f"{registry}/sp-test/engine:1"
    digests: list[str] = []
    for version in ("first", "second"):
        build(session.head, reference, ENGINE, {"version.txt": version})
        session.head.run(["docker", "push", "--quiet", reference], timeout=120)
        digests.append(remote_digest(reference))
    image = held(session, "head", reference)
    assert image is not None
    argv = ["docker", "image", "ls", "--all", "--quiet", "--filter", f"reference={registry}/sp-test/engine"]
    session.head.run(
        ["docker", "image", "rm", "--force", *session.head.run(argv, timeout=60).stdout.split()], timeout=60
    )
    yield reference, digests[0], digests[1]
    for digest in digests:
        delete(f"http://{registry}/v2/sp-test/engine/manifests/{digest}", timeout=10)


def test_the_registrys_digest_is_the_one_that_docker_pulls(session: Session, pushed: tuple[str, str, str]) -> None:
    reference, first, second = pushed
    assert remote_digest(reference) == second != first
    session.head.run(["docker", "pull", "--quiet", reference], timeout=120)
    image = held(session, "head", reference)
    assert image is not None
    assert Reference.parse(reference).digest_among(image.repo_digests) == second


def test_an_image_that_only_the_registry_has_is_pulled_and_brought_to_every_node(
    session: Session, work: Work, pushed: tuple[str, str, str]
) -> None:
    reference, _, second = pushed
    result = work.ensure(reference)

    assert result.changed
    assert any(line.startswith(f"pulling {reference} (") for line in work.said)
    assert (result.record.declared, result.record.digest) == (reference, second)
    assert {fingerprint(session, node, reference) for node in BOTH} == {result.record.fingerprint}
    assert not work.ensure(reference).changed


def test_with_a_digest_that_image_is_deployed_though_the_tag_has_moved(
    session: Session, work: Work, pushed: tuple[str, str, str]
) -> None:
    reference, first, second = pushed
    newest = work.ensure(reference).record
    result = work.ensure(reference, digest=first)

    assert result.changed
    assert (newest.digest, result.record.digest) == (second, first)
    assert result.record.fingerprint != newest.fingerprint
    assert {fingerprint(session, node, result.record.reference) for node in BOTH} == {result.record.fingerprint}
    assert not work.ensure(reference, digest=first).changed
