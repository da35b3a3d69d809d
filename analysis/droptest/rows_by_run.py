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

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._places

    def of(self, run_ids: Iterable[str]) -> pd.DataFrame:
        """The rows of these runs, in the order of the frame."""
        places = [self._places[run_id] for run_id in dict.fromkeys(run_ids) if run_id in self._places]
        return self._frame.take(np.sort(np.concatenate(places)) if places else [])
