# SPDX-License-Identifier: Apache-2.0
"""examples/jax/lossy_gradients.py: the bits of JAX without loss; with loss the packets that `droptest fates` names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jaxlib")  # jax is the name of this folder, too

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples/jax/lossy_gradients.py"
BINARY = Path(os.environ.get("DROPTEST_BINARY", ROOT / "build/dev/experiments/droptest"))
LIBRARY = os.environ.get("DROPTEST_LIBRARY", str(BINARY.parents[1] / "api/libdroptest.so.0.1"))
STEPS, RANKS = 20, 2
LOSS = {"model": "bernoulli", "loss_rate": "5%"}
MESSAGE_BYTES = 4 * (128 * 128 + 128)
PAYLOAD_BYTES = 1408


def losses(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "analysis"), "DROPTEST_LIBRARY": LIBRARY,
                                "JAX_PLATFORMS": "cpu"}  # fmt: skip
    done = subprocess.run([sys.executable, PROGRAM, "--steps", str(STEPS), *map(str, words)], cwd=folder,
                          env=environment, capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return re.findall(r"^step \d+: loss (\S+)$", done.stdout, re.MULTILINE)


def network(folder, loss):
    file = folder / "network.json"
    file.write_text(json.dumps({"network": {"loss": loss}, "seed": 3, "statistics": "counts"}))
    return file


def test_a_network_without_loss_keeps_every_bit(tmp_path):
    plain = losses(tmp_path)
    assert len(plain) == STEPS
    assert losses(tmp_path, "--network", network(tmp_path, {"model": "none"})) == plain


def test_each_device_loses_the_packets_of_its_own_link(tmp_path):
    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}: set DROPTEST_BINARY")
    plain = losses(tmp_path)
    lossy = losses(tmp_path, "--network", network(tmp_path, LOSS))
    assert lossy[0] == plain[0] and lossy[1:] != plain[1:]  # the first loss is of the first parameters
    record = json.loads((tmp_path / "counts/loss_statistics.json").read_text())
    assert record["ranks"] == {"world_size": RANKS, "missing": []}
    counts = record["classes"]["dp_gradient"]
    packets = STEPS * -(-MESSAGE_BYTES // PAYLOAD_BYTES)
    assert counts["packets"] == RANKS * packets and abs(counts["z"]) < 4
    assert sorted(link["source"] for link in record["links"]) == list(range(RANKS))
    for link in record["links"]:
        words = [BINARY, "fates", "--loss", json.dumps(LOSS), "--seed", "3", "--class", "dp_gradient", "--src",
                 str(link["source"]), "--dst", "65535", "--first", "0", "--count", str(packets),
                 "--format", "json"]  # fmt: skip
        drawn = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        assert (link["lost"], link["digest"]) == (drawn["lost"], drawn["digest"])
