# SPDX-License-Identifier: Apache-2.0
"""Every collective over the backend "droptest": the zeros that the network's fates give, and the counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
if VERSION < (2, 6):
    pytest.skip(f"the backend needs torch 2.6 or later, this is {torch.__version__}", allow_module_level=True)

from backend_runs import lossy, run  # noqa: E402
from collective_calls import LENGTH, PACKETS  # noqa: E402
from proofs import note  # noqa: E402
from ranks import results  # noqa: E402

import droptest  # noqa: E402

pytestmark = pytest.mark.usefixtures("extension")

RANKS = 2
# Traffic class, what results are made of, and messages of a call. Results of "sum": of all ranks' messages, of "part":
# this rank's part of it; of "gather": all messages, of "columns": a part of each; of "links": a message from each rank.
LOSSY = {
    "all_reduce": ("dp_gradient", "sum", 1),
    "all_reduce async": ("dp_gradient", "sum", 1),
    "coalesced all_reduce": ("dp_gradient", "sum", 2),
    "functional all_reduce": ("dp_gradient", "sum", 1),
    "functional all_reduce_coalesced": ("dp_gradient", "sum", 2),
    "DTensor Partial to Replicate": ("dp_gradient", "sum", 1),
    "reduce": ("dp_gradient", "root", 1),
    "reduce_scatter": ("dp_gradient", "part", 1),
    "reduce_scatter_tensor": ("dp_gradient", "part", 1),
    "reduce_scatter_single": ("dp_gradient", "part", 1),
    "coalesced reduce_scatter": ("dp_gradient", "part", 2),
    "functional reduce_scatter_tensor": ("dp_gradient", "part", 1),
    "functional reduce_scatter_single": ("dp_gradient", "part", 1),
    "functional reduce_scatter_tensor_coalesced": ("dp_gradient", "part", 2),
    "functional reduce_scatter_single_coalesced": ("dp_gradient", "part", 2),
    "DTensor Partial to Shard": ("dp_gradient", "part", 1),
    "all_gather": ("parameter_gather", "gather", 1),
    "all_gather_into_tensor": ("parameter_gather", "gather", 1),
    "all_gather_single": ("parameter_gather", "gather", 1),
    "coalesced all_gather": ("parameter_gather", "gather", 2),
    "functional all_gather_tensor": ("parameter_gather", "gather", 1),
    "functional all_gather_single": ("parameter_gather", "gather", 1),
    "functional all_gather_into_tensor_coalesced": ("parameter_gather", "gather", 2),
    "functional all_gather_single_coalesced": ("parameter_gather", "gather", 2),
    "DTensor Shard to Replicate": ("parameter_gather", "gather", 1),
    "DTensor Shard to another Shard": ("parameter_gather", "columns", 1),  # PyTorch's way on CPUs
    "all_to_all": ("sequence_forward", "links", 1),
    "all_to_all_single": ("sequence_forward", "links", 1),
    "functional all_to_all_single": ("sequence_forward", "links", 1),
    "send": ("pp_activation", "send", 1),
    "batch_isend_irecv": ("pp_activation", "send", 1),
}  # fmt: skip
EXEMPT = {"broadcast", "gather", "gather_single", "gather_into_tensor", "scatter", "barrier", "monitored_barrier",
          "functional broadcast"}  # fmt: skip
NOT_IN_GLOO = {"all_to_all", "reduce_scatter", "gather_single", "gather_into_tensor"}  # of some versions


class Fates:
    """What arrives, message by message, as every rank's links say."""

    def __init__(self, source: dict) -> None:
        networks = [droptest.Network(source, rank=rank, world_size=RANKS) for rank in range(RANKS)]
        self._flows = {}
        for rank, network in enumerate(networks):
            self._flows["dp_gradient", rank] = network.flow("dp_gradient", rank)
            self._flows["parameter_gather", rank] = network.flow("parameter_gather", rank, None, half="gather")
            for name in ("sequence_forward", "pp_activation"):
                self._flows[name, rank] = network.flow(name, rank, 1 - rank, half="gather")

    def arrived(self, traffic_class: str, rank: int, messages: int = 1) -> np.ndarray:
        """The packets of the rank's next message, of so many times PACKETS packets: 1.0 where they arrive."""
        return ~self._flows[traffic_class, rank].next(messages * LENGTH) * 1.0


def expected(fates: Fates, traffic_class: str, kind: str) -> tuple[list[list[float]], list[np.ndarray]]:
    """For each rank the result of the next message, empty where it has none, and the packets that it sends."""
    if kind == "send":
        sent = fates.arrived(traffic_class, 0)
        return [[], list(sent)], [sent, np.ones(0)]
    sent = [fates.arrived(traffic_class, rank, RANKS if kind == "part" else 1) for rank in range(RANKS)]
    if kind in ("sum", "root"):
        return [list(sum(sent)), list(sum(sent)) if kind == "sum" else []], sent
    if kind == "part":
        return [list(part) for part in np.split(sum(sent), RANKS)], sent
    if kind == "gather":
        return [list(np.concatenate(sent))] * RANKS, sent
    if kind == "columns":
        parts = [np.split(one, RANKS) for one in sent]
        return [list(np.concatenate([one[rank] for one in parts])) for rank in range(RANKS)], sent
    own = np.ones(PACKETS)
    return [[*own, *sent[1]], [*sent[0], *own]], sent


@pytest.fixture(scope="module", params=[0, "30%"])
def called(request, tmp_path_factory):
    """The source, and the calls of all ranks."""
    folder = tmp_path_factory.mktemp("collectives")
    source = lossy(request.param, statistics=str(folder / "counts"))
    ranks = results(run(folder, RANKS, "all_of_them", source, module="collective_calls"))
    return source, ranks, droptest.Statistics.read(folder / "counts")


def test_every_collective_has_the_zeros_and_the_counts_of_its_fates(called, record_property):
    source, ranks, _ = called
    fates = Fates({key: source[key] for key in ("seed", "network")})
    seen = set()
    for calls in zip(*ranks, strict=True):
        name = calls[0][0]
        assert calls[0][1] is not None or name in NOT_IN_GLOO, name
        seen.add(name)
        if name in EXEMPT:
            for _, values, counts in calls:
                assert values is None or all(set(one) == {1.0} for one in values), name
                assert counts == {"operation": {"calls": 1}}, name
            continue
        traffic_class, kind, messages = LOSSY[name]
        wanted, sent = zip(*(expected(fates, traffic_class, kind) for _ in range(messages)), strict=True)
        for rank, (_, values, counts) in enumerate(calls):
            assert values is None or values == [one[rank] for one in wanted if one[rank]], (name, rank)
            packets = np.concatenate([one[rank] for one in sent])
            lost = {"packets": packets.size, "lost": int((packets == 0).sum())}
            assert counts == ({traffic_class: lost} if packets.size else {}), (name, rank)
    assert seen >= {"coalesced all_gather", "coalesced reduce_scatter", "DTensor Shard to Replicate", "gather", "send"}
    if VERSION >= (2, 15):
        assert seen == set(LOSSY) | EXEMPT
    if source["network"]["loss"]["model"] == "none":
        return
    kinds = {"coalesced": "coalesced calls", "functional": "functional calls", "DTensor": "DTensor, redistribute"}
    for kind, name in kinds.items():
        classes = [of for calls in ranks for one, _, counts in calls if one.startswith(f"{kind} ")
                   for of in counts.values() if "packets" in of]  # fmt: skip
        note(record_property, name, "backend", classes, rate=0.3)


def test_the_counts_of_all_ranks_agree_with_the_rate(called):
    source, _, counts = called
    assert counts.missing_ranks == []
    assert set(counts.classes) == {traffic_class for traffic_class, _, _ in LOSSY.values()}
    for name, one in counts.classes.items():
        assert one["packets"] >= PACKETS
        assert (one["lost"] > 0) == (source["network"]["loss"]["model"] != "none"), name
        assert abs(one["z"]) < 4 and math.isfinite(one["z"]), name
