# SPDX-License-Identifier: Apache-2.0
"""The rows of a frame by run: a search through the whole frame for each point makes a table quadratic in the runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd


class RowsByRun:
    """A frame with the column `run_id`, of which of() has the rows of some runs without a look at all others."""

    def __init__(self, frame: pd.DataFrame):
        self._frame = frame
        self._places: dict[str, np.ndarray] = frame.groupby("run_id", sort=False).indices
        self._arrays: dict[str, np.ndarray] = {}

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._places

    def of(self, run_ids: Iterable[str]) -> pd.DataFrame:
        """The rows of these runs, in the order of the frame."""
        return self._frame.take(self._rows(run_ids))

    def columns(self, run_ids: Iterable[str], *names: str) -> list[np.ndarray]:
        """Columns of the rows of these runs, in the order of the frame."""
        rows = self._rows(run_ids)
        return [self._array(name)[rows] for name in names]

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = self._frame[name].to_numpy()
        return self._arrays[name]

    def _rows(self, run_ids: Iterable[str]) -> np.ndarray:
        places = [self._places[run_id] for run_id in dict.fromkeys(run_ids) if run_id in self._places]
        return np.sort(np.concatenate(places)) if places else np.empty(0, int)
