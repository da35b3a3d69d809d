# SPDX-License-Identifier: Apache-2.0
"""droptest's own training of nano, and the same nano in PyTorch with loss in Python: equal fates, equal losses."""

import json
import random
import subprocess

import pytest

pytest.importorskip("torch")
from ranks import results, run_ranks
from training import bernoulli

STEPS, RANKS, BATCH, LENGTH, RATE, LEARNING_RATE = 50, 4, 2, 64, 0.02, 1e-3
ONE_BUCKET = 1 << 30
NO_CHANGE = 1e-30  # learning rate


def write_text(file):
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 7))) for _ in range(40)]
    file.write_text(" ".join(generator.choices(words, k=20000)))


def run_spec(binary, folder, name, text, *, model=None, steps=STEPS, learning_rate=LEARNING_RATE):
    """The folder of the run's records."""
    spec = {
        "name": name,
        "model": {"preset": "nano", **(model or {})},
        "data": {"shards": [str(text)], "format": "text", "shuffle": False},
        "parallel": {"data": RANKS, "bucket_bytes": ONE_BUCKET, "first_bucket_bytes": ONE_BUCKET},
        "network": {"classes": {"dp_gradient": {"path": "contribution", "loss": bernoulli(RATE)}}},
        "training": {"steps": steps, "batch_sequences": BATCH, "sequence_tokens": LENGTH, "warmup_steps": 0,
                     "schedule": "constant", "learning_rate": learning_rate},
        "validation": {"every_steps": STEPS, "tokens": 256},
        "record": {"links": "include", "every_steps": 1, "weights": "final"},
        "seeds": {"network": 7},
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(spec))
    subprocess.run([binary, "run", f"{name}.json", "--out", "results"], cwd=folder, check=True, capture_output=True)
    (records,) = (folder / "results" / name).iterdir()
    return records


def test_nano_in_pytorch_has_the_fates_and_the_losses_of_droptests_own(binary, tmp_path):
    text = tmp_path / "words.txt"
    write_text(text)
    weights = run_spec(binary, tmp_path, "start", text, steps=1, learning_rate=NO_CHANGE) / "weights.safetensors"
    own = run_spec(binary, tmp_path, "own", text, model={"weights": str(weights)})
    lines = [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train_loss"] for line in lines if "train_loss" in line]
    assert len(losses) == STEPS
    source = {"network": {"loss": bernoulli(RATE)}, "seed": 7}
    ended = results(run_ranks(tmp_path, RANKS, "nano:train", weights=str(weights), text=str(text), source=source,
                              steps=STEPS, batch=BATCH, length=LENGTH, learning_rate=LEARNING_RATE))  # fmt: skip
    links = json.loads((own / "loss_statistics.json").read_text())["links"]
    assert [link for one in ended for link in one["links"]] == links
    assert all(link["lost"] > 0 for link in links)
    differences = [abs(a - b) for a, b in zip(ended[0]["losses"], losses, strict=True)]
    assert max(differences) <= 1e-3, differences
