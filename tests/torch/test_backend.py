# SPDX-License-Identifier: Apache-2.0
"""The backend "droptest" over gloo, with processes as ranks."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
    pytest.skip(f"the backend needs torch 2.6 or later, this is {torch.__version__}", allow_module_level=True)

from backend_runs import ELEMENTS, expect_fates, expect_scaled, lossy, lost_elements, run  # noqa: E402
from collective_calls import PACKET  # noqa: E402
from ranks import ANALYSIS, results  # noqa: E402

import droptest  # noqa: E402
from droptest.torch import forwarding  # noqa: E402

HAS_WINDOWS = hasattr(torch._C._distributed_c10d.Backend, "new_window")
HAS_FAKE_GROUP = hasattr(getattr(torch._C._distributed_c10d, "FakeProcessGroup", None), "_create_internal")


pytestmark = pytest.mark.usefixtures("extension")


def test_ranks_with_different_seeds_are_refused_on_each_rank(tmp_path):
    first, second = results(run(tmp_path, 2, "different_seeds", backend="gloo"))
    assert "rank 0: network: /seed is 1 on rank 0 and 2 on rank 1: want one network section" in first
    assert "rank 1: network: /seed is 2 on rank 1 and 1 on rank 0: want one network section" in second


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this PyTorch does not run on CPUs")
def test_hybrid_sharding_loses_packets_between_shards_and_between_replicas(tmp_path):
    source = lossy("30%", statistics=str(tmp_path / "counts"))
    results(run(tmp_path, 4, "train_fsdp", source, module="training", steps=3, replicas=2))
    counts = droptest.Statistics.read(tmp_path / "counts")
    sums = sum(math.ceil(elements / PACKET) for elements in (40200, 40200 // 2, 14608, 14608 // 2))  # of both modules
    assert counts.classes["dp_gradient"]["packets"] == 4 * 3 * sums
    assert counts.classes["parameter_gather"]["lost"] > 0
    assert all(one["lost"] > 0 and abs(one["z"]) < 4 for one in counts.classes.values())
    assert "no_loss_layer" not in counts.exempt


def test_fates_are_those_of_the_network(tmp_path):
    source = lossy("10%")
    ranks = results(run(tmp_path, 2, "collectives", source, elements=ELEMENTS))
    expect_fates(ranks, source)


@pytest.mark.parametrize("fill", ["count_rescale", "inverse_probability"])
def test_fills_of_sums_scale_the_results(tmp_path, fill):
    source = lossy("50%")
    source["network"]["fill"] = fill
    ranks = results(run(tmp_path, 2, "collectives", source, elements=ELEMENTS))
    expect_scaled(ranks, fill)


def test_a_callback_of_a_sum_may_begin_another_one(tmp_path):
    source = lossy("50%")
    source["network"]["fill"] = "count_rescale"
    assert results(run(tmp_path, 2, "follow_up", source)) == [[[0.0, 2.0], [0.0, 2.0]]] * 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_device_of_a_backend_is_that_of_its_store(device):
    from droptest.torch import backend

    group = torch.distributed.PrefixStore("0/", torch.distributed.HashStore())
    assert backend._device_of(torch.distributed.PrefixStore(f"{device}/", group)) == device


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_process_with_a_gpu_has_backends_for_its_devices(device, monkeypatch):
    """The one of the host has NCCL with it, because PyTorch asks for one backend where devices have one name."""
    from types import SimpleNamespace

    from droptest.torch import backend

    nccl = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)  # stands for it
    stores = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(backend, "_nccl", lambda options, store, _: stores.append(store) or nccl)
    store = torch.distributed.HashStore()
    options = SimpleNamespace(store=store, group_rank=0, group_size=1, timeout=timedelta(seconds=10),
                              global_ranks_in_group=[0], group_id="0")  # fmt: skip
    made = backend._inner(options, device, None)
    assert (type(made).__name__ == "ByDevice") == (device == "cpu")
    stores[0].set("key", "")
    assert store.check(["key"]) == (device == "cuda")


def test_ranks_without_results_of_a_sum_can_save_their_state(tmp_path):
    source = lossy("50%")
    source["network"]["fill"] = "count_rescale"
    for state in results(run(tmp_path, 2, "reduce_and_save", source)):
        assert set(state) == {"droptest"}


def test_ranks_that_build_at_once_build_once(tmp_path, extension):
    """The second one finds the library that the first one has made, and a lock that a killed build left is no hang."""
    program = "from droptest.torch import build; print(build.extension().__file__)"
    made = Path(extension.__file__).parent
    folder = tmp_path / (made.parent if made.name == "build" else made).name  # just compiled: where the compiler put it
    (folder / "build").mkdir(parents=True)
    (folder / "build/lock").touch()
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONPATH": str(ANALYSIS)}
    words = [sys.executable, "-c", program]
    ranks = [
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    texts = [rank.communicate(timeout=900) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], texts
    assert (folder / Path(extension.__file__).name).is_file()
    assert (folder / "build/.ninja_log").read_text().count("lossy_backend.o") == 1


@pytest.mark.skipif(not HAS_FAKE_GROUP, reason="this PyTorch has no fake process group to stand for NCCL")
def test_a_backend_for_both_devices_calls_that_of_the_tensors(tmp_path):
    first, second = results(run(tmp_path, 2, "both_devices", backend="gloo"))
    assert first == {"sum": [2.0], "gathered": [[2.0], [2.0]], "received": [0.0], "early": False}
    assert second == {"sum": [2.0], "gathered": [], "received": [2.0], "early": False}


def test_a_group_may_end_while_its_threads_free_tensors(tmp_path):
    """That takes the lock of Python, which the end of the group must not hold."""
    assert results(run(tmp_path, 2, "left_behind", lossy("10%"))) == [True, True]


def test_a_closed_network_is_an_error(tmp_path):
    ended = run(tmp_path, 2, "closed", lossy("50%"))
    for rank, one in enumerate(ended):
        assert one.result is not None, one.errors
        assert f"droptest: rank {rank}: network: got a closed one" in one.result


@pytest.mark.skipif(not HAS_WINDOWS, reason="this PyTorch has no windows")
@pytest.mark.parametrize("rate", [0, "1%"])
def test_a_function_that_the_loss_layer_does_not_know_is_refused_under_loss_alone(tmp_path, rate):
    version = torch.__version__.partition("+")[0]
    for rank, error in enumerate(results(run(tmp_path, 2, "unknown", lossy(rate)))):
        refused = f"droptest: rank {rank}: c10d::Backend::new_window of torch {version} is not supported"
        assert error.startswith(refused if rate else "Backend gloo does not support new_window")


def test_at_full_loss_the_control_of_training_loses_nothing(tmp_path):
    ranks = results(run(tmp_path, 2, "exempt", lossy("100%")))
    for found in ranks:
        assert found["weights"] == ranks[0]["weights"]
        assert [one["rank"] for one in found["objects"]] == [0, 1]
        assert found["shared"] == [{"from": 0}]
        assert found["numbers"] == [3]
        assert found["norm"] == 2.0
        assert found["smallest"] == [1.0]
        assert found["gradients"] and set(found["gradients"]) == {0.0}


def test_groups_have_the_links_of_world_ranks_and_numbers_of_their_own(tmp_path):
    source = lossy("10%")
    ranks = results(run(tmp_path, 4, "subgroups", source, elements=ELEMENTS))
    for rank, found in enumerate(ranks):
        assert found["number"] == 1
        members = [member for member in range(4) if member % 2 == rank % 2]
        in_part = sum(~lost_elements(source, m, 4, "dp_gradient", m, group=1) * 1.0 for m in members)
        in_all = sum(~lost_elements(source, m, 4, "dp_gradient", m) * 1.0 for m in range(4))
        assert found["sums"] == [in_part.tolist(), in_all.tolist()]


@pytest.mark.skipif(not hasattr(torch.distributed.ProcessGroup, "split_group"), reason="this PyTorch cannot split")
def test_a_group_that_is_split_off_loses_packets_on_links_of_its_own(tmp_path):
    source = lossy("10%")
    ranks = results(run(tmp_path, 4, "split", source, elements=ELEMENTS))
    for rank, found in enumerate(ranks):
        assert (found["type"], found["number"]) == ("LossyBackend", 1)
        members = (rank % 2, rank % 2 + 2)
        expected = sum(~lost_elements(source, member, 4, "dp_gradient", member, group=1) * 1.0 for member in members)
        assert found["sum"] == expected.tolist()


def test_a_backend_for_each_device_is_no_process_group(tmp_path):
    for backend in ("droptest", "cpu:droptest,cuda:droptest"):
        for found in results(run(tmp_path, 2, "backend_types", lossy("1%"), backend=backend)):
            assert found["type"] == "LossyBackend"
            assert not found["is_group"]
            assert found["sum"] == [2.0, 2.0, 2.0]


def test_detail_debugging_wraps_the_backend(tmp_path):
    source = lossy("10%")
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    ranks = results(run(tmp_path, 2, "collectives", source, variables=detail, elements=ELEMENTS))
    plain = results(run(tmp_path, 2, "collectives", source, elements=ELEMENTS))
    assert ranks == plain


def test_a_mistake_in_the_network_names_rank_and_key(tmp_path):
    ended = run(tmp_path, 2, "backend_types", {"network": {"loss": {"model": "bernoulli", "loss_rate": 3}}})
    for rank, one in enumerate(ended):
        assert one.status != 0
        assert re.search(rf"rank {rank} of 2: .*/network/loss/loss_rate: got 3", one.errors)


def test_a_rank_that_ends_is_an_error_of_the_others(tmp_path):
    ended = run(tmp_path, 2, "dies", lossy("1%"))
    assert ended[1].status == 3
    assert ended[0].status != 0


def forwarded_functions(extension) -> set[str]:
    symbols = subprocess.run(["nm", "-C", extension.__file__], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"LossyBackend::(\w+)(?:\[abi:\w+\])?\(", symbols))


def test_every_virtual_function_of_the_header_is_in_the_backend(extension):
    header = forwarding.backend_header().read_text()
    names = {function.name for function in forwarding.virtual_functions(header)}
    written = set(re.findall(r"virtual[^;{]*?\b(\w+)\(", re.sub(r"//[^\n]*", "", header)))
    assert written - names <= {"clone"}  # of the backend's options
    assert len(names) >= 31
    assert names - forwarded_functions(extension) == set()
