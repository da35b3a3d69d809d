# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
for folder in (TESTS.parents[1] / "analysis", TESTS):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import synthetic  # noqa: E402


@pytest.fixture(scope="session")
def mixed(tmp_path_factory):
    """A sweep in which everything happens: completed, diverged, failed, unfinished and missing runs.

    Rates 0, 1, 5, 20 and 40 % and three seeds; the final losses of completed runs are exact numbers.
    """

    def outcome(point, seed):
        rate = synthetic.probability(point["/network/loss"].get("loss_rate", 0))
        return {
            (0.01, 3): "failed",
            (0.05, 2): "unfinished",
            (0.05, 3): "missing",
            (0.2, 1): "diverged",
            (0.4, 1): "diverged",
            (0.4, 2): "diverged",
            (0.4, 3): "diverged",
        }.get((rate, seed), "completed")

    def final(point, seed):
        rate = synthetic.probability(point["/network/loss"].get("loss_rate", 0))
        return 2.0 + 0.5 * seed + rate * (1 + 0.1 * seed) if outcome(point, seed) == "completed" else None

    losses = [synthetic.NONE, *(synthetic.bernoulli(rate) for rate in (0.01, 0.05, 0.2, 0.4))]
    return synthetic.write_sweep(
        tmp_path_factory.mktemp("mixed"),
        {"/network/loss": losses},
        name="mixed",
        description="Does <script>alert('x')</script> & $50 of loss matter?",
        outcomes=outcome,
        final_losses=final,
    )
