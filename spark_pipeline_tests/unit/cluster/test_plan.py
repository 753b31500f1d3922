"""When containers are kept and when they are replaced; what the replacement is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_pipeline.cluster.generation import Generation
from spark_pipeline.cluster.plan import ClusterPlan, Running, plan
from spark_pipeline.cluster.target import Target
from spark_pipeline.errors import ClusterError
from spark_pipeline.fleet.docker import Container
from spark_pipeline_tests.unit.cluster import samples


def planned(
    target: Target,
    *containers: Container,
    joined: Generation | None = None,
    others: tuple[Container, ...] = (),
    last_number: int = 0,
) -> ClusterPlan:
    return plan(
        target,
        samples.facts(),
        Running(tuple(containers)),
        joined=joined,
        others=others,
        last_number=last_number,
        run_id="run-1",
    )


def test_nothing_runs_so_a_first_generation_starts_on_every_node():
    result = planned(samples.target())
    assert result.keep is None
    assert result.remove == ()
    assert result.generation is not None
    assert [rank.container for rank in result.generation.ranks] == ["sp-qwen35_122b-g1-r0", "sp-qwen35_122b-g1-r1"]
    assert [rank.node for rank in result.generation.ranks] == ["head", "peer"]


def test_what_runs_as_declared_is_kept_and_no_command_is_planned():
    target = samples.target()
    joined = planned(target).generation
    result = planned(target, samples.container(target, 0), samples.container(target, 1), joined=joined)
    assert result.keep == joined
    assert result.remove == ()
    assert result.generation is None
    described = result.describe()
    assert described.changes is False
    assert described.commands == ()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda t: (samples.container(t, 0),), id="a rank is missing"),
        pytest.param(
            lambda t: (samples.container(t, 0), samples.container(t, 1, state="exited")), id="a rank has ended"
        ),
        pytest.param(
            lambda t: (samples.container(t, 0), samples.container(t, 1, spec_hash="0" * 16)), id="another spec"
        ),
        pytest.param(
            lambda t: (samples.container(t, 0), samples.container(t, 1, number=8)), id="two generations mixed"
        ),
        pytest.param(
            lambda t: (samples.container(t, 0), samples.container(t, 1, node="head")), id="both ranks on one node"
        ),
        pytest.param(
            lambda t: (
                samples.container(t, 0),
                samples.container(t, 1),
                samples.container(t, 0, number=3, state="exited"),
            ),
            id="a left-over of an older generation",
        ),
    ],
)
def test_anything_else_is_replaced_whole(spoil):
    target = samples.target()
    containers = spoil(target)
    result = planned(target, *containers)
    assert result.keep is None
    assert result.remove == containers
    assert result.generation is not None
    assert result.generation.number == max(int(c.labels["spark_pipeline.generation"]) for c in containers) + 1


def test_ranks_that_never_joined_are_replaced_and_the_plan_says_so():
    target = samples.target()
    containers = (samples.container(target, 0), samples.container(target, 1))
    result = planned(target, *containers)
    assert result.remove == containers
    assert "never joined" in result.reasons[0]


def test_while_the_earlier_generation_holds_the_memory_the_share_is_an_estimate():
    target = samples.target()
    facts = {name: replace(item, memory_available_bytes=14 * 2**30) for name, item in samples.facts().items()}
    old = (samples.container(target, 0, spec_hash="0" * 16), samples.container(target, 1, spec_hash="0" * 16))
    result = plan(target, facts, Running(old), joined=None, others=(), last_number=0, run_id="run-1")
    assert result.generation is not None
    assert result.remove == old
    assert any("an estimate, measured anew" in reason for reason in result.reasons)


def test_a_model_that_fits_on_neither_node_alone_is_refused_with_the_smallest_layout_that_fits():
    target = samples.target()
    parallel = target.deployment.parallel.model_copy(update={"tensor": 1})
    alone = replace(
        target, deployment=target.deployment.model_copy(update={"parallel": parallel}), nodes=target.nodes[:1]
    )
    with pytest.raises(ClusterError) as caught:
        planned(alone)
    assert caught.value.node == "head"
    assert "125.0 GB of weights" in caught.value.observed
    assert "parallel: {tensor: 2}" in caught.value.remedy


def test_a_node_whose_driver_is_gone_is_refused():
    facts = samples.facts()
    facts["peer"] = replace(facts["peer"], gpu=None)
    with pytest.raises(ClusterError) as caught:
        plan(samples.target(), facts, Running(()), joined=None, others=(), last_number=0, run_id="run-1")
    assert caught.value.node == "peer"
    assert "nvidia-smi" in caught.value.remedy


def test_a_twin_that_leads_nowhere_is_left_out_and_named():
    facts = samples.facts()
    head = facts["head"]
    twin = next(hca for hca in head.infiniband if hca.device == "roceP2p1s0f1")
    lame = tuple(replace(hca, gid_index=None) if hca is twin else hca for hca in head.infiniband)
    facts["head"] = replace(head, infiniband=lame)
    result = plan(samples.target(), facts, Running(()), joined=None, others=(), last_number=0, run_id="run-1")
    assert result.generation is not None
    run = result.generation.ranks[0].run
    assert "NCCL_IB_HCA=rocep1s0f1" in run
    assert "NCCL_IB_GID_INDEX=3" in run
    assert "head: roceP2p1s0f1 is left out: enP2p1s0f1np1 has no IPv4 address of its own" in result.reasons


def test_a_twin_in_the_subnet_of_the_fabric_is_left_out():
    facts = samples.facts()
    head = facts["head"]
    same = tuple(
        replace(item, ipv4=("192.168.200.22/24",)) if item.name == "enP2p1s0f1np1" else item for item in head.interfaces
    )
    facts["head"] = replace(head, interfaces=same)
    result = plan(samples.target(), facts, Running(()), joined=None, others=(), last_number=0, run_id="run-1")
    assert result.generation is not None
    assert "NCCL_IB_HCA=rocep1s0f1" in result.generation.ranks[0].run
    assert any("in the fabric's own subnet" in reason for reason in result.reasons)


def test_a_generation_number_is_never_used_twice_even_after_everything_was_removed():
    result = planned(samples.target(), last_number=41)
    assert result.generation is not None
    assert result.generation.number == 42


def test_an_accelerator_that_another_deployment_uses_is_refused_by_name():
    target = samples.target()
    other = replace(samples.container(target, 0), name="sp-glm-g1-r0", labels={"spark_pipeline.deployment": "glm"})
    with pytest.raises(ClusterError) as caught:
        planned(target, others=(other,))
    assert caught.value.node == "head"
    assert "spark-pipeline stop glm" in caught.value.remedy


def test_the_hash_changes_with_what_is_asked_for_and_with_nothing_else():
    target = samples.target()
    same = samples.target()
    assert target.spec_hash == same.spec_hash
    other_commit = replace(target, weights=target.weights.model_copy(update={"commit": "e" * 40}))
    other_image = replace(target, image=target.image.model_copy(update={"fingerprint": "f" * 64}))
    other_tag_same_bytes = replace(target, image=target.image.model_copy(update={"declared": "vllm-node:latest"}))
    serve = target.deployment.serve.model_copy(update={"args": ("--enforce-eager",)})
    other_arguments = replace(target, deployment=target.deployment.model_copy(update={"serve": serve}))
    changed = {item.spec_hash for item in (target, other_commit, other_image, other_arguments)}
    assert len(changed) == 4
    assert other_tag_same_bytes.spec_hash == target.spec_hash


def test_free_memory_moves_the_utilization_but_not_the_hash():
    target = samples.target()
    facts = samples.facts()
    tight = {name: replace(item, memory_available_bytes=90 * 2**30) for name, item in facts.items()}
    result = plan(target, tight, Running(()), joined=None, others=(), last_number=0, run_id="run-1")
    assert result.generation is not None
    serve = result.generation.ranks[0].serve or ()
    share = float(serve[serve.index("--gpu-memory-utilization") + 1])
    assert share == 0.65  # (90 - 10) GiB of 121.7
    assert result.generation.spec_hash == target.spec_hash


def test_a_node_without_room_is_refused_with_the_numbers():
    facts = samples.facts()
    facts["peer"] = replace(facts["peer"], memory_available_bytes=9 * 2**30)
    with pytest.raises(ClusterError) as caught:
        plan(samples.target(), facts, Running(()), joined=None, others=(), last_number=0, run_id="run-1")
    assert caught.value.node == "peer"
    assert "9.7 GB available" in caught.value.observed
    assert "free memory there" in caught.value.remedy


def test_a_fabric_address_that_no_interface_carries_is_refused_with_what_there_is():
    facts = samples.facts()
    facts["peer"] = replace(facts["peer"], interfaces=facts["peer"].interfaces[:1])
    with pytest.raises(ClusterError) as caught:
        plan(samples.target(), facts, Running(()), joined=None, others=(), last_number=0, run_id="run-1")
    assert caught.value.node == "peer"
    assert "192.168.200.13" in caught.value.what


def test_the_commands_for_the_users_sparks_with_ray(snapshot):
    generation = planned(samples.target()).generation
    assert generation is not None
    assert shown(generation) == snapshot


def test_the_commands_for_the_users_sparks_with_mp(snapshot):
    generation = planned(samples.target(backend="mp")).generation
    assert generation is not None
    assert shown(generation) == snapshot


def shown(generation) -> str:
    """One word a line, flags with their value: to be read by people, against facts/spark_clusters.md B1, B2, B4."""
    lines: list[str] = []
    for rank in generation.ranks:
        for title, argv in (("run", rank.run), ("serve", rank.serve or ())):
            lines.append(f"[{rank.node}] {title}")
            for word in argv:
                if "\n" in word:
                    word = "<cluster/bootstrap.sh>"
                if word.startswith("-") or not lines[-1].lstrip().startswith("-") or " " in lines[-1].strip():
                    lines.append(f"    {word}")
                else:
                    lines[-1] += f" {word}"
    return "\n".join(lines)
