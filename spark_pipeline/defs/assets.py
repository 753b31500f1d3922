"""One deployment's journey as software-defined assets, and the page that shows where it led.

                           ┌─> model_weights ─┐
    compatibility_report ──┤                  ├─> ray_cluster ─> serving_endpoint ─> benchmark_results ─> dashboard
                           └─> vllm_image ────┘

Not partitioned: Dagster plots numbers over time for unpartitioned assets only.
"""

# No `from __future__ import annotations` here: Dagster reads the types of `config` from the functions themselves.
from collections.abc import Iterator

import dagster as dg

from spark_pipeline.benchmark import stage as benchmark
from spark_pipeline.cluster import stage as cluster
from spark_pipeline.compatibility import stage as compatibility
from spark_pipeline.defs import metadata
from spark_pipeline.defs.config import BenchmarkConfig, CompatibilityConfig, ImageConfig, WeightsConfig
from spark_pipeline.defs.jobs import DASHBOARD_KEY, asset_key
from spark_pipeline.defs.run import changing_fleet, failure
from spark_pipeline.errors import SparkPipelineError, WeightsError
from spark_pipeline.image import stage as image
from spark_pipeline.serving import stage as serving
from spark_pipeline.spec.deployment import Deployment
from spark_pipeline.spec.project import Project
from spark_pipeline.weights import stage as weights
from spark_pipeline.weights.checks import COMPLETE, PROVEN, ROOM

WEIGHTS_CHECKS = {
    COMPLETE: "Every file of the manifest is on every node.",
    PROVEN: "Every file was read by its own node and has the digest that the hub names.",
    ROOM: "Another revision of this model would fit on every node's disk.",
}


def deployment_assets(project: Project, deployment: Deployment) -> list[dg.AssetsDefinition]:
    """The assets `[deployment, stage]` of one deployment, in the order of the journey."""
    name, fleet = deployment.name, deployment.fleet

    @dg.asset(
        key=asset_key(name, "compatibility_report"),
        group_name=name,
        kinds={"huggingface", "docker"},
        pool=f"image_{fleet}",
        description="Which image can serve the model on these machines, and how: asked before anything is paid for.",
    )
    def compatibility_report(context: dg.AssetExecutionContext, config: CompatibilityConfig) -> dg.MaterializeResult:
        with changing_fleet(context, project, name) as session:
            return metadata.of_compatibility(
                compatibility.ensure(session, revision=config.revision, digest=config.digest, image=config.image)
            )

    @dg.asset(
        key=asset_key(name, "model_weights"),
        group_name=name,
        kinds={"huggingface"},
        deps=[compatibility_report],
        check_specs=[
            dg.AssetCheckSpec(check, asset=asset_key(name, "model_weights"), description=about)
            for check, about in WEIGHTS_CHECKS.items()
        ],
        pool=f"weights_{fleet}",
        description=f"Files of {deployment.model.repo} at one commit, verified by sha256 on every node.",
    )
    def model_weights(
        context: dg.AssetExecutionContext, config: WeightsConfig
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        with changing_fleet(context, project, name) as session:
            try:
                result = weights.ensure(session, revision=config.revision, rehash=config.rehash)
            except WeightsError as error:
                # Yielded and not logged: what a step has logged is lost when it then raises.
                yield from metadata.of_failed_weights(error)
                raise
        yield metadata.of_weights(result)

    @dg.asset(
        key=asset_key(name, "vllm_image"),
        group_name=name,
        kinds={"docker"},
        deps=[compatibility_report],
        pool=f"image_{fleet}",
        description="The engine's container image, the same on every node by layers and configuration.",
    )
    def vllm_image(context: dg.AssetExecutionContext, config: ImageConfig) -> dg.MaterializeResult:
        with changing_fleet(context, project, name) as session:
            return metadata.of_image(image.ensure(session, digest=config.digest))

    @dg.asset(
        key=asset_key(name, "ray_cluster"),
        group_name=name,
        kinds={"ray"},
        deps=[model_weights, vllm_image],
        pool=f"fleet_{fleet}",
        description="One container a node, joined by Ray or by the engine's own multi-node mode.",
    )
    def ray_cluster(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with changing_fleet(context, project, name) as session:
            return metadata.of_cluster(cluster.ensure(session))

    @dg.asset(
        key=asset_key(name, "serving_endpoint"),
        group_name=name,
        kinds={"vllm", "openai"},
        deps=[ray_cluster],
        pool=f"fleet_{fleet}",
        description=f"OpenAI-compatible API that answers as {deployment.serve.served_name}, proven by one completion.",
    )
    def serving_endpoint(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with changing_fleet(context, project, name) as session:
            return metadata.of_serving(serving.ensure(session))

    @dg.asset(
        key=asset_key(name, "benchmark_results"),
        group_name=name,
        kinds={"vllm"},
        deps=[serving_endpoint],
        pool=f"fleet_{fleet}",
        description="`vllm bench serve` against the endpoint, every number tied to image, revision and arguments.",
    )
    def benchmark_results(context: dg.AssetExecutionContext, config: BenchmarkConfig) -> dg.MaterializeResult:
        with changing_fleet(context, project, name) as session:
            return metadata.of_benchmark(benchmark.ensure(session, force=config.force))

    return [compatibility_report, model_weights, vllm_image, ray_cluster, serving_endpoint, benchmark_results]


def benchmark_dashboard(project: Project) -> dg.AssetsDefinition:
    """One page over all deployments."""

    @dg.asset(
        key=DASHBOARD_KEY,
        group_name="reports",
        kinds={"plotly", "html"},
        deps=[asset_key(name, "benchmark_results") for name in sorted(project.deployments)],
        description="The history of all measurements as one self-contained HTML page.",
    )
    def dashboard() -> dg.MaterializeResult:
        from spark_pipeline.benchmark import report  # brings plotly, 0.2 s that no other step should pay

        try:
            return metadata.of_dashboard(report.write_report(project))
        except SparkPipelineError as error:
            raise failure(error) from error

    return dashboard
