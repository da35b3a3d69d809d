# SPDX-License-Identifier: Apache-2.0
"""Loss in CUDA tensors of PyTorch programs: hooks, backend and the library under NCCL. Ranks may share a GPU."""

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
    pytest.skip(f"the backend needs torch 2.6 or later, this is {torch.__version__}", allow_module_level=True)

from backend_runs import ELEMENTS, expect_fates, expect_losses, expect_scaled, lossy, lost_elements, run  # noqa: E402
from ranks import results, run_ranks  # noqa: E402

import droptest  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("DROPTEST_REQUIRE_CUDA") != "1", reason="no CUDA device answers"
)
LIBRARY = Path(os.environ["DROPTEST_LIBRARY"]).resolve().parent / "nccl" / "libdroptest_nccl.so"
# cuBLAS has the same bits in each run.
SAME_BITS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
BACKENDS = ["cuda:droptest", "droptest"]


def preloaded(folder, source):
    """Variables that put the losses of the source under NCCL."""
    if not LIBRARY.is_file():
        pytest.skip(f"no {LIBRARY}: built without NCCL")
    (folder / "nccl.json").write_text(json.dumps(source))
    return {"LD_PRELOAD": str(LIBRARY), "DROPTEST_NETWORK": str(folder / "nccl.json")} | SAME_BITS


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nccl")
    return results(run(folder, 2, "trainings", backend="nccl", variables=SAME_BITS, device="cuda"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_trainings_without_loss_are_those_of_nccl_to_the_bit(tmp_path, extension, trained, backend):
    ranks = results(run(tmp_path, 2, "trainings", lossy(0), backend=backend, variables=SAME_BITS, device="cuda"))
    assert ranks == trained
    assert set(trained[0]) == {"ddp", "fsdp", "tensor parallel", "pipeline"}


def test_trainings_lose_packets_and_count_them(tmp_path, extension, trained):
    source = lossy("20%", statistics=str(tmp_path / "counts"))
    ranks = results(run(tmp_path, 2, "trainings", source, variables=SAME_BITS, steps=5, device="cuda"))
    expect_losses(ranks, trained, tmp_path / "counts")


@pytest.mark.parametrize("backend", BACKENDS)
def test_fates_are_those_of_the_network(tmp_path, extension, backend):
    source = lossy("10%")
    expect_fates(results(run(tmp_path, 2, "collectives", source, backend=backend, device="cuda")), source)


def test_host_tensors_of_processes_with_a_gpu_have_the_same_fates(tmp_path, extension):
    source = lossy("10%")
    expect_fates(results(run(tmp_path, 2, "collectives", source, gpus=True)), source)


@pytest.mark.parametrize("fill", ["count_rescale", "inverse_probability"])
def test_fills_of_sums_scale_the_results(tmp_path, extension, fill):
    source = lossy("50%")
    source["network"]["fill"] = fill
    expect_scaled(results(run(tmp_path, 2, "collectives", source, device="cuda")), fill)


@pytest.mark.parametrize("fill", ["zero", "count_rescale"])
def test_a_sum_waits_for_its_stream_and_the_stream_for_the_sum(tmp_path, extension, fill):
    source = lossy(1e-9)
    source["network"]["fill"] = fill
    assert results(run(tmp_path, 2, "beside_computation", source, gpus=True)) == [[2.0, 2.0]] * 2


def test_hooks_without_loss_have_the_bits_of_nccl_and_with_loss_the_fates_of_the_host(tmp_path):
    def train(device, **more):
        backend = "nccl" if device == "cuda" else "gloo"
        return results(run_ranks(tmp_path, 2, "training:train_ddp", backend=backend, variables=SAME_BITS, device=device,
                                 **more))  # fmt: skip

    plain, hooked = train("cuda"), train("cuda", source=lossy(0))
    assert [one["digests"] for one in hooked] == [one["digests"] for one in plain]
    on_host, on_device = (train(device, source=lossy("20%"), steps=5) for device in ("cpu", "cuda"))
    assert on_device[0]["digests"] == on_device[1]["digests"] != plain[0]["digests"][:5]
    for host, device in zip(on_host, on_device, strict=True):
        assert device["record"]["links"] == host["record"]["links"]
        assert device["losses"] == pytest.approx(host["losses"], rel=1e-4)


def test_under_nccl_trainings_without_loss_keep_their_bits(tmp_path, trained):
    variables = preloaded(tmp_path, lossy(0, statistics=str(tmp_path / "counts")))
    assert results(run(tmp_path, 2, "trainings", backend="nccl", variables=variables, device="cuda")) == trained
    counts = droptest.Statistics.read(tmp_path / "counts").classes
    assert {"dp_gradient", "parameter_gather", "pp_activation"} <= set(counts)
    assert all(one["packets"] > 0 and one["lost"] == 0 for one in counts.values())


def test_under_nccl_fates_are_those_of_the_network(tmp_path):
    source = lossy("10%", statistics=str(tmp_path / "counts"))
    ranks = run(tmp_path, 2, "collectives", backend="nccl", variables=preloaded(tmp_path, source), device="cuda")
    found = results(ranks)
    counts = droptest.Statistics.read(tmp_path / "counts")
    assert counts.missing_ranks == []
    assert {"dp_gradient", "parameter_gather", "pp_activation"} <= set(counts.classes)
    # PyTorch's all-to-all is a group of sends and receives, or a call of NCCL's where NCCL has one.
    all_to_all = "sequence_forward" if "sequence_forward" in counts.classes else "pp_activation"
    expect_fates(found, source, all_to_all)


def test_under_nccl_each_replay_of_a_graph_draws_fresh_fates(tmp_path):
    source = lossy("10%")
    ranks = results(run(tmp_path, 2, "in_a_graph", backend="nccl", variables=preloaded(tmp_path, source), gpus=True))
    for message, sums in enumerate(zip(*ranks, strict=True), start=1):
        arrived = sum(~lost_elements(source, rank, 2, "dp_gradient", rank, messages=message) * 1.0 for rank in (0, 1))
        assert len(arrived) == ELEMENTS
        for found in sums:
            assert found == arrived.tolist(), f"message {message}"
