# SPDX-License-Identifier: Apache-2.0
"""The model that copies has no loss in the second block, unless the one key that it needs is lost."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BINARY = Path(os.environ.get("DROPTEST_BINARY", ROOT / "build/dev/experiments/droptest"))
DISTANCE = 200
WITHOUT_MEMORY = math.log(64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}: set DROPTEST_BINARY")
    folder = tmp_path_factory.mktemp("copy")
    size = ["--distance", str(DISTANCE)]
    subprocess.run([ROOT / "scripts/make_copy_model", "--out", folder / "model", *size], check=True)
    subprocess.run([ROOT / "scripts/make_copy_task", "--out", folder / "text", "--pairs", "40", *size], check=True)
    return folder


def loss_of(folder, *words):
    spec = ROOT / "experiments/specs/sequence/copy.json"
    settings = {"/model/context": 2 * DISTANCE, "/model/pretrained": str(folder / "model"),
                "/data/shards": str(folder / "text")}  # fmt: skip
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command = [BINARY, "eval", "--json", "--model", folder / "model", "--config", spec, "--tokens", folder / "text"]
    done = subprocess.run([*command, *sets, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["mean_loss"]


def test_every_second_block_is_copied(folder):
    assert WITHOUT_MEMORY / 2 < loss_of(folder) < WITHOUT_MEMORY / 2 + 0.03


def test_at_full_loss_no_letter_is_copied(folder):
    loss = {"fill": "absent", "loss": {"model": "bernoulli", "loss_rate": 1}}
    network = {"path": "direct", "classes": {"sequence_forward": loss}}
    # The second rank of the ring has the copies, and the first one the sources.
    assert loss_of(folder, "--network", json.dumps(network)) > WITHOUT_MEMORY


@pytest.mark.parametrize("script", ["make_copy_model", "make_copy_task"])
def test_a_path_that_cannot_be_written_is_named(script):
    done = subprocess.run(
        [ROOT / "scripts" / script, "--out", "/proc/none/x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "error: --out: " in done.stderr and "/proc/none" in done.stderr
