# SPDX-License-Identifier: Apache-2.0
"""What the table "Tested versions" of docs/pytorch.md says of each way to train: PyTorch's own bits without loss; with
loss the network's rate and fates on every rank, and counts of all of them."""

import json
import re
from functools import cache

import pytest

torch = pytest.importorskip("torch")
from backend_runs import lossy, run  # noqa: E402
from proofs import note  # noqa: E402
from ranks import results, run_ranks  # noqa: E402
from training import DDP_KINDS  # noqa: E402

import droptest  # noqa: E402

VERSION = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
RATE, STEPS, RANKS = "20%", 20, 2
# Name -> function, and its arguments.
TRAININGS = {
    **{f"DDP, {kind}": ("training:train_ddp", {"kind": kind}) for kind in DDP_KINDS},
    "FSDP2, fp32": ("training:train_fsdp", {"precision": "fp32"}),
    "FSDP2, bf16": ("training:train_fsdp", {"precision": "bf16"}),
    "DTensor": ("backend_programs:train_tensor_parallel", {}),
    "pipeline": ("backend_programs:train_pipeline", {}),
}
WAYS = [(name, by) for name in TRAININGS for by in ("hook", "backend")
        if by == "backend" or name.startswith(("DDP", "FSDP2"))]  # fmt: skip


def why_not(name, by):
    if by == "backend" and VERSION < (2, 6):
        return "the backend needs torch 2.6"
    if name.startswith("FSDP2") and by == "hook" and VERSION < (2, 11):
        return "FSDP2's custom communication needs torch 2.11"
    if name.startswith("FSDP2") and not hasattr(torch.cpu.Stream, "record_event"):
        return "FSDP2 of this PyTorch does not run on CPUs"
    return None


def digests(folder, name, by=None, source=None):
    """Of the weights after each step, by rank. by None: PyTorch alone."""
    folder.mkdir(exist_ok=True)
    function, arguments = TRAININGS[name]
    if by == "backend":
        module, function = function.split(":")
        ranks = run(folder, RANKS, function, source, module=module, steps=STEPS, **arguments)
    else:
        arguments = arguments | ({"source": source} if by else {})
        ranks = run_ranks(folder, RANKS, function, steps=STEPS, **arguments)
    return [one["digests"] for one in results(ranks)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return cache(lambda name: digests(tmp_path_factory.mktemp("plain"), name))


def expect_fates_of_the_network(record, source):
    """Those of every link are what another rank of such a network draws."""
    assert record["links"]
    for link in record["links"]:
        other = droptest.Network({key: source[key] for key in ("network", "seed")}, rank=1 - link["source"],
                                 world_size=RANKS)  # fmt: skip
        to_all = link["destination"] is None
        flow = other.flow(link["class"], link["source"], link["destination"], half=link["half"], counted=to_all)
        flow.verify(link["packets"], int(link["digest"], 16))


@pytest.mark.parametrize(("name", "by"), WAYS)
def test_a_training_has_pytorchs_bits_without_loss_and_the_networks_fates_with_it(
    name, by, plain, tmp_path, request, record_property
):
    if reason := why_not(name, by):
        pytest.skip(reason)
    if by == "backend":
        request.getfixturevalue("extension")
    assert digests(tmp_path / "lossless", name, by, lossy(0, statistics=str(tmp_path / "lossless"))) == plain(name)
    assert all(len(set(of_rank)) == STEPS for of_rank in plain(name))
    lossless = droptest.Statistics.read(tmp_path / "lossless")
    source = lossy(RATE, statistics=str(tmp_path / "lossy"))
    ranks = digests(tmp_path / "lossy", name, by, source)
    record = json.loads((tmp_path / "lossy/loss_statistics.json").read_text())
    assert record["ranks"] == {"world_size": RANKS, "missing": []}
    assert [one[-1] for one in ranks] != [one[-1] for one in plain(name)]
    if name.startswith("DDP"):
        assert ranks[0] == ranks[1]
    expect_fates_of_the_network(record, source)
    for traffic_class, counts in record["classes"].items():
        assert counts["packets"] == lossless.classes[traffic_class]["packets"] > 0
        assert lossless.classes[traffic_class]["lost"] == 0 < counts["lost"]
        assert abs(counts["z"]) < 4
    assert "no_loss_layer" not in record["exempt"]
    note(record_property, name, by, record["classes"].values())
