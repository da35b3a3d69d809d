# SPDX-License-Identifier: Apache-2.0
"""Runs of the task classification: their records, the specs that are refused, and models from folders."""

import json
import random

import pytest
from cli_harness import metrics_of, run, run_folders, summary_of, write_spec

WORDS = {"sea": ("wave", "fish", "ship"), "land": ("hill", "tree", "road"), "air": ("bird", "wind", "cloud")}
TRAINING = {"steps": 60, "batch_sequences": 8, "learning_rate": 0.01, "warmup_steps": 2}


def write_examples(path, count, seed=1):
    draw = random.Random(seed)
    lines = ["label\ttext"]
    for i in range(count):
        label = list(WORDS)[i % 3]
        lines.append(f"{label}\t{' '.join(draw.choice(WORDS[label]) for _ in range(draw.randint(1, 4)))}")
    path.write_text("\n".join(lines) + "\n")


def classifier(folder, file="spec.json", training=None, data=None, **changes):
    if not (folder / "train.tsv").exists():
        write_examples(folder / "train.tsv", 120)
        write_examples(folder / "dev.tsv", 45, seed=2)
    data = {"examples": "train.tsv", "validation_examples": "dev.tsv"} | (data or {})
    changes.setdefault("validation", {"every_steps": 30})
    return write_spec(folder, file, task="classification", data=data, training=TRAINING | (training or {}), **changes)


def only_run(folder):
    (one,) = run_folders(folder)
    return one


def test_a_classifier_learns_and_is_recorded(tmp_path):
    classifier(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    folder = only_run(tmp_path)
    spec, summary = json.loads((folder / "spec.json").read_text()), summary_of(folder)
    assert spec["task"] == "classification"
    assert spec["data"]["labels"] == ["air", "land", "sea"]
    quality = summary["classification"]
    assert quality["classes"] == ["air", "land", "sea"]
    assert quality["examples"] == 45 == sum(map(sum, quality["confusion"]))
    assert quality["accuracy"]["value"] > 0.8
    assert quality["accuracy"]["low"] <= quality["accuracy"]["value"] <= quality["accuracy"]["high"]
    lines = metrics_of(folder)
    assert [line["step"] for line in lines if "classification" in line] == [0, 30, 60]
    assert lines[-1]["classification"]["accuracy"] == quality["accuracy"]
    predictions = json.loads((folder / "predictions.json").read_text())
    hits = [a == b for a, b in zip(predictions["labels"], predictions["predictions"], strict=True)]
    assert sum(hits) / 45 == pytest.approx(quality["accuracy"]["value"])
    assert [predictions["classes"][label] for label in predictions["labels"][:3]] == ["sea", "land", "air"]
    # The resolved spec is that of the same run.
    run("run", folder / "spec.json", cwd=tmp_path)
    assert run_folders(tmp_path) == [folder]


@pytest.mark.parametrize("name", ["train.tsv", "./train.tsv", "absolute", "link.tsv", "copy.tsv"])
def test_validation_examples_are_no_training_examples_under_another_name(tmp_path, name):
    spec = classifier(tmp_path)
    (tmp_path / "link.tsv").symlink_to("train.tsv")
    (tmp_path / "copy.tsv").write_bytes((tmp_path / "train.tsv").read_bytes())
    name = str(tmp_path / "train.tsv") if name == "absolute" else name
    classifier(tmp_path, data={"validation_examples": name})
    failed = run("validate", spec, cwd=tmp_path, expect=2).err
    assert f'/data/validation_examples: got "{name}", ' in failed
    assert "want examples that training does not read" in failed


def test_epochs_class_weights_and_frozen_tensors_are_resolved(tmp_path):
    write_examples(tmp_path / "train.tsv", 100)  # 34, 33 and 33 of the classes
    training = {
        "epochs": 2,
        "class_weights": "balanced",
        "layer_decay": 0.5,
        "tensors": [{"match": "w*e.*", "frozen": True}],
    }
    spec = json.loads(
        (tmp_path / classifier(tmp_path, data={"validation_examples": None}, training=training)).read_text()
    )
    del spec["data"]["validation_examples"], spec["training"]["steps"]
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    run("run", "spec.json", cwd=tmp_path)
    resolved = json.loads((only_run(tmp_path) / "spec.json").read_text())["training"]
    assert resolved["steps"] == -(-180 // 8)  # a tenth validates
    assert resolved["class_weights"] == pytest.approx([1.0, 1.0, 1.0], rel=0.05)
    assert [rule["learning_rate_factor"] for rule in resolved["tensors"]] == [0.25, 0.25, 0.5, 0]
    run("run", only_run(tmp_path) / "spec.json", cwd=tmp_path)
    assert len(run_folders(tmp_path)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"layout": "rte"}}, "train.tsv: line 1: has the columns label, text, want a header with label"),
        ({"data": {"labels": ["air", "land"]}}, 'train.tsv: line 2: label "sea", want one of air, land'),
        ({"data": {"labels": ["air", "land", "sea", "fire"]}}, 'no example to train on has the label "fire"'),
        ({"data": {"too_long": "refuse"}, "training": {"sequence_tokens": 8}}, "tokens, want at most 8"),
        ({"data": {"end_of_text": 3}}, "/data/end_of_text: got 3"),
        ({"training": {"class_weights": [1, 2]}}, "class_weights: got [1.0,2.0], want a weight for each of 3 labels"),
        ({"training": {"class_weights": {"air": 1}}}, 'want a weight of the label "land"'),
        ({"training": {"tensors": [{"match": "x.*", "frozen": True}]}}, '/tensors/0/match: got "x.*", which no'),
        ({"training": {"tensors": [{"match": "*", "frozen": True}]}}, "all tensors are frozen"),
        ({"training": {"tensors": [{"match": "*"}]}}, 'want "frozen": true or a learning_rate_factor'),
        ({"validation": {"tokens": 99}}, "/validation/tokens: got 99, want it absent"),
        ({"task": "language_modelling"}, 'got "language_modelling" with /data/examples'),
    ],
)  # fmt: skip
def test_what_a_classifier_cannot_have_is_refused(tmp_path, changes, message):
    classifier(tmp_path)
    spec = json.loads((tmp_path / "spec.json").read_text())
    for section, members in changes.items():
        spec[section] = {**spec[section], **members} if isinstance(members, dict) else members
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    failed = run("validate", "spec.json", cwd=tmp_path, expect=2)
    assert message in failed.err


def test_members_of_examples_are_refused_elsewhere(tmp_path):
    write_spec(tmp_path, data={"text": "corpus.txt", "labels": ["a", "b"]})
    assert (
        '/data/labels: got ["a","b"], which task "classification" alone'
        in run("validate", "spec.json", cwd=tmp_path, expect=2).err
    )
    write_spec(tmp_path, task="classification")
    assert (
        '/task: got "classification" without /data/examples' in run("validate", "spec.json", cwd=tmp_path, expect=2).err
    )


def test_a_pretrained_model_is_exported_as_a_folder_and_fine_tuned(tmp_path):
    write_spec(tmp_path, "lm.json", name="lm")
    run("run", "lm.json", cwd=tmp_path)
    (source,) = run_folders(tmp_path, "lm")
    run("export", source, "--huggingface", "--out", "pretrained", cwd=tmp_path)
    assert json.loads((tmp_path / "pretrained/config.json").read_text())["n_positions"] == 32
    # Without loss the copies of replicated tensors are equal, of which the weights hold one.
    classifier(tmp_path, model={"pretrained": "pretrained"}, network={"payload_bytes": 256})
    run("run", "spec.json", cwd=tmp_path)
    folder = only_run(tmp_path)
    resolved = json.loads((folder / "spec.json").read_text())
    assert resolved["model"]["width"] == 32
    assert summary_of(folder)["classification"]["accuracy"]["value"] > 0.8
    # The fine-tuned model starts another one with the same classes, whose first validation is its last one.
    run("export", folder, "--huggingface", "--out", "tuned", cwd=tmp_path)
    assert json.loads((tmp_path / "tuned/config.json").read_text())["id2label"] == {"0": "air", "1": "land", "2": "sea"}
    classifier(tmp_path, "again.json", name="again", model={"pretrained": "tuned"}, network={"payload_bytes": 256})
    run("run", "again.json", cwd=tmp_path)
    (again,) = run_folders(tmp_path, "again")
    first = metrics_of(again)[0]
    assert first["validation_loss"] == pytest.approx(metrics_of(folder)[-1]["validation_loss"], rel=1e-5)
    assert first["classification"]["accuracy"] == metrics_of(folder)[-1]["classification"]["accuracy"]


def test_eval_gives_the_numbers_of_the_run_and_loses_packets(tmp_path):
    classifier(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    folder = only_run(tmp_path)
    command = [
        "eval",
        "--model",
        folder / "weights.safetensors",
        "--config",
        folder / "spec.json",
        "--examples",
        "dev.tsv",
    ]
    found = json.loads(run(*command, "--json", cwd=tmp_path).out)
    assert found["classification"]["confusion"] == summary_of(folder)["classification"]["confusion"]
    assert run(*command, cwd=tmp_path).out.startswith(f"accuracy {found['classification']['accuracy']['value']:.4f} (")
    network = json.dumps({"payload_bytes": 64, "loss": {"model": "bernoulli", "loss_rate": 0.3}})
    lossy = json.loads(run(*command, "--network", network, "--json", cwd=tmp_path).out)
    assert lossy["losses"]["tp_forward"]["lost"] > 0
    assert lossy["mean_loss"] > found["mean_loss"]
    failed = run(*command, "--tokens", "corpus.txt", cwd=tmp_path, expect=2)
    assert "--tokens: want it or --examples, and not both" in failed.err


def test_eval_of_tokens_has_perplexity_accuracy_and_bits_per_byte(tmp_path):
    write_spec(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    command = [
        "eval",
        "--model",
        only_run(tmp_path) / "weights.safetensors",
        "--config",
        "spec.json",
        "--tokens",
        "corpus.txt",
    ]
    found = json.loads(run(*command, "--json", cwd=tmp_path).out)
    assert found["perplexity"] == pytest.approx(2.718281828459045 ** found["mean_loss"])
    assert found["bits_per_byte"] == pytest.approx(found["mean_loss"] / 0.6931471805599453)
    assert 0.1 < found["accuracy"] < 1
    lossless = json.loads(run(*command, "--network", "{}", "--json", cwd=tmp_path).out)
    assert lossless["mean_loss"] == pytest.approx(found["mean_loss"], rel=1e-5)
    one_rank = run(*command, "--set", "/parallel/tensor=1", "--network", "{}", cwd=tmp_path, expect=2)
    assert "got one for a spec with one rank" in one_rank.err


def test_generate_continues_a_prompt_over_a_network(tmp_path):
    write_spec(tmp_path, "lm.json", name="lm")
    run("run", "lm.json", cwd=tmp_path)
    (source,) = run_folders(tmp_path, "lm")
    run("export", source, "--huggingface", "--out", "pretrained", cwd=tmp_path)
    command = ["generate", "--model", "pretrained", "--prompt", "the quick ", "--tokens", "12"]
    text = run(*command, cwd=tmp_path).out
    assert text.startswith("the quick ")
    assert len(text) == len("the quick ") + 12 + 1
    assert run(*command, "--no-cache", cwd=tmp_path).out == text
    with_spec = ["generate", "--model", source / "weights.safetensors", "--config", "lm.json", *command[3:]]
    lossless = run(*with_spec, "--network", "{}", cwd=tmp_path)
    assert lossless.out == text
    network = json.dumps({"payload_bytes": 32, "loss": {"model": "bernoulli", "loss_rate": 0.5}})
    lossy = run(*command, "--network", network, cwd=tmp_path)
    assert lossy.err.startswith("tp_forward: lost ")
    record = json.loads(run(*command, "--network", network, "--json", cwd=tmp_path).out)
    assert len(record["tokens"]) == 12
    assert "the quick " + record["text"] + "\n" == lossy.out
    assert "want it or --prompt-tokens" in run("generate", "--model", "pretrained", cwd=tmp_path, expect=2).err
    missing = run("generate", "--model", source / "weights.safetensors", "--prompt", "a", cwd=tmp_path, expect=2)
    assert "--config: is missing" in missing.err


def test_lora_trains_adapters_alone_and_leaves_merged_weights(tmp_path):
    write_spec(tmp_path, "lm.json", name="lm")
    run("run", "lm.json", cwd=tmp_path)
    (source,) = run_folders(tmp_path, "lm")
    run("export", source, "--huggingface", "--out", "pretrained", cwd=tmp_path)
    lora = {"lora": {"rank": 4, "targets": ["attn.c_attn", "mlp.c_proj"]}, "learning_rate": 0.03}
    network = {"payload_bytes": 256, "loss": {"model": "bernoulli", "loss_rate": 0}}
    parallel = {"tensor": 2, "data": 2}
    classifier(tmp_path, training=lora, model={"pretrained": "pretrained"}, parallel=parallel, network=network)
    run("run", "spec.json", cwd=tmp_path)
    folder = only_run(tmp_path)
    summary = summary_of(folder)
    assert json.loads((folder / "spec.json").read_text())["training"]["lora"]["alpha"] == 8
    assert summary["classification"]["accuracy"]["value"] > 0.6
    adapter = json.loads((folder / "adapter/adapter_config.json").read_text())
    assert (adapter["r"], adapter["target_modules"], adapter["task_type"]) == (
        4,
        ["attn.c_attn", "mlp.c_proj"],
        "SEQ_CLS",
    )
    assert (
        b"base_model.model.transformer.h.0.mlp.c_proj.lora_B.weight"
        in (folder / "adapter/adapter_model.safetensors").read_bytes()
    )
    # Of 13,088 values of the model, replicas send the gradients of the adapters and the head: two packets or three.
    statistics = json.loads((folder / "loss_statistics.json").read_text())["classes"]["dp_gradient"]
    trained = 4 * (32 + 96) + 4 * (128 + 32) + 3 * 32
    assert statistics["bytes"] < 60 * 2 * 2 * 2 * trained * 4 * 1.1
    # The weights have the adapters in them.
    command = [
        "eval",
        "--model",
        folder / "weights.safetensors",
        "--config",
        folder / "spec.json",
        "--examples",
        "dev.tsv",
    ]
    found = json.loads(run(*command, "--json", cwd=tmp_path).out)
    assert found["classification"]["confusion"] == summary["classification"]["confusion"]
    failed = run("run", "spec.json", "--set", "/training/layer_decay=0.5", cwd=tmp_path, expect=2)
    assert "/training/lora: got it with /training/layer_decay" in failed.err
