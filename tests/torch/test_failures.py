# SPDX-License-Identifier: Apache-2.0
"""Failures of one rank: one clear error with the rank and the key, and no rank that hangs."""

import pytest

pytest.importorskip("torch")
from ranks import results, run_ranks
from training import bernoulli


def test_a_mistake_in_the_json_names_rank_and_key_on_each_rank(tmp_path):
    file = tmp_path / "net.json"
    file.write_text('{"network": {"loss": {"model": "bernoulli", "loss_rat": 0.1}}}')
    for rank, one in enumerate(run_ranks(tmp_path, 2, "training:train_ddp", source=str(file))):
        assert one.status != 0
        assert f"rank {rank} of 2: {file}: /network/loss/loss_rat: got an unknown key" in one.errors


def test_an_exception_in_the_hook_ends_every_rank(tmp_path):
    ended = run_ranks(tmp_path, 2, "failing:hook_of_one_rank", source={"network": {"loss": bernoulli(0)}})
    assert all(one.status != 0 for one in ended)
    assert "rank 1 of 2: network: got a closed one" in ended[1].errors


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


def test_ranks_with_different_seeds_are_an_error_that_names_them_on_each_rank(tmp_path):
    of_all = "mismatch: rank {0} of 4: network: /seed is {1} on rank {0} and {3} on rank {2}: want one network section"
    for rank, texts in enumerate(results(run_ranks(tmp_path, 4, "failing:different_networks", member="seed"))):
        other = 1 if rank == 0 else 0
        assert texts[0].startswith(of_all.format(rank, 1 + rank, other, 1 + other))
        if rank >= 2:
            other = 5 - rank
            assert texts[1].startswith(of_all.format(rank, 1 + rank, other, 1 + other))


def test_ranks_with_different_losses_are_an_error_that_names_the_first_member(tmp_path):
    place = "network: /classes/dp_gradient/reduce/loss/loss_rate is"
    texts = results(run_ranks(tmp_path, 4, "failing:different_networks", member="loss"))
    assert f"rank 0 of 4: {place} 0.1 on rank 0 and 0.2 on rank 2" in texts[0][0]
    assert f"rank 2 of 4: {place} 0.2 on rank 2 and 0.1 on rank 0" in texts[2][0]
    assert f"rank 3 of 4: {place} 0.1 on rank 3 and 0.2 on rank 2" in texts[3][1]


def test_equal_networks_of_different_spelling_are_one_network():
    import droptest

    text = {"network": {"loss": {"model": "bernoulli", "loss_rate": "10%"}}, "seed": 1, "statistics": "results/mine"}
    one, other = droptest.Network(text), droptest.Network({"network": {"loss": bernoulli(0.1)}})
    assert one.digest() == other.digest()
    one.check_peer(0, other.identity())
