# SPDX-License-Identifier: Apache-2.0
"""attach() serves every model that its framework has wrapped, and says what it cannot serve; callbacks wait for the
model."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from ranks import ANALYSIS, results, run_ranks  # noqa: E402

import droptest  # noqa: E402
import droptest.torch  # noqa: E402

ALLOWED = "want a DistributedDataParallel, or a module after fully_shard() (FSDP2, also with replicas)"


@pytest.mark.parametrize("case", ["made", "network", "pair"])
def test_a_distributed_data_parallel_loses_packets_of_its_gradients(tmp_path, case):
    for packets, world_size in results(run_ranks(tmp_path, 2, "training:attached", case=case)):
        assert packets == -(-(2000 * 8 + 8) // 352) and world_size == 2


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("plain", f"model: got Linear, {ALLOWED}; call attach() after the model is wrapped"),
        ("no module", f"model: got str, {ALLOWED}"),
        ("data parallel", f"model: got DataParallel, {ALLOWED}; DataParallel is one process, which sends nothing"),
        (
            "FullyShardedDataParallel",
            f"model: got FullyShardedDataParallel, {ALLOWED}; FSDP1 has no place for loss: fully_shard() is FSDP2",
        ),
        ("DeepSpeedEngine", f"model: got DeepSpeedEngine, {ALLOWED}; DeepSpeed has collectives of its own"),
        (
            "twice",
            "model: got DistributedDataParallel that is attached to a network already, want one attach() for each",
        ),
        ("other group", "process_group: got the ranks [{rank}], want those of the model's: [0, 1]"),
    ],
)
def test_a_model_that_attach_cannot_serve_is_named_with_what_it_can(tmp_path, case, text):
    for rank, error in enumerate(results(run_ranks(tmp_path, 2, "training:attached", case=case))):
        assert error.startswith(f"rank {rank} of 2: attach: {text.format(rank=rank)}"), error


def test_without_a_process_group_the_callbacks_are_named():
    with pytest.raises(droptest.NetworkError, match="TrainerCallback and LightningCallback wait for it"):
        droptest.torch.attach(torch.nn.Linear(1, 1), {})


def test_the_package_imports_no_framework_before_a_callback_is_named():
    words = ("import sys, droptest.torch; assert 'TrainerCallback' in dir(droptest.torch);"
             "print([m for m in ('transformers', 'lightning', 'pandas') if m in sys.modules])")  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ANALYSIS)}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match=r"module 'droptest\.torch' has no attribute 'Callback'"):
        droptest.torch.Callback  # noqa: B018


class Attached:
    """A network that attach() would return."""

    def __init__(self, folder):
        self.statistics_folder = Path(folder)
        self.logged, self.finished = [], []

    def log(self, step, **numbers):
        self.logged.append((step, numbers))

    def finish(self, **words):
        self.finished.append(words)


def test_the_trainers_callback_makes_one_line_of_the_losses_of_a_step(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from droptest.torch import trainer_callback

    network = Attached(tmp_path)
    sources = []
    monkeypatch.setattr(trainer_callback, "attach", lambda model, source: sources.append(source) or network)
    callback = droptest.torch.TrainerCallback("network.json", settings={"width": 8}, unit="nats per byte")
    args = SimpleNamespace(learning_rate=0.1, per_device_train_batch_size=4, num_train_epochs=3, max_steps=-1, seed=5,
                           data_seed=None)  # fmt: skip
    state = SimpleNamespace(global_step=0)
    for _ in range(2):  # the Trainer begins again with smaller batches, and wraps the model again
        callback.on_train_begin(args, state, None)
        for state.global_step in (0, 1):
            callback.on_step_begin(args, state, None, model=torch.nn.Linear(1, 1))
    assert sources == ["network.json", network]
    state.global_step = 2
    callback.on_log(args, state, None, logs={"loss": 3.0, "grad_norm": 1.5, "num_input_tokens_seen": 64, "other": "x"})
    assert network.logged == []
    callback.on_log(args, state, None, logs={"eval_loss": 2.5, "eval_runtime": 0.1, "epoch": 1.0})
    state.global_step = 4
    callback.on_log(args, state, None, logs={"loss": 2.0})
    with pytest.raises(droptest.NetworkError, match="begins again after it has logged steps"):
        callback.on_train_begin(args, state, None)
    callback.on_log(args, state, None, logs={"train_loss": 9.0, "train_runtime": 1.0})  # at the end of train()
    callback.on_train_end(args, state, None)
    first = {"training_loss": 3.0, "gradient_norm": 1.5, "tokens": 64, "validation_loss": 2.5, "epoch": 1.0}
    assert network.logged == [(2, first), (4, {"training_loss": 2.0})]
    settings = {"learning_rate": 0.1, "per_device_train_batch_size": 4, "num_train_epochs": 3, "max_steps": -1,
                "width": 8}  # fmt: skip
    words = {"settings": settings, "seeds": {"weights": 5, "data": 5}, "unit": "nats per byte"}
    assert network.finished == [words] and callback.network is network
    with pytest.raises(droptest.NetworkError, match=r"TrainerCallback: got a second train\(\)"):
        callback.on_train_begin(args, state, None)


def test_lightnings_callback_takes_the_mean_of_the_batches_of_a_step(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    from droptest.torch import lightning_callback

    network = Attached(tmp_path)
    monkeypatch.setattr(lightning_callback, "attach", lambda model, source: network)
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    callback = droptest.torch.LightningCallback("network.json", every_steps=2)
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.001, "initial_lr": 0.1}])
    trainer = SimpleNamespace(global_step=0, optimizers=[optimizer], callback_metrics={}, sanity_checking=False,
                              strategy=SimpleNamespace(model=None))  # fmt: skip
    callback.on_validation_end(trainer, None)  # the sanity check is before the start
    callback.on_train_start(trainer, None)
    losses = iter([1.0, 3.0, 5.0, 7.0, 9.0, 11.0])
    for step in (0, 1, 1, 2, 2, 3):  # two batches a step
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None, {"loss": torch.tensor(next(losses))}, None, 0)
    trainer.global_step, trainer.callback_metrics = 2, {"val_loss": torch.tensor(2.5)}
    callback.on_validation_end(trainer, None)
    callback.on_fit_end(trainer, None)
    assert network.logged == [(2, {"training_loss": 6.0, "validation_loss": torch.tensor(2.5)})]
    words = {"settings": {"learning_rate": 0.1}, "seeds": {"weights": 5, "data": 5}, "unit": None}
    assert network.finished == [words]
    with pytest.raises(droptest.NetworkError, match=r"LightningCallback: got a second fit\(\)"):
        callback.on_train_start(trainer, None)
    with pytest.raises(droptest.NetworkError, match="every_steps: got 0, want an integer from 1 on"):
        droptest.torch.LightningCallback(every_steps=0)
