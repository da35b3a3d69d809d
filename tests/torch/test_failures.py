# SPDX-License-Identifier: Apache-2.0
"""Failures of one rank: one clear error with the rank and the key, and no rank that hangs."""

import pytest

pytest.importorskip("torch")
from ranks import run_ranks
from training import bernoulli


def test_a_mistake_in_the_json_names_rank_and_key_on_each_rank(tmp_path):
    file = tmp_path / "net.json"
    file.write_text('{"network": {"loss": {"model": "bernoulli", "loss_rat": 0.1}}}')
    for rank, one in enumerate(run_ranks(tmp_path, 2, "training:train_ddp", source=str(file))):
        assert one.status != 0
        assert f"rank {rank} of 2: {file}: /network/loss/loss_rat: got an unknown key" in one.errors


def test_an_exception_in_the_hook_ends_every_rank(tmp_path):
    source = {"network": {"loss": bernoulli(0), "gather": {"loss": bernoulli(0.5)}}}
    ended = run_ranks(tmp_path, 2, "failing:hook_of_one_rank", source=source)
    assert all(one.status != 0 for one in ended)
    assert "rank 1 of 2: class dp_gradient: got a sum, but /network/gather/loss loses results" in ended[1].errors


def test_a_killed_rank_ends_the_others_and_is_missing_in_the_record(tmp_path):
    source = {"network": {"loss": bernoulli(0.1)}, "statistics": str(tmp_path / "statistics")}
    killed, survivor = run_ranks(tmp_path, 2, "failing:killed_rank", source=source)
    assert killed.status == -9
    assert survivor.status != 0 and survivor.errors
    assert survivor.result["missing"] == [0]


def test_a_network_of_another_world_is_refused(tmp_path):
    for rank, one in enumerate(run_ranks(tmp_path, 2, "failing:other_world")):
        assert one.status != 0
        assert f"rank {rank} of 2: network: got one of rank 0 of 1; make it after init_process_group" in one.errors
