# SPDX-License-Identifier: Apache-2.0
"""A run id can be computed from a run's spec.json with any SHA-256 and JSON writer, as docs/specs.md says."""

import hashlib
import json

RESOLVED = """
{"backend": {"name": "local", "rendezvous": {"kind": "auto"}, "threads_per_rank": 1, "timeout_seconds": 60.0},
 "data": {"text": "a.txt", "validation_fraction": 0.1}, "description": "",
 "model": {"context": 128, "heads": 4, "layers": 4, "vocabulary": 256, "width": 128}, "name": "t",
 "network": {"classes": {
   "tp_backward": {"burst_scope": "link", "consistency": "per_receiver",
     "gather": {"fill": "zero", "loss": {"loss_rate": 0.05, "model": "bernoulli"}}, "path": "direct",
     "payload_bytes": 1408, "reduce": {"fill": "zero", "loss": {"loss_rate": 0.05, "model": "bernoulli"}}},
   "tp_forward": {"burst_scope": "link", "consistency": "per_receiver",
     "gather": {"fill": "zero", "loss": {"loss_rate": 0.05, "model": "bernoulli"}}, "path": "direct",
     "payload_bytes": 1408, "reduce": {"fill": "zero", "loss": {"loss_rate": 0.05, "model": "bernoulli"}}}}},
 "parallel": {"tensor": 2},
 "record": {"every_steps": 10, "links": "omit", "sample_every_steps": 50, "weights": "final"}, "seed": 1,
 "training": {"accumulation": 1, "batch_sequences": 8, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-08,
   "final_learning_rate": 0.0001, "gradient_clip": 1.0, "learning_rate": 0.001, "sequence_tokens": 128, "steps": 300,
   "warmup_steps": 0, "weight_decay": 0.1},
 "validation": {"every_steps": 50, "network": "lossless", "tokens": 65536}}
"""


def run_id(spec):
    for key in ("name", "description", "record"):
        del spec[key]
    for key in ("timeout_seconds", "threads_per_rank", "rendezvous"):
        del spec["backend"][key]
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_golden_run_id():
    # The same spec and id are in resolve_test.cc.
    assert run_id(json.loads(RESOLVED)) == "5a6aacf4ab801b37"
