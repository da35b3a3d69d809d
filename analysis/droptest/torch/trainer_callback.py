# SPDX-License-Identifier: Apache-2.0
"""A callback for the Trainer of Hugging Face transformers (docs/pytorch_trainer.md)."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.parallel import DistributedDataParallel

from droptest.network import Network, NetworkError
from droptest.program_run import NAME, TAKEN
from droptest.torch.attaching import attach, is_attached
from droptest.torch.pending_line import PendingLine

SETTINGS = ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "max_steps")
NAMES = {"loss": "training_loss", "eval_loss": "validation_loss", "grad_norm": "gradient_norm",
         "num_input_tokens_seen": "tokens"}  # fmt: skip


class TrainerCallback(transformers.TrainerCallback):
    """Puts loss under the model that the Trainer has wrapped, when its first step begins, and writes the losses that it
    logs, as network.log() does; at the end of the training network.finish().

    network: as of attach(), which makes it once the process group is there; the losses are written where it names a
    folder `statistics`. settings, seeds, unit: of network.finish(), next to some of the Trainer's own settings; without
    seeds they are the Trainer's seed and data_seed. Afterwards `network` is the network. For one train().
    """

    def __init__(
        self, network: Network | Mapping[str, Any] | str | Path | None = None, *,
        settings: Mapping[str, Any] | None = None, seeds: Mapping[str, int] | None = None, unit: str | None = None,
    ) -> None:  # fmt: skip
        self.network: Network | None = None
        self._source = network
        self._settings, self._seeds, self._unit = settings or {}, seeds, unit
        self._line = PendingLine()
        self._is_attached = False  # the model of this attempt: the Trainer may begin again with smaller batches
        self._is_finished = False

    def on_train_begin(self, args, state, control, **kwargs):
        if self._is_finished:
            raise NetworkError("argument", "TrainerCallback: got a second train(), want a callback and a folder "
                               "`statistics` for each")  # fmt: skip
        if self._line.has_logged:
            raise NetworkError("argument", "TrainerCallback: the Trainer begins again after it has logged steps, whose "
                               "losses and counts are in the records; want a start of the program with the batches "
                               "that it has found")  # fmt: skip
        self._line = PendingLine()
        self._is_attached = False

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if self._is_attached:
            return
        wrapped = wrapped_model(model)
        if self.network is None or not is_attached(wrapped):
            self.network = attach(wrapped, self._source if self.network is None else self.network)
        self._is_attached = True

    def on_log(self, args, state, control, logs=None, **kwargs):
        numbers = numbers_of(logs or {})
        if self._writes() and ("training_loss" in numbers or "validation_loss" in numbers):
            self._line.add(self.network, state.global_step, numbers)

    def on_train_end(self, args, state, control, **kwargs):
        self._is_finished = True
        if not self._writes():
            return
        self._line.log(self.network)
        own = {name: getattr(args, name) for name in SETTINGS}
        data_seed = args.seed if args.data_seed is None else args.data_seed
        seeds = {"weights": args.seed, "data": data_seed} if self._seeds is None else self._seeds
        self.network.finish(settings=own | dict(self._settings), seeds=seeds, unit=self._unit)

    def _writes(self) -> bool:
        return self.network is not None and self.network.statistics_folder is not None


def wrapped_model(model: torch.nn.Module) -> torch.nn.Module:
    """The DistributedDataParallel of a model, which the Trainer does not show to callbacks; without one the model.
    Raises: NetworkError for several."""
    wanted = set(map(id, model.parameters()))
    found = [one for one in gc.get_objects() if issubclass(type(one), DistributedDataParallel)]
    found = [one for one in found if wanted == set(map(id, one.parameters()))]
    found = [one for one in found if not is_attached(one)] or found  # one of an earlier attempt may be left
    if len(found) > 1:
        raise NetworkError("argument", f"TrainerCallback: model: got {len(found)} models of DistributedDataParallel "
                           "with its parameters, want one")  # fmt: skip
    return found[0] if found else model


def numbers_of(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a log of the Trainer by the names of network.log(), without the speed of validations and without
    names that columns cannot have."""
    found = {}
    for name, value in logs.items():
        name = NAMES.get(name, name)
        is_speed = name.endswith(("_runtime", "_per_second"))
        if NAME.fullmatch(name) and name not in TAKEN and not is_speed and isinstance(value, int | float):
            found[name] = value
    return found
