"""Which candidates are asked, which are pulled for it, and which are left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spark_pipeline.compatibility import judge as judging
from spark_pipeline.compatibility.judge import Asked, ask_all
from spark_pipeline.errors import ImageError, ImageSilentError, RegistryError
from spark_pipeline.fleet.docker import ImageFacts
from spark_pipeline.fleet.session import Session
from spark_pipeline.image.answer import Inspection, ProbeResult, Registry
from spark_pipeline.image.candidates import Candidate, Machine
from spark_pipeline.image.registry import RemoteImage
from spark_pipeline.image.verdict import Kind, Wanted
from spark_pipeline_tests.doubles import ScriptedHost
from spark_pipeline_tests.projects import scripted_session, tiny_project
from spark_pipeline_tests.unit.image.samples import DIGEST, PROBED, image

NODES = (Machine("head", "x86_64"), Machine("peer", "x86_64"))
ARCHITECTURE = "Qwen3ForCausalLM"
WANTED = Wanted((ARCHITECTURE,), "qwen3")


@dataclass
class World:
    """What head and registries hold, and what was done with it."""

    on_head: set[str] = field(default_factory=set)
    in_registry: dict[str, RemoteImage | Exception] = field(default_factory=dict)
    knows: dict[str, bool | ImageError] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)

    def look(self, _: Session, wanted: tuple[tuple[str, str | None], ...], __: Any) -> tuple[Candidate, ...]:
        return tuple(Candidate(name, digest, image(name) if name in self.on_head else None) for name, digest in wanted)

    def ask_registry(self, candidate: Candidate, _: Any) -> Candidate:
        self.did.append(f"registry {candidate.declared}")
        answer = self.in_registry[candidate.declared]
        if isinstance(answer, RegistryError):
            raise answer
        if isinstance(answer, Exception):
            return replace(candidate, against=str(answer))
        return replace(candidate, digest=answer.digest, remote=answer)

    def pull(self, _: Session, candidate: Candidate) -> ImageFacts:
        self.did.append(f"pull {candidate.declared}")
        return image(candidate.declared)

    def probe(self, _: Any, facts: ImageFacts, *__: Any) -> ProbeResult:
        self.did.append(f"probe {facts.reference}")
        knows = self.knows[facts.reference]
        if isinstance(knows, ImageError):
            raise knows
        tables = Registry(architectures={ARCHITECTURE: "qwen3:Qwen3ForCausalLM"} if knows else {})
        found = Inspection(architecture=ARCHITECTURE, registered=knows, inspected=knows or None)
        answer = PROBED.answer.model_copy(update={"registry": tables})
        return ProbeResult(answer=answer, inspections={ARCHITECTURE: found})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    for name in ("look", "ask_registry", "pull", "probe"):
        monkeypatch.setattr(judging, name, getattr(made, name))
    return made


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., dict[str, Asked]]:
    def ask(*declared: str, may_pull: bool = True) -> dict[str, Asked]:
        session = scripted_session(tiny_project(tmp_path, *declared), ScriptedHost("head"), ScriptedHost("peer"))
        found = ask_all(session, None, WANTED, NODES, may_pull=may_pull)
        return {one.declared: one for one in found}

    return ask


def kind_of(asked: Asked) -> Kind:
    assert asked.judged.verdict is not None
    return asked.judged.verdict.kind


REMOTE = RemoteImage(DIGEST, ("linux/amd64",), 24_000_000_000)


def test_every_candidate_on_the_head_is_asked_and_no_registry(world: World, ask: Callable[..., dict[str, Asked]]):
    world.on_head, world.knows = {"old:1", "new:1"}, {"old:1": False, "new:1": True}
    found = ask("old:1", "new:1")
    assert (kind_of(found["old:1"]), kind_of(found["new:1"])) == (Kind.UNSUPPORTED, Kind.NATIVE)
    assert world.did == ["probe old:1", "probe new:1"]


def test_behind_one_that_works_nothing_is_pulled_and_no_registry_asked(
    world: World, ask: Callable[..., dict[str, Asked]]
):
    world.on_head, world.knows = {"new:1"}, {"new:1": True}
    found = ask("new:1", "team/other:1")
    assert found["team/other:1"].judged.waits == "not on the head, and not needed: new:1 works"
    assert world.did == ["probe new:1"]


def test_a_preferred_one_is_pulled_then_asked(world: World, ask: Callable[..., dict[str, Asked]]):
    world.in_registry, world.knows = {"team/new:1": REMOTE}, {"team/new:1": True}
    found = ask("team/new:1")
    assert kind_of(found["team/new:1"]) is Kind.NATIVE
    assert found["team/new:1"].candidate.digest == DIGEST
    assert world.did == ["registry team/new:1", "pull team/new:1", "probe team/new:1"]


def test_a_later_one_is_pulled_only_because_those_before_it_cannot(world: World, ask: Callable[..., dict[str, Asked]]):
    world.on_head = {"old:1"}
    world.in_registry, world.knows = {"team/new:1": REMOTE}, {"old:1": False, "team/new:1": True}
    ask("old:1", "team/new:1")
    assert world.did == ["probe old:1", "registry team/new:1", "pull team/new:1", "probe team/new:1"]


def test_a_plan_pulls_nothing_and_says_how_much_it_would_be(world: World, ask: Callable[..., dict[str, Asked]]):
    world.in_registry = {"team/new:1": REMOTE}
    found = ask("team/new:1", may_pull=False)["team/new:1"]
    assert found.to_pull
    assert "24.0 GB to pull" in found.judged.waits
    assert world.did == ["registry team/new:1"]


def test_what_its_registry_does_not_have_is_passed_over_with_its_reason(
    world: World, ask: Callable[..., dict[str, Asked]]
):
    world.on_head, world.knows = {"new:1"}, {"new:1": True}
    world.in_registry = {"team/gone:1": ImageError("registry docker.io has no team/gone:1")}
    found = ask("team/gone:1", "new:1")
    assert "has no team/gone:1" in found["team/gone:1"].judged.against
    assert kind_of(found["new:1"]) is Kind.NATIVE


def test_no_answer_about_a_preferred_one_is_an_error(world: World, ask: Callable[..., dict[str, Asked]]):
    world.on_head, world.knows = {"new:1"}, {"new:1": True}
    world.in_registry = {"team/silent:1": RegistryError("no answer")}
    with pytest.raises(RegistryError, match="no answer"):
        ask("team/silent:1", "new:1")
    assert "probe new:1" not in world.did


def test_an_image_that_does_not_answer_is_ruled_out_in_one_line(world: World, ask: Callable[..., dict[str, Asked]]):
    world.on_head = {"odd:1", "new:1"}
    error = ImageError("odd:1 has no vLLM", observed="Traceback\nModuleNotFoundError: vllm", remedy="name another")
    world.knows = {"odd:1": error, "new:1": True}
    found = ask("odd:1", "new:1")
    assert found["odd:1"].judged.against == "odd:1 has no vLLM (ModuleNotFoundError: vllm); name another"
    assert kind_of(found["new:1"]) is Kind.NATIVE


def test_an_image_that_gives_no_answer_now_does_not_lead_to_another(world: World, ask: Callable[..., dict[str, Asked]]):
    world.on_head = {"slow:1", "new:1"}
    world.knows = {"slow:1": ImageSilentError("slow:1 did not answer"), "new:1": True}
    with pytest.raises(ImageSilentError, match="slow:1 did not answer"):
        ask("slow:1", "new:1")
