"""ingle on Ray Serve (`pip install ingle[ray]`): N workers behind one address.

    from ray import serve
    from ingle.integrations.ray import build_app

    serve.run(build_app("/models/llama", min_workers=1, max_workers=4, device="cuda"))

Each worker is an `ingle serve` process of its own, locked down as always, that a Serve replica
starts and watches. The front, a second deployment, reads each request, lets Ray's request router
choose a worker by prefix (router.py), and passes the worker's bytes on. docs/SCALING.md has the
figures, and what to run where.
"""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from ingle.integrations.ray.front import Front
from ingle.integrations.ray.scaling import wanted_workers
from ingle.integrations.ray.worker import Worker

__all__ = ["app", "build_app"]

ROUTER = "ingle.integrations.ray.router.PrefixRouter"


def build_app(
    model: str,
    *,
    min_workers: int = 1,
    max_workers: int = 1,
    fronts: int = 1,
    worker_resources: Mapping[str, Any] | None = None,
    requests_per_worker: int = 64,
    scale_up_delay_s: float = 5.0,
    scale_down_delay_s: float = 120.0,
    drain_s: float = 30.0,
    router: str = ROUTER,
    **settings: Any,
) -> serve.Application:
    """An application for `serve.run`.

    `settings` are those of `ingle serve`, by their Python names (`max_num_seqs=64`); `model` must
    be readable on every node. `worker_resources` are Ray's actor options of a worker, such as
    `{"num_gpus": 1}`. With `max_workers` above `min_workers` the number follows the workers' own
    counts of running and waiting requests, `requests_per_worker` each. A worker that is taken away
    may finish its requests for `drain_s` seconds. `router` is the class that chooses workers.
    """
    delays = {"upscale_delay_s": scale_up_delay_s, "downscale_delay_s": scale_down_delay_s}
    scaling = AutoscalingConfig(
        min_replicas=min_workers,
        initial_replicas=min_workers,
        max_replicas=max(min_workers, max_workers),
        target_ongoing_requests=requests_per_worker,
        policy=AutoscalingPolicy(policy_function=wanted_workers),
        metrics_interval_s=1.0,
        look_back_period_s=2.0,
        **delays,
    )
    workers = serve.deployment(
        Worker,
        name="IngleWorker",
        ray_actor_options=dict(worker_resources or {"num_cpus": 0}),
        autoscaling_config=scaling,
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=drain_s + 10,
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        request_router_config=RequestRouterConfig(
            request_router_class=router,
            request_routing_stats_period_s=1.0,
        ),
    )
    front = serve.deployment(
        Front,
        name="IngleFront",
        num_replicas=fronts,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=10_000,
    )
    return front.bind(workers.bind(model, drain_s, settings))


def app(args: dict[str, Any]) -> serve.Application:
    """The same for the `import_path` of a RayService, whose `args` come as one dict."""
    return build_app(**args)
