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
@pytest.mark.parametrize("is_accumulated", [False, True])
def test_hybrid_sharding_without_loss_has_the_bits_of_pytorch(tmp_path, is_accumulated):
    words = {"steps": 5, "replicas": 2, "is_accumulated": is_accumulated}
    plain = results(run_ranks(tmp_path, 4, "training:train_fsdp", **words))
    hooked = results(run_ranks(tmp_path, 4, "training:train_fsdp", source=network(0), **words))
    assert [one["digests"] for one in hooked] == [one["digests"] for one in plain]
    collectives = 2 * 5 * (3 if is_accumulated else 2)  # modules, steps, and the calls of a step
    assert {one["record"]["classes"]["dp_gradient"]["collectives"] for one in hooked} == {collectives}
    assert {len(one["record"]["exempt"]) for one in hooked} == {0}


@needs_custom
def test_hybrid_sharding_loses_packets_in_the_reduce_scatter_and_in_the_all_reduce(tmp_path):
    source = network(0.3, parameter_gather={"loss": {"model": "none"}})
    ended = results(run_ranks(tmp_path, 4, "training:train_fsdp", source=source, steps=3, replicas=2))
    for rank, one in enumerate(ended):
        assert one["digests"] == ended[(rank + 2) % 4]["digests"]  # replicas stay equal
        counts = one["record"]["classes"]["dp_gradient"]
        assert counts["collectives"] == 3 * 2 * 2 and abs(counts["z"]) <= 4 and counts["lost"] > 0
    assert ended[0]["digests"] != ended[1]["digests"]


@needs_custom
@pytest.mark.parametrize("is_accumulated", [False, True])
@pytest.mark.parametrize("operation", ["reduce_scatter", "all_reduce"])
def test_each_collective_of_hybrid_sharding_loses_all_where_it_alone_loses_all(tmp_path, operation, is_accumulated):
    other = {"reduce_scatter": "all_reduce", "all_reduce": "reduce_scatter"}[operation]
    rules = [{"operation": name, "class": "control"} for name in (other, "all_gather")]
    source = {"network": {"loss": bernoulli(1)}, "rules": rules}
    for one in results(
        run_ranks(tmp_path, 4, "training:hybrid_gradients", source=source, is_accumulated=is_accumulated)
    ):
        assert set(one["values"]) == {0}


@needs_custom
@pytest.mark.parametrize(("fill", "values"), [("zero", {0, 0.75, 1.75, 2.5}), ("count_rescale", {0, 1.5, 3.5, 2.5})])
def test_the_mean_of_the_replicas_is_that_of_the_contributions_that_arrive(tmp_path, fill, values):
    """Ranks 0 and 1 have the shards of one replica, whose mean is 1.5; 2 and 3 those of the other one, 3.5."""
    rules = [{"operation": name, "class": "control"} for name in ("reduce_scatter", "all_gather")]
    source = {"network": {"loss": bernoulli(0.4), "fill": fill}, "seed": 3, "rules": rules}
    ended = results(run_ranks(tmp_path, 4, "training:hybrid_gradients", source=source))
    assert set().union(*(one["values"] for one in ended)) == values
    assert ended[0]["values"] == ended[2]["values"] and ended[1]["values"] == ended[3]["values"]


@needs_custom
def test_replicas_of_one_shard_are_refused(tmp_path):
    for text in results(run_ranks(tmp_path, 2, "training:replicas_of_one_shard")):
        assert "with 2 replicas of one shard each, for which FSDP2 has no custom communication; want 2 shards" in text


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
