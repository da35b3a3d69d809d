# SPDX-License-Identifier: Apache-2.0
"""Accelerate, the Trainer of Hugging Face and Lightning on two ranks, with the hook of DistributedDataParallel and over
the backend: PyTorch's own bits without loss; with loss equal parameters on all ranks, the rate, and the counts."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from importlib import metadata

import pytest

pytest.importorskip("torch")
import torch
from proofs import note
from test_examples import EXAMPLES, missing, version

TESTS = EXAMPLES.parents[1] / "tests/torch"
PROGRAMS = {"huggingface_trainer": ("transformers", "Trainer, transformers"),
            "accelerate_loop": ("accelerate", "Accelerate"), "lightning_ddp": ("lightning", "Lightning")}  # fmt: skip
STEPS, RANKS = 20, 2
NETWORK = {"network": {"loss": {"model": "bernoulli", "loss_rate": "5%"}}, "seed": 1, "statistics": "counts"}
LOSSLESS = NETWORK | {"network": {"loss": {"model": "none"}}}


def launched(folder, *words, **variables):
    """Runs a Python program on each rank."""
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parents[1] / "analysis"), "OMP_NUM_THREADS": "1",
                                "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""} | variables  # fmt: skip
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]
    done = subprocess.run([*launcher, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(folder, program, backend="-", network=None, options=()):
    """The lines of the ranks' files, and the record of the network where there is one."""
    folder.mkdir()
    file, words = folder / "network.json", []
    if network is not None:
        file.write_text(json.dumps(network))
        words = ["--network", file] if backend == "-" else []
    launched(folder, TESTS / "framework_program.py", backend, folder / "rank", EXAMPLES / f"{program}.py", "--steps",
             STEPS, *options, *words, DROPTEST_NETWORK=str(file))  # fmt: skip
    ranks = [(folder / f"rank{rank}").read_text().splitlines() for rank in range(RANKS)]
    record = folder / "counts/loss_statistics.json"
    return ranks, json.loads(record.read_text()) if record.is_file() else None


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """program -> the lines of its ranks without droptest."""
    return cache(lambda program: trained(tmp_path_factory.mktemp("plain") / program, program)[0])


def runnable(program, backend="-"):
    reason = missing(program)
    if reason is None and backend != "-" and version() < (2, 6):
        reason = f"the backend needs torch 2.6, here is {torch.__version__}"
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("backend", ["-", "droptest"], ids=["hook", "backend"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_framework_has_pytorchs_bits_without_loss_and_the_networks_rate_with_it(
    program, backend, plain, tmp_path, record_property
):
    runnable(program, backend)
    ranks, record = trained(tmp_path / "lossless", program, backend, LOSSLESS)
    assert ranks == plain(program) and len(ranks[0]) == STEPS
    assert record["classes"]["dp_gradient"]["lost"] == 0
    ranks, record = trained(tmp_path / "lossy", program, backend, NETWORK)
    assert ranks[0] == ranks[1]  # what is lost is lost for all
    assert ranks[0][0] != plain(program)[0][0]
    ((name, counts),) = record["classes"].items()
    parameter_bytes = int(ranks[0][0].split()[0])
    assert name == "dp_gradient" and counts["bytes"] == RANKS * STEPS * parameter_bytes
    assert abs(counts["z"]) < 4 and counts["configured_rate"] == 0.05
    assert record["ranks"] == {"world_size": RANKS, "missing": []}
    package, name = PROGRAMS[program]
    note(record_property, f"{name} {metadata.version(package)}", "hook" if backend == "-" else "backend", [counts])


def test_accelerate_and_the_trainer_refuse_the_name_of_the_backend_on_the_cpu(monkeypatch):
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("no accelerate here")
    from accelerate.state import PartialState

    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="Your assigned backend droptest is not available, please use gloo"):
        PartialState(cpu=True, backend="droptest")
    PartialState._reset_state()


LIGHTNING = """
import lightning, torch
import droptest.torch.backend
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader


class Training(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1000, 1)

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 1000))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def training_step(self, batch):
        return self.layer(batch).sum()


def hook(state, bucket):
    raise RuntimeError("the hook was called")


strategy = DDPStrategy(process_group_backend="droptest", ddp_comm_hook=hook)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Training())
assert torch.distributed.get_backend() == "droptest"
torch.distributed.destroy_process_group()
"""


def test_lightning_takes_the_name_of_the_backend_and_leaves_out_its_own_hooks_on_the_cpu(tmp_path):
    runnable("lightning_ddp", "droptest")
    (tmp_path / "program.py").write_text(LIGHTNING)
    (tmp_path / "network.json").write_text(json.dumps(NETWORK))
    launched(tmp_path, tmp_path / "program.py", DROPTEST_NETWORK=str(tmp_path / "network.json"))
    record = json.loads((tmp_path / "counts/loss_statistics.json").read_text())
    assert record["classes"]["dp_gradient"]["packets"] > 0 and record["ranks"]["missing"] == []
