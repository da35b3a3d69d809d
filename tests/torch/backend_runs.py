# SPDX-License-Identifier: Apache-2.0
"""Runs of programs with the backend "droptest", and the results that the host's fates give them."""

from __future__ import annotations

import json

from ranks import run_ranks

import droptest

ELEMENTS = 20000


def lossy(rate, **more) -> dict:
    loss = {"model": "bernoulli", "loss_rate": rate} if rate else {"model": "none"}
    return {"seed": 7, "network": {"loss": loss}, **more}


def run(folder, world_size, program, source=None, backend="droptest", module="backend_programs", **arguments):
    variables = {}
    if source is not None:
        (folder / "network.json").write_text(json.dumps(source))
        variables["DROPTEST_NETWORK"] = str(folder / "network.json")
    variables.update(arguments.pop("variables", {}))
    return run_ranks(folder, world_size, f"{module}:{program}", backend=backend, variables=variables,
                     **arguments)  # fmt: skip


def lost_elements(source, rank, world_size, *link, messages=1, elements=ELEMENTS, **group):
    """Which elements of the last of so many messages the host loses."""
    network = droptest.Network(source, rank=rank, world_size=world_size)
    flow = network.flow(*link, **group)
    for _ in range(messages):
        packets = flow.next(elements)
    return packets.repeat(1408 // 4)[:elements]


def expect_fates(ranks, source, all_to_all="sequence_forward"):
    """Results of `collectives` of two ranks, with fill zero. all_to_all: class of these messages."""
    arrived = [~lost_elements(source, rank, 2, "dp_gradient", rank) for rank in (0, 1)]
    again = [~lost_elements(source, rank, 2, "dp_gradient", rank, messages=2) for rank in (0, 1)]
    gathered = [~lost_elements(source, rank, 2, "parameter_gather", rank, None, half="gather") for rank in (0, 1)]
    gathered_again = [
        ~lost_elements(source, rank, 2, "parameter_gather", rank, None, half="gather", messages=2) for rank in (0, 1)
    ]
    for rank, found in enumerate(ranks):
        assert found["all_reduce"] == (arrived[0] * 1.0 + arrived[1]).tolist()
        assert found["second"] == (again[0] * 1.0 + again[1]).tolist()
        assert found["second"] != found["all_reduce"]
        assert found["all_gather"] == [*(gathered[0] * 1.0), *(gathered[1] * 1.0)]
        assert found["all_gather_list"] == [*(gathered_again[0] * 1.0), *(gathered_again[1] * 1.0)]
        assert set(found["inputs_kept"]) == set(found["ones_kept"]) == {1.0}
        other = ~lost_elements(source, 1 - rank, 2, all_to_all, 1 - rank, rank, half="gather")
        parts = [other * 1.0, other * 0 + 1.0] if rank else [other * 0 + 1.0, other * 1.0]
        assert found["all_to_all"] == [*parts[0], *parts[1]]
    messages = 1 + (all_to_all == "pp_activation")
    sent = ~lost_elements(source, 0, 2, "pp_activation", 0, 1, half="gather", messages=messages)
    assert ranks[1]["received"] == (sent * 1.0).tolist()
    assert 0 < sent.mean() < 1


def expect_scaled(ranks, fill):
    """Sums of `collectives` of two ranks. Of two ones, none, one or both arrive."""
    values = {"count_rescale": {0.0, 2.0}, "inverse_probability": {0.0, 2.0, 4.0}}[fill]
    for found in ranks:
        for sums in (found["all_reduce"], found["second"], found["reduce_scatter"]):
            assert set(sums) == values


def expect_losses(ranks, plain, folder):
    """After five steps each training has other weights than without loss, and the record of all ranks has counts that
    agree with the rate."""
    for rank, without in zip(ranks, plain, strict=True):
        assert [name for name, digests in rank.items() if digests[4] == without[name][4]] == []
    counts = droptest.Statistics.read(folder)
    assert counts.missing_ranks == []
    assert {"dp_gradient", "parameter_gather", "pp_activation"} <= set(counts.classes)
    assert all(one["lost"] > 0 and abs(one["z"]) < 5 for one in counts.classes.values())
