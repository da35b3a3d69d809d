# SPDX-License-Identifier: Apache-2.0
"""Every program in examples/torch on two ranks: without loss it has the losses of PyTorch, with loss others."""

import importlib.util
import json
import os
import re
import socket
from pathlib import Path

import pytest

pytest.importorskip("torch")
import forks
import torch
from ranks import new_process

import droptest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "torch"
PROGRAMS = sorted(file.stem for file in EXAMPLES.glob("*.py") if file.stem not in ("tiny_gpt", "host_memory"))
NEEDED = {"accelerate_loop": ("accelerate",), "huggingface_trainer": ("transformers", "accelerate"),
          "lightning_ddp": ("lightning",), "deepspeed_zero": ("deepspeed",), "megatron_ddp": ("megatron",)}  # fmt: skip
BACKEND = ("tensor_parallel", "deepspeed_zero", "megatron_ddp")  # which need it
LOSSY_FORWARD = ("tensor_parallel",)  # whose first loss is already another one
STEPS = 20
RANKS = 2


def missing(program):
    """Why the program cannot run here; None: it can."""
    if program == "fsdp2" and version() < (2, 11):
        return f"FSDP2's custom communication needs torch 2.11, here is {torch.__version__}"
    if program in BACKEND and version() < (2, 6):
        return f"the backend needs torch 2.6, here is {torch.__version__}"
    for needed in NEEDED.get(program, ()):
        if importlib.util.find_spec(needed) is None:
            return f"no {needed} here"
    return None


def version():
    return tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])


def losses(program, folder, *words, start=None):
    """Of the steps, as text. Below torch 2 without PyTorch's launcher: that of 1.13 fails on Python 3.11. start: of
    ranks that PyTorch does not launch; absent: each is a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parents[1] / "analysis"), "OMP_NUM_THREADS": "1",
                                "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    script = [str(EXAMPLES / f"{program}.py"), "--steps", str(STEPS), *words]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]
    programs = [([*launcher, *script], environment)]
    if version() < (2, 0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        environment |= {"WORLD_SIZE": str(RANKS)}
        programs = [(script, environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(RANKS)]
    start = new_process if start is None or version() >= (2, 0) else start
    out, errors = ([folder / f"{name}{i}.txt" for i in range(len(programs))] for name in ("out", "errors"))
    processes = [start(all_words, folder, variables, *files)
                 for (all_words, variables), *files in zip(programs, out, errors, strict=True)]  # fmt: skip
    try:
        for process in processes:
            process.wait(timeout=600)
    finally:
        for process in processes:
            process.kill()
    for process, file in zip(processes, errors, strict=True):
        assert process.returncode == 0, file.read_text()
    return re.findall(r"^step \d+: loss (\S+)$", out[0].read_text(), re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_example_is_pytorchs_without_loss_and_loses_packets_with_it(program, tmp_path):
    if reason := missing(program):
        pytest.skip(reason)
    lossless = tmp_path / "lossless.json"
    lossless.write_text('{"network": {"loss": {"model": "none"}}, "statistics": "results/lossless"}')
    fork = forks.parent().start
    plain = losses(program, tmp_path, start=fork)
    assert len(plain) == STEPS
    assert losses(program, tmp_path, "--network", str(lossless), start=fork) == plain
    lossy = losses(program, tmp_path, "--network", str(EXAMPLES / "network.json"))
    assert len(lossy) == STEPS and lossy[1:] != plain[1:]
    assert (lossy[0] == plain[0]) == (program not in LOSSY_FORWARD)
    record = json.loads((tmp_path / "results/torch/loss_statistics.json").read_text())
    assert record["ranks"]["missing"] == []
    assert record["classes"]["dp_gradient"]["lost"] > 0
    check_records(tmp_path / "results", {"torch": lossy, "lossless": plain})


def check_records(folder, printed):
    """The losses of the programs are in their records, and the lossy one has the lossless one as its twin."""
    records = droptest.load(folder)
    runs = records.runs.set_index("run_id")
    assert set(runs["status"]) == {"completed"} and records.unit == "nats per byte"
    for name, losses_of_steps in printed.items():
        lines = records.metrics.query("run_id == @name")
        assert list(lines["step"]) == list(range(1, STEPS + 1))
        assert list(lines["train_loss"]) == pytest.approx([float(loss) for loss in losses_of_steps], rel=1e-8)
        assert runs.loc[name, "final_validation_loss"] == lines["validation_loss"].iloc[-1] > 0
    assert runs.loc["torch", "twin"] == "lossless"
    difference = runs.loc["torch", "final_validation_loss"] - runs.loc["lossless", "final_validation_loss"]
    assert runs.loc["torch", "difference"] == difference != 0
