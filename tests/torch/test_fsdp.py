# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with loss: nothing changes without loss, and gradients and parameters lose packets by their classes."""

import re

import pytest

torch = pytest.importorskip("torch")
from ranks import results, run_ranks  # noqa: E402
from training import bernoulli  # noqa: E402

VERSION = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
needs_custom = pytest.mark.skipif(VERSION < (2, 11), reason=f"needs torch 2.11, here is {torch.__version__}")


def network(rate, **classes):
    return {"network": {"loss": bernoulli(rate), "classes": classes}, "seed": 7}


@needs_custom
def test_without_loss_20_steps_have_the_bits_of_pytorch(tmp_path):
    plain = results(run_ranks(tmp_path, 3, "training:train_fsdp"))
    hooked = results(run_ranks(tmp_path, 3, "training:train_fsdp", source=network(0)))
    assert [one["digests"] for one in hooked] == [one["digests"] for one in plain]
    assert len(plain[0]["digests"]) == 20


@needs_custom
def test_gradients_alone_lose_packets_where_parameters_have_no_loss(tmp_path):
    source = network(0.3, parameter_gather={"loss": {"model": "none"}})
    plain = results(run_ranks(tmp_path, 2, "training:train_fsdp", steps=3))
    for one in results(run_ranks(tmp_path, 2, "training:train_fsdp", source=source, steps=3)):
        classes = one["record"]["classes"]
        assert classes["parameter_gather"]["packets"] > 0 and classes["parameter_gather"]["lost"] == 0
        assert classes["dp_gradient"]["lost"] > 0 and abs(classes["dp_gradient"]["z"]) <= 4
        assert one["digests"] != plain[0]["digests"]


@needs_custom
def test_the_all_reduce_between_replicas_is_counted_as_exempt(tmp_path):
    for one in results(run_ranks(tmp_path, 4, "training:train_fsdp", source=network(0.3), steps=3, replicas=2)):
        exempt = one["record"]["exempt"]
        assert {reason: counts["calls"] for reason, counts in exempt.items()} == {"no_loss_layer": 3 * 2}
        assert exempt["no_loss_layer"]["bytes"] > 3 * 4 * 200 * 200 / 2
        assert one["record"]["classes"]["dp_gradient"]["lost"] > 0


@pytest.mark.skipif(VERSION >= (2, 11), reason="this PyTorch has custom communication")
def test_versions_without_custom_communication_are_named():
    import droptest.torch

    class Sharded(torch.nn.Module):
        def unshard(self):
            pass

        def reshard(self):
            pass

    with pytest.raises(RuntimeError, match=r"FSDP2: got torch \S+, want 2.11 or later"):
        droptest.torch.fully_shard_hooks(Sharded(), None)


def test_a_model_that_is_not_sharded_is_refused():
    import droptest.torch

    with pytest.raises(ValueError, match=r"want fully_shard\(module\) before"):
        droptest.torch.fully_shard_hooks(torch.nn.Linear(2, 2), None)
