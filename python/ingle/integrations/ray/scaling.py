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
    wanted = max(1, math.ceil(total / target))
    # A worker without a report may have any load: the others can ask for more, not for less.
    num_reports = min((len(values) for values in reported.values()), default=0)
    if num_reports < max(1, len(context.running_replicas)):
        wanted = max(wanted, context.target_num_replicas)
    return wanted, {}
