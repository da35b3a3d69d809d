# SPDX-License-Identifier: Apache-2.0
"""The links that a traffic class of a run uses, by the run's layout (docs/parallelism.md).

Statistics of a finished run have its rates; these links are for runs that have none yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from droptest.files import object_of

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
Links = list[tuple[int, int | None]]


def links_of(traffic_class: str, half: str, spec: dict[str, Any]) -> Links:
    """(source, destination) of each link on which a half ("reduce", "gather") of the class has packets; of all pairs of
    ranks for a class that is not known. A destination of None is the point at which the path "contribution" adds up.
    Empty where the links are not known here: of other paths than that, "direct" and "ring", and of paths by size.

    spec: the resolved spec. Each rank of a dilated attention is taken to need tokens of all earlier ranks.
    """
    parallel = object_of(spec.get("parallel"))
    places = _places(parallel)
    differ = GROUPS.get(traffic_class, DIMENSIONS)
    is_exchange = traffic_class.startswith("sequence_")
    if parallel.get("tensor_sequence") and traffic_class == "sequence_backward":
        differ, is_exchange = ("tensor",), False
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, at in enumerate(places):
        groups.setdefault(tuple(at[name] for name in DIMENSIONS if name not in differ), []).append(rank)
    found: Links = []
    for members in groups.values():
        # The order of a group on the path "ring", whatever the order of the ranks.
        members.sort(key=lambda rank: [places[rank][name] for name in ("data", "tensor", "sequence", "pipeline")])
        if traffic_class in ("pp_activation", "pp_gradient"):
            found += _between_stages(traffic_class, members, parallel)
        elif is_exchange:
            found += _exchange(traffic_class, members, spec)
        else:
            found += _collective(traffic_class, half, members, spec)
    return sorted(found, key=lambda link: (link[0], -1 if link[1] is None else link[1]))


def _places(parallel: dict[str, Any]) -> list[dict[str, int]]:
    """The place of each rank in every dimension."""
    extents = {name: int(parallel.get(name, 1)) for name in DIMENSIONS}
    order = parallel.get("order", DIMENSIONS)
    # The dimension with the largest distance between ranks comes first in the product.
    return [dict(zip(reversed(order), at, strict=True))
            for at in itertools.product(*(range(extents[name]) for name in reversed(order)))]  # fmt: skip


def _neighbours(members: Sequence[int], step: int = 1) -> Links:
    """From each member to the next one, and from the last to the first."""
    pairs = [(rank, members[(i + step) % len(members)]) for i, rank in enumerate(members)]
    return [(source, destination) for source, destination in pairs if source != destination]


def _pairs(members: Sequence[int]) -> Links:
    return list(itertools.permutations(members, 2))


def _between_stages(traffic_class: str, members: Sequence[int], parallel: dict[str, Any]) -> Links:
    """From stage to stage. With several chunks on each rank the last one sends to the first one, too."""
    step = 1 if traffic_class == "pp_activation" else -1
    if int(parallel.get("chunks", 1)) > 1:
        return _neighbours(members, step)
    forward = list(itertools.pairwise(members))
    return forward if step > 0 else [(destination, source) for source, destination in forward]


def _exchange(traffic_class: str, members: Sequence[int], spec: dict[str, Any]) -> Links:
    """Attention over the ranks of a sequence: all-to-all in each group of Ulysses, and rings over these groups."""
    if object_of(object_of(spec.get("model")).get("attention")).get("kind") == "dilated":
        earlier = list(itertools.combinations(members, 2))
        return earlier if traffic_class == "sequence_forward" else [(later, rank) for rank, later in earlier]
    kind = object_of(spec["parallel"].get("sequence_kind"))
    ulysses = int(kind.get("ulysses", len(members)))
    groups = [members[i : i + ulysses] for i in range(0, len(members), ulysses)]
    within = [link for group in groups for link in _pairs(group)]
    return within + [link for ring in zip(*groups, strict=True) for link in _neighbours(ring)]


def _collective(traffic_class: str, half: str, members: Sequence[int], spec: dict[str, Any]) -> Links:
    """A collective over the members of a group."""
    network = object_of(object_of(object_of(spec.get("network")).get("classes")).get(traffic_class))
    path = network.get("path", "direct")
    if network.get("sized_paths") or path not in ("direct", "ring", "contribution"):
        return []
    sources = members
    if traffic_class == "embedding_gradient":
        members = sources = [members[0], members[-1]]
        if int(spec.get("numerics_version", 1)) > 1:  # the last stage owns the embedding
            first_sends = members[:1] if path != "contribution" else members
            sources = first_sends if half == "reduce" else members[1:]
    if path == "contribution":
        return [(rank, None) for rank in sources] if len(members) > 1 else []
    links = _neighbours(members) if path == "ring" else _pairs(members)
    return [link for link in links if link[0] in sources]
