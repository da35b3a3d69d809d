# SPDX-License-Identifier: Apache-2.0
"""A callback for the Trainer of Lightning (docs/pytorch_lightning.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from droptest.network import Network, NetworkError
from droptest.torch.attaching import attach
from droptest.torch.pending_line import PendingLine

# Two packages have the same classes; the program uses one of them.
_OLDER = "pytorch_lightning"
_IS_OLDER = find_spec("lightning") is None or (_OLDER in sys.modules and "lightning" not in sys.modules)
PACKAGE = _OLDER if _IS_OLDER else "lightning.pytorch"


class LightningCallback(import_module(PACKAGE).Callback):
    """Puts loss under the model that the strategy has wrapped, when the training starts, and writes the losses as
    network.log() does; at the end of fit() network.finish().

    network: as of attach(), which makes it once the process group is there; the losses are written where it names a
    folder `statistics`. every_steps: between two training losses, those that training_step() returns.
    validation_metric: the name under which validation_step() logs its loss. settings, seeds, unit: of network.finish();
    without seeds they are that of seed_everything(), where it was called. Afterwards `network` is the network. For one
    fit().
    """

    def __init__(
        self, network: Network | Mapping[str, Any] | str | Path | None = None, *, every_steps: int = 1,
        validation_metric: str = "val_loss", settings: Mapping[str, Any] | None = None,
        seeds: Mapping[str, int] | None = None, unit: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not (type(every_steps) is int and every_steps > 0):
            raise NetworkError("argument", f"LightningCallback: every_steps: got {every_steps!r}, want an integer from "
                               "1 on")  # fmt: skip
        self.network: Network | None = None
        self._source = network
        self._every_steps, self._validation_metric = every_steps, validation_metric
        self._settings, self._seeds, self._unit = settings or {}, seeds, unit
        self._line = PendingLine()
        self._losses: list[Any] = []  # of the batches of a step
        self._last_step = 0
        self._learning_rate: dict[str, float] = {}

    def on_train_start(self, trainer, pl_module):
        if self.network is not None:
            raise NetworkError("argument", "LightningCallback: got a second fit(), want a callback and a folder "
                               "`statistics` for each")  # fmt: skip
        self.network = attach(trainer.strategy.model, self._source)
        self._last_step = trainer.global_step
        groups = trainer.optimizers[0].param_groups if trainer.optimizers else []
        if groups:
            self._learning_rate = {"learning_rate": float(groups[0].get("initial_lr", groups[0]["lr"]))}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if not self._writes():
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._losses += [] if loss is None else [loss.detach()]
        step = trainer.global_step
        if step == self._last_step or not self._losses:  # gradients are still added up
            return
        losses, self._losses, self._last_step = self._losses, [], step
        if step % self._every_steps == 0:
            mean = sum(one.item() for one in losses) / len(losses)
            self._line.add(self.network, step, {"training_loss": mean})

    def on_validation_end(self, trainer, pl_module):
        found = trainer.callback_metrics.get(self._validation_metric)
        if found is not None and self._writes() and not trainer.sanity_checking:
            self._line.add(self.network, trainer.global_step, {"validation_loss": found})

    def on_fit_end(self, trainer, pl_module):
        if not self._writes():
            return
        self._line.log(self.network)
        seed = os.environ.get("PL_GLOBAL_SEED")
        seeds = self._seeds
        if seeds is None and seed is not None:
            seeds = {"weights": int(seed), "data": int(seed)}
        self.network.finish(settings=self._learning_rate | dict(self._settings), seeds=seeds, unit=self._unit)

    def _writes(self) -> bool:
        return self.network is not None and self.network.statistics_folder is not None
