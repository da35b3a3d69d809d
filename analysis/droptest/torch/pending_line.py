# SPDX-License-Identifier: Apache-2.0
"""The line of a step whose numbers come one after the other: the loss of the step, and then that of a validation."""

from __future__ import annotations

from typing import Any

from droptest.network import Network


class PendingLine:
    """Collects the numbers of a step, and logs them when the next step begins."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._numbers: dict[str, Any] = {}
        self.has_logged = False

    def add(self, network: Network, step: int, numbers: dict[str, Any]) -> None:
        if self._step is not None and step != self._step:
            self.log(network)
        self._step = step
        self._numbers |= numbers

    def log(self, network: Network) -> None:
        """Writes what there is."""
        if self._numbers:
            numbers, self._numbers = self._numbers, {}
            self.has_logged = True
            network.log(self._step, **numbers)
        self._step = None
