# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with loss: nothing changes without loss, nothing but gradients is lost, fates are those of
the command."""

import inspect
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from ranks import results, run_ranks  # noqa: E402
from training import bernoulli  # noqa: E402


def network(rate, **more):
    return {"network": {"loss": bernoulli(rate)}, "seed": 7, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ddp")


@pytest.fixture(scope="module")
def without_hook(folder):
    return results(run_ranks(folder, 2, "training:train_ddp"))


@pytest.fixture(scope="module")
def with_loss(folder):
    return results(run_ranks(folder, 2, "training:train_ddp", source=network(0.2)))


def test_without_loss_20_steps_have_the_bits_of_pytorch(folder, without_hook):
    without_loss = results(run_ranks(folder, 2, "training:train_ddp", source=network(0)))
    for plain, hooked in zip(without_hook, without_loss, strict=True):
        assert len(plain["digests"]) == 20
        assert hooked["digests"] == plain["digests"]
        assert hooked["losses"] == plain["losses"]
    counts = without_loss[0]["record"]["classes"]["dp_gradient"]
    assert counts["packets"] > 0 and counts["lost"] == 0


def test_three_ranks_without_loss_have_the_bits_of_pytorch(folder):
    plain = results(run_ranks(folder, 3, "training:train_ddp", steps=3))
    hooked = results(run_ranks(folder, 3, "training:train_ddp", steps=3, source=network(0)))
    assert [one["digests"] for one in hooked] == [one["digests"] for one in plain]


def test_ranks_agree_under_loss_and_lose_what_the_network_says(without_hook, with_loss):
    assert with_loss[0]["digests"] == with_loss[1]["digests"]
    assert with_loss[0]["digests"] != without_hook[0]["digests"]
    for one in with_loss:
        counts = one["record"]["classes"]["dp_gradient"]
        assert abs(counts["z"]) <= 4
        assert counts["collectives"] > 20  # several buckets a step


def test_the_fates_are_those_of_the_fates_command(binary, with_loss):
    for rank, one in enumerate(with_loss):
        (link,) = one["record"]["links"]
        words = [binary, "fates", "--loss", json.dumps(bernoulli(0.2)), "--seed", "7", "--class", "dp_gradient",
                 "--src", str(rank), "--dst", "65535", "--count", str(link["packets"]), "--format", "json"]  # fmt: skip
        report = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        assert (report["digest"], report["lost"]) == (link["digest"], link["lost"])


def test_at_full_loss_gradients_are_zero_and_construction_and_clipping_lose_nothing(folder, without_hook):
    ended = results(run_ranks(folder, 2, "training:train_ddp", source=network(1), steps=3, clip=True))
    for one in ended:
        assert one["largest_gradients"] == [0, 0, 0]
        assert one["losses"][0] == pytest.approx(without_hook[ended.index(one)]["losses"][0], abs=0)
        assert len(set(one["digests"])) == 1
    assert ended[0]["digests"] == ended[1]["digests"]


def test_count_rescale_is_the_mean_of_the_contributions_that_arrive(folder):
    source = {"network": {"loss": bernoulli(0.4), "fill": "count_rescale"}, "seed": 3}
    ended = results(run_ranks(folder, 3, "collectives:rescaled_sum", source=source))
    for one in ended:
        assert one == ended[0]
    values = np.array(ended[0]["results"])
    lost = np.array(ended[0]["lost_contributions"])
    assert set(lost) == {0, 1, 2, 3}
    expected = np.where(lost == 3, 0, 3)  # of ones, scaled to the sum of all three
    assert values == pytest.approx(np.repeat(expected, 352)[: len(values)])


def test_object_gathers_barriers_and_broadcasts_lose_nothing(folder):
    ended = results(run_ranks(folder, 2, "collectives:control_lossless", source=network(1)))
    for one in ended:
        assert one["objects"] == [{"rank": 0}, {"rank": 1}]
        assert one["broadcast"] == 1
        assert one["integers"] == 2
        assert one["small"] == 2
        assert one["exempt"]["operation"]["calls"] == 2
        assert one["exempt"]["integer"]["calls"] == 1
        assert one["exempt"]["small"]["calls"] == 1


def test_collectives_have_the_results_of_pytorch_without_loss_and_zeros_at_full_loss(folder):
    for rate in (0, 1):
        for one in results(run_ranks(folder, 2, "collectives:every_collective", source=network(rate))):
            for name, (lossy, exact) in one.items():
                assert lossy == (exact if rate == 0 else 0), name


@pytest.mark.parametrize("named", [False, True])
def test_a_hook_averages_over_the_process_group_of_its_model(folder, named):
    source = network(0)
    for rank, (plain, hooked) in enumerate(
        results(run_ranks(folder, 4, "training:sub_group_gradients", named=named, source=source))
    ):
        assert plain == hooked == [3.0 if rank < 2 else 7.0]


def test_a_hook_of_two_models_is_refused_at_the_first_bucket_of_the_second(folder):
    for texts in results(run_ranks(folder, 2, "training:hooks_of_models", how="two")):
        assert texts[:2] == ["", ""]
        assert "bucket: got one of another model, want those of one: one hook is for one model" in texts[2]


def test_a_hook_of_a_model_that_is_gone_can_be_that_of_another_one(folder):
    assert results(run_ranks(folder, 2, "training:hooks_of_models", how="another")) == [[""] * 4] * 2


def test_a_hook_with_another_process_group_than_its_model_is_refused(folder):
    for rank, (text,) in enumerate(results(run_ranks(folder, 2, "training:hooks_of_models", how="group"))):
        assert f"rank {rank} of 2: process_group: got the ranks [{rank}], want those of the model's: [0, 1]" in text


@pytest.mark.skipif(
    "skip_all_reduce_unused_params" not in inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters,
    reason="this PyTorch has no skip_all_reduce_unused_params",
)
def test_buckets_that_pytorch_skips_are_no_error(folder):
    assert results(run_ranks(folder, 2, "training:skipped_buckets", source=network(0.1))) == [6, 6]


def test_a_resumed_training_warns_once_where_the_buckets_are_cut_anew(folder):
    source = network(0.1)
    for texts in results(run_ranks(folder, 2, "training:resumed", source=source, is_loaded=True)):
        assert len(texts) == 1 and "after the first step of the resumed training" in texts[0]
    assert results(run_ranks(folder, 2, "training:resumed", source=source, is_loaded=False)) == [[], []]


@pytest.mark.parametrize("rate", [0, 1])
def test_operations_of_a_group_have_the_arguments_of_pytorch_with_loss_and_counts(folder, rate):
    ranks = results(run_ranks(folder, 4, "collectives:operations", source=network(rate)))[1:]
    arrives = 1.0 - rate
    for me, one in enumerate(ranks):
        values = one["values"]
        parts = [1.0 if peer == me else arrives for peer in range(3) for _ in range(20)]
        expected = {"all_to_all_single": parts, "all_to_all_rows": parts, "isend": [arrives] * 20,
                    "send": [1.0] * 20, "recv": [arrives] * 20, "reduce": [3 * arrives if me == 1 else 1.0] * 20,
                    "reduce_max": [-np.inf if me == 1 and rate else 1.0] * 20, "all_gather": [arrives] * 60,
                    "all_gather_into_tensor": [arrives] * 60, "broadcast": [1.0] * 20,
                    "gather": [1.0] * (60 if me == 1 else 20), "scatter": [1.0] * 20}  # fmt: skip
        assert values == {name: expected[name] for name in values}
        assert {"isend", "reduce", "reduce_max", "all_gather", "gather", "scatter"} <= set(values)
        classes = one["record"]["classes"]
        packets = {name: classes[name]["packets"] for name in classes}
        assert packets["dp_gradient"] == 40
        assert packets["pp_activation"] == (40 if me == 0 else 20)
        assert packets.get("sequence_forward", 80) == 80
        assert all(classes[name]["lost"] == rate * packets[name] for name in classes)
        assert one["record"]["exempt"]["operation"]["calls"] == 4
        assert one["texts"] == [
            "src, group_src: got None and None, want one of them",
            "dst, group_dst: got 1 and 0, want one of them",
            "dst: got rank 0, want a rank of the group: [1, 2, 3]",
            "group_dst: got 3, want a rank of the group, 0 to 2",
            "LossyGroup: got all_gather_object(), which loses no packets here; "
            "want torch.distributed.all_gather_object() itself with the group's process_group",
            "LossyGroup: got batch_isend_irecv(), which loses no packets here; "
            "want torch.distributed.batch_isend_irecv() itself with the group's process_group",
            "LossyGroup has no attribute 'no_such_thing'",
        ]


@pytest.mark.parametrize("fill", ["count_rescale", "inverse_probability"])
def test_every_way_to_the_results_of_a_work_gives_them_scaled_once(folder, fill):
    source = {"network": {"loss": bernoulli(0.5), "fill": fill}, "seed": 3}
    for values in results(run_ranks(folder, 2, "collectives:ways_to_the_results", source=source)):
        assert "got results_by_another_way, want wait(), synchronize()" in values.pop("unknown")
        assert len(values) == 7
        for name, found in values.items():
            assert found == ([0, 2] if fill == "count_rescale" else [0, 2, 4]), name


def test_groups_agree_on_numbers_and_have_fates_of_their_own(folder):
    ended = results(run_ranks(folder, 4, "collectives:split_groups", source=network(0.3)))
    assert [one["numbers"] for one in ended] == [[0, 1], [0, 1, 6], [0, 1, 6], [0, 1]]
    for one in ended:
        assert one["world"] != one["pair"]
    assert ended[0]["pair"] == ended[1]["pair"]
    assert ended[0]["pair"] != ended[2]["pair"]


def test_ranks_write_one_record_that_the_schema_allows(folder, binary):
    written = folder / "statistics"
    results(run_ranks(folder, 2, "training:train_ddp", source=network(0.2, statistics=str(written)), steps=2))
    record = json.loads((written / "loss_statistics.json").read_text())
    assert record["ranks"] == {"world_size": 2, "missing": []}
    assert [link["source"] for link in record["links"]] == [0, 1]
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(subprocess.run([binary, "schema", "loss_statistics"], capture_output=True, check=True).stdout)
    jsonschema.validate(record, schema)


def test_the_lines_of_the_readme_work(folder, monkeypatch):
    readme = Path(__file__).resolve().parents[2] / "README.md"
    section = readme.read_text().split("## Your own PyTorch code")[1]
    lines = re.search(r"```python\n(.*?)```", section, re.S)[1]
    monkeypatch.chdir(folder)
    assert all(lost > 0 for lost in results(run_ranks(folder, 2, "training:readme_lines", lines=lines)))
    assert (folder / "results/mine/lossy_1/loss_statistics.json").is_file()
    summary = json.loads((folder / "results/mine/lossy_1/summary.json").read_text())
    assert (summary["train"]["final_loss"], summary["validation"]["final_loss"]) == (2.5, 2.25)
