# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed and Megatron on two ranks over the backend: PyTorch's own bits without loss; with loss the rate, the
traffic classes of their collectives, and the counts."""

from importlib import metadata

import pytest

pytest.importorskip("torch")
from proofs import note
from test_frameworks import LOSSLESS, NETWORK, RANKS, STEPS, runnable, trained

TRAININGS = {
    "ZeRO 0": ("deepspeed_zero", "deepspeed", ("--stage", 0), {"dp_gradient"}),
    "ZeRO 1": ("deepspeed_zero", "deepspeed", ("--stage", 1), {"dp_gradient", "parameter_gather"}),
    "ZeRO 2": ("deepspeed_zero", "deepspeed", ("--stage", 2), {"dp_gradient", "parameter_gather"}),
    "ZeRO 3": ("deepspeed_zero", "deepspeed", ("--stage", 3), {"dp_gradient", "parameter_gather"}),
    "Megatron DDP": ("megatron_ddp", "megatron-core", ("--sharded", 0), {"dp_gradient"}),
    "Megatron distributed optimizer": ("megatron_ddp", "megatron-core", ("--sharded", 1),
                                       {"dp_gradient", "parameter_gather"}),
}  # fmt: skip


EXEMPT = {  # by the program and the number of its classes
    ("deepspeed_zero", 1): {"operation", "small"},
    ("deepspeed_zero", 2): {"operation", "small"},
    ("megatron_ddp", 1): {"integer", "one_rank"},
    ("megatron_ddp", 2): {"integer", "small"},
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_sharded_training_has_pytorchs_bits_without_loss_and_the_networks_rate_with_it(
    name, tmp_path, record_property
):
    program, package, options, classes = TRAININGS[name]
    runnable(program, "droptest")
    plain, _ = trained(tmp_path / "plain", program, options=options)
    assert len(plain[0]) == STEPS
    ranks, record = trained(tmp_path / "lossless", program, network=LOSSLESS, options=options)
    assert ranks == plain
    assert set(record["classes"]) == classes and all(counts["lost"] == 0 for counts in record["classes"].values())
    ranks, record = trained(tmp_path / "lossy", program, network=NETWORK, options=options)
    assert ranks[0][0] != plain[0][0]
    assert set(record["classes"]) == classes
    exempt = {reason for reason, calls in record["exempt"].items() if calls["calls"]}
    assert exempt == EXEMPT[program, len(classes)]
    for counts in record["classes"].values():
        assert abs(counts["z"]) < 4 and counts["configured_rate"] == 0.05
    assert record["ranks"] == {"world_size": RANKS, "missing": []}
    model_bytes = parameter_bytes(plain, classes)
    gradients = record["classes"]["dp_gradient"]["bytes"]
    assert RANKS * STEPS * model_bytes <= gradients < 1.01 * RANKS * STEPS * model_bytes  # Megatron pads its buckets
    if name != "ZeRO 3" and "parameter_gather" in classes:  # of each rank's part
        gathered = record["classes"]["parameter_gather"]["bytes"]
        assert STEPS * model_bytes <= gathered < 1.01 * STEPS * model_bytes
    if len(classes) == 1:
        assert ranks[0] == ranks[1]  # what is lost is lost for all
    note(record_property, f"{name}, {package} {metadata.version(package)}", "backend", record["classes"].values())


def parameter_bytes(ranks, classes):
    """Of the whole model. Where the optimizer is sharded, each rank has its own part of it."""
    of_ranks = [int(lines[0].split()[0]) for lines in ranks]
    return of_ranks[0] if classes == {"dp_gradient"} else sum(of_ranks)
