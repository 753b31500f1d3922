"""Images asked what they are: a real vLLM, small ones that cannot answer, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_pipeline.errors import ImageError, ImageSilentError
from spark_pipeline.fleet.connection import FleetConnection
from spark_pipeline.fleet.docker import Docker, ImageFacts
from spark_pipeline.fleet.host import Host
from spark_pipeline.fleet.known_hosts import enroll
from spark_pipeline.image import facts
from spark_pipeline.image.answer import ProbeResult
from spark_pipeline.image.verdict import Evidence, Kind, Verdict, Wanted, judge
from spark_pipeline.lab.images import engine_image, standin_image
from spark_pipeline.lab.lab import Lab
from spark_pipeline.spec.project import Project
from spark_pipeline_tests.lab.small_images import build, forget, make_base, make_hostname_only, make_python_off_path
from spark_pipeline_tests.unit.image.made_up import MODEL_REGISTRY, REGISTRY

pytestmark = pytest.mark.lab

LABEL = "spark_pipeline_tests=probe"
PYTHON = "sp-test/probe-python:1"
DATA = Path(__file__).parents[2] / "data"
QWEN3 = Wanted(("Qwen3ForCausalLM",), "qwen3")
QWEN35 = Wanted(("Qwen3_5MoeForConditionalGeneration",), "qwen3_5_moe")
# A vLLM that answers when it is imported; 23 MB with its Python.
ANSWERING = {
    "vllm/__init__.py": MODEL_REGISTRY,
    "vllm/model_executor/models/registry.py": REGISTRY,
    "vllm-0.99.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0",
    "bin/vllm": "#!/bin/false",
}


@pytest.fixture(scope="module")
def head(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = tmp_path_factory.mktemp("fleet")
    (directory / "data" / "fleets").mkdir(parents=True)
    (directory / "data" / "fleets" / "lab.yaml").write_text((DATA / "fleets" / "lab.yaml").read_text("utf-8"))
    project = Project.load(directory)
    fleet = project.fleet("lab")
    enroll(fleet, project.known_hosts, lambda line: None)
    with FleetConnection(fleet, project.known_hosts) as connection:
        yield connection.host("head")


@pytest.fixture(scope="module")
def small(head: Host) -> Iterator[None]:
    """A base for small images before; all of them gone after."""
    make_base(head, PYTHON, LABEL)
    yield
    forget(head, LABEL)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {}, {}, {})


def held(head: Host, reference: str) -> ImageFacts:
    image = Docker(head).image(reference)
    assert image is not None, f"the head has no {reference}"
    return image


class Started:
    """The containers that a test starts: others may be asking images on this node, too."""

    def __init__(self, head: Host) -> None:
        self.head = head
        self.names: list[str] = []

    def name(self) -> str:
        self.names.append(f"sp-probe-test-{uuid.uuid4().hex[:12]}")
        return self.names[-1]

    def left(self) -> set[str]:
        """Those that are there, running or not."""
        shown = self.head.run(["docker", "ps", "--all", "--format", "{{.Names}}"], timeout=60).stdout
        return set(shown.split()) & set(self.names)


@pytest.fixture(autouse=True)
def started(head: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Whatever a test does, its containers are gone afterwards."""
    made = Started(head)
    monkeypatch.setattr(facts, "_container", made.name)
    yield made
    assert made.left() == set()


def verdict(result: ProbeResult, wanted: Wanted) -> Verdict:
    return judge(result.answer, result.inspections, wanted)


# --- a real vLLM


@pytest.fixture(scope="module")
def real(lab: Lab, head: Host) -> ImageFacts:
    return held(head, engine_image(lab, print).reference)


@pytest.fixture(scope="module")
def asked(real: ImageFacts, head: Host, tmp_path_factory: pytest.TempPathFactory) -> tuple[ProbeResult, Project]:
    project = Project(tmp_path_factory.mktemp("project"), {}, {}, {})
    return facts.probe(head, real, project, print, QWEN3), project


def test_a_real_vllm_inspects_its_class(asked: tuple[ProbeResult, Project]) -> None:
    found = verdict(asked[0], QWEN3)
    assert (found.kind, found.evidence, found.knows_model_type) == (Kind.NATIVE, Evidence.INSPECTED, True)


def test_a_real_image_says_what_it_has_inside(asked: tuple[ProbeResult, Project]) -> None:
    answer = asked[0].answer
    assert (answer.engine.vllm, answer.engine.ray, answer.engine.supports_nnodes) == ("0.32.0+cpu", "2.53.0", True)
    assert (answer.python, answer.installed_as) == ("/opt/venv/bin/python3", "distribution")
    assert answer.directory == "/opt/venv/lib/python3.11/site-packages/vllm"
    assert {one.executable for one in answer.pythons} >= {"/opt/venv/bin/python3", "/usr/bin/python3"}
    assert "transformers<5.20.0,>=5.16.1" in answer.requirements
    assert answer.packages["torch"] == "2.13.0+cpu"
    assert {"qwen3", "qwen3_5_moe"} <= set(answer.transformers_types)


def test_what_is_read_from_the_text_is_what_vllm_says_when_it_is_imported(
    asked: tuple[ProbeResult, Project], real: ImageFacts, head: Host
) -> None:
    program = (
        "import json; from vllm import ModelRegistry as r; print('\\n>>>' + json.dumps("
        "{n: [m.module_name, m.class_name] for n, m in r.models.items() if n in r.get_supported_archs()}))"
    )
    words = ("docker", "run", "--rm", "--network", "none", "-w", "/", "--entrypoint", "python3", real.image_id)
    said = head.run([*words, "-c", program], timeout=300).stdout
    imported = json.loads(said.rpartition(">>>")[2])
    read = {name: entry.split(":") for name, entry in asked[0].answer.registry.architectures.items()}
    full = {
        name: [module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}", kind]
        for name, (module, kind) in read.items()
    }
    assert full == imported


def test_nothing_is_asked_of_an_image_twice(asked: tuple[ProbeResult, Project], real: ImageFacts, head: Host) -> None:
    started = time.time()
    assert facts.probe(head, real, asked[1], print, QWEN3) == asked[0]
    window = ["docker", "events", "--since", f"{started:.3f}", "--until", f"{time.time():.3f}"]
    images = ["--filter", f"image={real.image_id}", "--format", "{{.Action}}"]
    assert head.run([*window, *images], timeout=60).stdout == ""


def test_one_architecture_more_is_asked_alone(asked: tuple[ProbeResult, Project], real: ImageFacts, head: Host) -> None:
    more = Wanted((*QWEN3.architectures, "XverseForCausalLM", "FooForCausalLM"))
    result = facts.probe(head, real, asked[1], print, more)
    assert result.answer == asked[0].answer
    kinds = {name: verdict(result, Wanted((name,))) for name in more.architectures}
    assert [one.kind for one in kinds.values()] == [Kind.NATIVE, Kind.PREVIOUSLY_SUPPORTED, Kind.UNSUPPORTED]
    assert kinds["XverseForCausalLM"].last_version == "0.23.0"
    assert kinds["FooForCausalLM"].evidence is Evidence.IMPORT


def test_the_stand_in_engine_answers_as_vllm_does(lab: Lab, head: Host, project: Project) -> None:
    image = held(head, standin_image(lab, print).reference)
    result = facts.probe(head, image, project, print, QWEN35)
    assert (verdict(result, QWEN35).kind, verdict(result, QWEN35).evidence) == (Kind.NATIVE, Evidence.INSPECTED)


# --- images that cannot answer


def ask(head: Host, project: Project, reference: str, wanted: Wanted | None = QWEN3) -> ProbeResult:
    return facts.probe(head, held(head, reference), project, print, wanted)


def test_an_entrypoint_that_never_returns_is_not_run(head: Host, project: Project, small: None) -> None:
    forever = 'ENTRYPOINT ["python3", "-c", "import time; time.sleep(1e6)"]'
    build(head, "sp-test/probe:forever", ANSWERING, extra=forever, base=PYTHON)
    result = ask(head, project, "sp-test/probe:forever")
    assert (result.answer.engine.vllm, verdict(result, QWEN3).evidence) == ("0.99.0", Evidence.INSPECTED)


def test_a_registry_that_does_not_parse_and_a_vllm_that_does_not_import(
    head: Host, project: Project, small: None
) -> None:
    broken = "_VLLM_MODELS = {\n  'A': ('a', 'A'\n"
    files = {"vllm/model_executor/models/registry.py": broken, "vllm/__init__.py": f"import ast; ast.parse({broken!r})"}
    build(head, "sp-test/probe:broken", {**ANSWERING, **files}, base=PYTHON)
    static = ask(head, project, "sp-test/probe:broken", None)
    assert verdict(static, QWEN3).kind is Kind.BROKEN
    assert "registry.py does not parse" in verdict(static, QWEN3).error
    imported = verdict(ask(head, project, "sp-test/probe:broken"), QWEN3)
    assert (imported.kind, imported.evidence) == (Kind.BROKEN, Evidence.IMPORT)
    assert imported.error.startswith("SyntaxError: ")


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("no-vllm", "has no vLLM", "image.candidates"),
        ("no-python", "could not be asked", "name an image with python3 on its PATH"),
        ("off-path", "has no vLLM", "image.candidates"),
    ],
)
def test_an_image_without_what_is_needed_says_what_to_do(
    head: Host, project: Project, small: None, name: str, what: str, remedy: str
) -> None:
    reference = f"sp-test/probe:{name}"
    if name == "no-vllm":
        build(head, reference, {"readme.txt": ""}, base=PYTHON)
    elif name == "no-python":
        make_hostname_only(head, reference, LABEL)  # nor has it a shell
    else:
        make_python_off_path(head, reference, LABEL)
    with pytest.raises(ImageError, match=what) as caught:
        ask(head, project, reference)
    assert remedy in caught.value.remedy


def test_a_python_that_is_not_on_the_path_answers_through_the_images_shell(
    head: Host, project: Project, small: None
) -> None:
    make_python_off_path(head, "sp-test/probe:base", LABEL)
    build(head, "sp-test/probe:engine", ANSWERING, base="sp-test/probe:base")
    result = ask(head, project, "sp-test/probe:engine")
    assert result.answer.python == "/opt/venv/bin/python3"
    assert verdict(result, QWEN3).evidence is Evidence.INSPECTED


def test_an_import_that_hangs_is_an_answer_and_its_container_ends(
    head: Host, project: Project, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_STEP_SECONDS", 2)
    build(head, "sp-test/probe:hangs", {**ANSWERING, "vllm/__init__.py": "import time; time.sleep(1e6)"}, base=PYTHON)
    found = verdict(ask(head, project, "sp-test/probe:hangs"), QWEN3)
    assert (found.kind, found.evidence) == (Kind.NATIVE, Evidence.STATIC)
    assert "importing vLLM did not end within 2 s" in found.why


def test_a_python_that_never_answers_is_an_error_and_its_container_goes(
    head: Host, project: Project, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_PROBE_SECONDS", 5)
    build(head, "sp-test/probe:waits", {"sitecustomize.py": "import time; time.sleep(1e6)"}, base=PYTHON)
    with pytest.raises(ImageSilentError, match="does not answer"):
        ask(head, project, "sp-test/probe:waits", None)


def test_an_import_that_wants_more_memory_than_a_probe_may_have_says_nothing(
    head: Host, project: Project, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_LIMITS", ("--memory", "100m", "--memory-swap", "100m", "--oom-score-adj", "1000"))
    greedy = f"kept = b'x' * 400_000_000\n{MODEL_REGISTRY}"
    build(head, "sp-test/probe:greedy", {**ANSWERING, "vllm/__init__.py": greedy}, base=PYTHON)
    result = ask(head, project, "sp-test/probe:greedy")
    found = result.inspections["Qwen3ForCausalLM"]
    assert (found.registered, found.final) == (None, False)
    assert (verdict(result, QWEN3).kind, verdict(result, QWEN3).evidence) == (Kind.NATIVE, Evidence.STATIC)
    monkeypatch.setattr(facts, "_LIMITS", ())
    assert verdict(ask(head, project, "sp-test/probe:greedy"), QWEN3).evidence is Evidence.INSPECTED


def test_what_a_dead_orchestrator_left_goes_and_what_another_run_waits_for_stays(
    head: Host, project: Project, small: None
) -> None:
    build(head, "sp-test/probe:answers", ANSWERING, base=PYTHON)
    label, now, unique = facts.LABEL, int(time.time()), uuid.uuid4().hex[:8]
    left, used = f"sp-probe-test-left-{unique}", f"sp-probe-test-used-{unique}"
    asleep = ("--entrypoint", "python3", PYTHON, "-c", "import time; time.sleep(600)")
    try:
        for name, until in ((left, now - 1), (used, now + 600)):
            words = ("docker", "run", "--detach", "--network", "none", "--name", name, "--label", f"{label}={until}")
            head.run([*words, *asleep], timeout=60)
        ask(head, project, "sp-test/probe:answers")
        assert Docker(head).container(left) is None
        assert Docker(head).container(used) is not None
    finally:
        Docker(head).remove([left, used])


@pytest.mark.parametrize("where", ["sitecustomize.py", "vllm/__init__.py"])
def test_after_ctrl_c_no_container_is_left(
    head: Host, project: Project, small: None, started: Started, where: str
) -> None:
    build(head, "sp-test/probe:asleep", {**ANSWERING, where: "import time; time.sleep(600)"}, base=PYTHON)
    stop = interrupt_when(lambda: bool(started.left()))
    with pytest.raises(KeyboardInterrupt):
        ask(head, project, "sp-test/probe:asleep")
    stop.join()
    assert started.names
    assert started.left() == set()
    assert facts.cached(project, held(head, "sp-test/probe:asleep").fingerprint) is None


def interrupt_when(seen: Callable[[], bool]) -> threading.Thread:
    """Ctrl-C a moment after `seen()` is true."""

    def watch() -> None:
        end = time.monotonic() + 60
        while not seen() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
