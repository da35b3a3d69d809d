# SPDX-License-Identifier: Apache-2.0
"""The links that a traffic class of a run uses, by the run's layout (docs/parallelism.md).

Statistics of a finished run have its rates; these links are for runs that have none yet.
"""

from __future__ import annotations

import itertools
from typing import Any

# In the default order: ranks that differ in the first one are next to each other.
DIMENSIONS = ("pipeline", "sequence", "tensor", "data")
REPLICAS = ("data", "sequence")
# The dimensions in which the ranks of a group of the class differ.
GROUPS = {
    **dict.fromkeys(("tp_forward", "tp_backward", "tp_recomputation"), ("tensor",)),
    **dict.fromkeys(("dp_gradient", "parameter_gather", "outer"), REPLICAS),
    **dict.fromkeys(("pp_activation", "pp_gradient", "embedding_gradient"), ("pipeline",)),
    "sequence_forward": ("sequence",),
    "sequence_backward": ("sequence",),
}


def links_of(traffic_class: str, parallel: dict[str, Any]) -> list[tuple[int, int]]:
    """(source, destination) of each link of the class; of all ranks for a class that is not known.

    parallel: that of a resolved spec.
    """
    extents = {name: int(parallel.get(name, 1)) for name in DIMENSIONS}
    order = parallel.get("order", DIMENSIONS)
    differ = GROUPS.get(traffic_class, DIMENSIONS)
    if traffic_class == "sequence_backward" and parallel.get("tensor_sequence"):
        differ = ("sequence", "tensor")
    # The dimension with the largest distance between ranks comes first in the product.
    places = [dict(zip(reversed(order), at, strict=True))
              for at in itertools.product(*(range(extents[name]) for name in reversed(order)))]  # fmt: skip
    return [
        (source, destination)
        for source, at in enumerate(places)
        for destination, to in enumerate(places)
        if source != destination
        and all(name in differ or at[name] == to[name] for name in DIMENSIONS)
        and _sends(traffic_class, at["pipeline"], to["pipeline"], parallel)
    ]


def _sends(traffic_class: str, stage: int, to: int, parallel: dict[str, Any]) -> bool:
    """Whether a rank with one place in the pipeline sends messages of the class to one with the other."""
    last = int(parallel.get("pipeline", 1)) - 1
    if traffic_class == "embedding_gradient":
        return {stage, to} == {0, last}
    if traffic_class not in ("pp_activation", "pp_gradient"):
        return True
    if int(parallel.get("chunks", 1)) > 1:  # several stages on each rank
        return abs(stage - to) in (1, last)
    return to - stage == (1 if traffic_class == "pp_activation" else -1)
