"""How many workers the load needs, from the workers' own counts. Ray Serve's controller."""

import math
from typing import Any

from ray.serve.config import AutoscalingContext


def wanted_workers(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """So many that each has at most `target_ongoing_requests`, running and waiting.

    Serve itself would count only requests that it carries; the workers' bytes do not go through it.
    Delays and bounds are those of the AutoscalingConfig.
    """
    target = context.config.target_ongoing_requests
    reported = context.aggregated_metrics or {}
    total = sum(sum(values.values()) for values in reported.values())
    # Without any report (all workers start), nothing changes.
    if not reported:
        return context.target_num_replicas, {}
    return max(1, math.ceil(total / target)), {}
