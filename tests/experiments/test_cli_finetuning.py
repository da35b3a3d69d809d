# SPDX-License-Identifier: Apache-2.0
"""Models that come from Hugging Face's folders and go back there: export, eval and generate as their users see them."""

import json
import math
import shutil
import struct
from pathlib import Path

import pytest
from cli_harness import metrics_of, run, run_folders, summary_of, write_spec
from test_cli_classification import classifier, only_run

FOLDER = Path(__file__).parents[1] / "vectors/huggingface/lm"  # a language model with its tokenizer
VOCABULARY = 270


def tensors_in(file):
    """Name -> shape."""
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def token_classifier(folder, **changes):
    """A spec of two classes that starts from FOLDER, with examples in its tokens."""
    for file, first in (("train.jsonl", 7), ("dev.jsonl", 8)):
        rows = [{"label": "ab"[i % 2], "tokens": [5 + i % 2, first + i]} for i in range(12)]
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "tokens", "task": "classification", "model": {"pretrained": str(FOLDER)},
        "data": {"examples": "train.jsonl", "validation_examples": "dev.jsonl"},
        "training": {"steps": 2, "batch_sequences": 2, "warmup_steps": 1},
    }  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec | changes))


def write_language_model(folder):
    """A run of the harness's spec, and its export as the folder `pretrained`. Returns the run's folder."""
    write_spec(folder, "lm.json", name="lm")
    run("run", "lm.json", cwd=folder)
    (source,) = run_folders(folder, "lm")
    run("export", source, "--huggingface", "--out", "pretrained", cwd=folder)
    return source


def test_exported_folders_have_the_names_and_the_tokenizer_of_hugging_face(tmp_path):
    token_classifier(tmp_path)
    said = run("export", "spec.json", "--initial", "--huggingface", "--out", "out", cwd=tmp_path).out
    assert f"and the tokenizer of {FOLDER}" in said
    names = tensors_in(tmp_path / "out/model.safetensors")
    assert names.pop("score.weight") == [2, 16]
    assert all(name.startswith("transformer.") for name in names)
    assert {"transformer.wte.weight", "transformer.h.1.mlp.c_proj.bias", "transformer.ln_f.bias"} < set(names)
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (FOLDER / name).read_bytes()
    # The copy is the same vocabulary to a spec that starts from it.
    spec = json.loads((tmp_path / "spec.json").read_text()) | {"model": {"pretrained": "out"}}
    (tmp_path / "again.json").write_text(json.dumps(spec))
    run("validate", "again.json", cwd=tmp_path)
    run("export", "spec.json", "--initial", "--out", "plain.safetensors", cwd=tmp_path)
    assert "wte.weight" in tensors_in(tmp_path / "plain.safetensors")


def test_eval_refuses_weights_that_were_not_trained_to_classify(tmp_path):
    token_classifier(tmp_path)
    failed = run("eval", "--model", FOLDER, "--config", "spec.json", "--examples", "dev.jsonl", cwd=tmp_path, expect=2)
    assert 'tensor "score.weight" is missing, want shape [2, 16]' in failed.err


def test_eval_compares_a_folder_with_examples_and_labels(tmp_path):
    token_classifier(tmp_path)
    run("export", "spec.json", "--initial", "--huggingface", "--out", "out", cwd=tmp_path)
    command = ["eval", "--model", "out", "--config", "spec.json", "--examples", "dev.jsonl"]
    run(*command, cwd=tmp_path)
    (tmp_path / "dev.json").write_text(json.dumps({"vocabulary_sha256": "1" * 64}))
    assert (
        "dev.jsonl was made with the vocabulary 111111111111..., but out has"
        in run(*command, cwd=tmp_path, expect=2).err
    )
    (tmp_path / "dev.json").write_text(json.dumps({"vocabulary_sha256": 5}))
    assert "dev.json: /vocabulary_sha256: got 5, want a text" in run(*command, cwd=tmp_path, expect=2).err
    (tmp_path / "dev.json").unlink()
    config = json.loads((tmp_path / "out/config.json").read_text())
    (tmp_path / "out/config.json").write_text(json.dumps(config | {"id2label": {"0": "b", "1": "a"}}))
    assert 'has the classes ["b","a"], but /data/labels has ["a","b"]' in run(*command, cwd=tmp_path, expect=2).err


def test_a_folder_with_other_classes_is_refused_before_the_run(tmp_path):
    token_classifier(tmp_path)
    run("export", "spec.json", "--initial", "--huggingface", "--out", "out", cwd=tmp_path)
    spec = json.loads((tmp_path / "spec.json").read_text()) | {"model": {"pretrained": "out"}}
    spec["data"]["labels"] = ["a", "b", "c"]
    for file in ("train.jsonl", "dev.jsonl"):
        with (tmp_path / file).open("a") as more:
            more.write('{"label": "c", "tokens": [9]}\n')
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    failed = run("validate", "spec.json", cwd=tmp_path, expect=2)
    assert "/model/pretrained: out: its score.weight is of 2 classes, but /data/labels has 3" in failed.err


@pytest.mark.parametrize("network", [[], ["--network", "{}", "--set", "/parallel/tensor=2"]])
def test_bits_per_byte_of_tokens_are_those_of_their_text(tmp_path, network):
    tokens = [(7 * i) % 200 + 10 for i in range(101)]
    (tmp_path / "a.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    spec = {"name": "t", "model": {"pretrained": str(FOLDER)}, "data": {"tokens": "a.bin", "format": "uint16"}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = ["eval", "--model", FOLDER, "--config", "spec.json", "--tokens", "a.bin", "--format", "uint16", *network]
    without = json.loads(run(*command, "--json", cwd=tmp_path).out)
    assert "bits_per_byte" not in without
    # 101 tokens of 404 bytes: four bytes a token.
    (tmp_path / "a.json").write_text(json.dumps({"bytes": 404, "tokens": 101}))
    found = json.loads(run(*command, "--json", cwd=tmp_path).out)
    assert found["bits_per_byte"] == pytest.approx(found["mean_loss"] / math.log(2) / 4)
    for sidecar, message in [
        ('{"bytes": "many", "tokens": 3}', 'a.json: /bytes: got "many", want a whole number above 0'),
        ('{"bytes": 404, "tokens": 0}', "a.json: /tokens: got 0, want a whole number above 0"),
        ('{"bytes": 404', "a.json"),
        ('{"bytes": 404, "tokens": 100}', "a.json: /tokens: got 100, but a.bin has 101 tokens; want the file that"),
    ]:
        (tmp_path / "a.json").write_text(sidecar)
        failed = run(*command, cwd=tmp_path, expect=2)
        assert message in failed.err and "json.exception" not in failed.err


def test_bytes_are_no_tokens_of_a_model_with_a_tokenizer(tmp_path):
    token_classifier(tmp_path)
    (tmp_path / "dev.tsv").write_text("label\ttext\na\tx\nb\ty\n")
    (tmp_path / "a.txt").write_text("the words " * 400)
    lm = {"name": "lm", "model": {"pretrained": str(FOLDER)}, "data": {"text": "a.txt"}}
    (tmp_path / "lm.json").write_text(json.dumps(lm))
    call = f"want the token file of scripts/tokenize a.txt --tokenizer {FOLDER}/tokenizer.json --out a.tokens.bin"
    said = f"/data/text: a.txt: is a text, whose tokens are its bytes, but {FOLDER} has a tokenizer; {call}"
    assert said in run("validate", "lm.json", cwd=tmp_path, expect=2).err
    (tmp_path / "lm.json").write_text(json.dumps(lm | {"data": {"tokens": "a.bin"}}))
    run("export", "lm.json", "--initial", "--out", "plain.safetensors", cwd=tmp_path)
    # The spec of weights in a file names the folder, too.
    for model in (FOLDER, "plain.safetensors"):
        command = ["eval", "--model", model, "--config", "lm.json", "--tokens", "a.txt"]
        assert call in run(*command, cwd=tmp_path, expect=2).err
    run("export", "spec.json", "--initial", "--huggingface", "--out", "out", cwd=tmp_path)
    failed = run("eval", "--model", "out", "--config", "spec.json", "--examples", "dev.tsv", cwd=tmp_path, expect=2).err
    assert "dev.tsv: line 2: is a text, whose tokens are its bytes, but out has a tokenizer" in failed
    assert "scripts/tokenize dev.tsv --examples plain --tokenizer out/tokenizer.json --out dev.tokens.jsonl" in failed


def test_generate_takes_tokens_for_a_tokenizer_that_it_does_not_know(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(FOLDER, folder)
    command = ["generate", "--model", "model", "--tokens", "3"]
    words = json.loads((folder / "tokenizer.json").read_text())
    for tokenizer, message in [
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, '/model/type: got "WordPiece", want "BPE"'),
        (words | {"normalizer": {"type": "Lowercase"}}, '/normalizer: got {"type":"Lowercase"}, want null'),
    ]:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        assert message in run(*command, "--prompt", "the", cwd=tmp_path, expect=2).err
        said = run(*command, "--prompt-tokens", "5,7", cwd=tmp_path).out
        assert said.startswith(" 5 7 ") and len(said.split()) <= 5


def test_generate_refuses_what_would_have_no_effect(tmp_path):
    source = write_language_model(tmp_path)
    command = ["generate", "--model", "pretrained", "--prompt", "the quick ", "--tokens", "4"]
    lossy = json.dumps({"loss": {"model": "bernoulli", "loss_rate": 0.5}})
    one_rank = "--network: got one for a spec with one rank, which sends no packet"
    assert one_rank in run(*command, "--network", lossy, "--tensor", "1", cwd=tmp_path, expect=2).err
    with_spec = ["generate", "--model", source / "weights.safetensors", "--config", "lm.json", *command[3:]]
    alone = [*with_spec, "--set", "/parallel/tensor=1", "--network", lossy]
    assert one_rank in run(*alone, cwd=tmp_path, expect=2).err
    error = run(*command, "--temperature", "nan", cwd=tmp_path, expect=2).err
    assert '--temperature: got "nan", want a number from 0 to 100' in error
    # --set changes the spec that a folder stands for.
    assert (
        "/parallel/tensor: got 65, want at most"
        in run(*command, "--set", "/parallel/tensor=65", cwd=tmp_path, expect=2).err
    )


def test_records_have_the_confusion_of_each_evaluation_and_the_cut_examples(tmp_path):
    classifier(tmp_path, training={"sequence_tokens": 12})
    run("run", "spec.json", cwd=tmp_path)
    folder = only_run(tmp_path)
    measured = [line["classification"] for line in metrics_of(folder) if "classification" in line]
    assert len(measured) == 3
    for quality in measured:
        assert sum(map(sum, quality["confusion"])) == 45
        hits = [row[i] for i, row in enumerate(quality["confusion"])]
        predicted = [sum(column) for column in zip(*quality["confusion"], strict=True)]
        for i, f1 in enumerate(quality["f1"]):
            assert f1["value"] == pytest.approx(2 * hits[i] / (sum(quality["confusion"][i]) + predicted[i]))
            assert f1["low"] <= f1["value"] <= f1["high"]
    last = summary_of(folder)["classification"]
    assert last["f1"] == measured[-1]["f1"]
    long = {name: sum(len(line.split("\t")[1]) > 12 for line in (tmp_path / file).read_text().splitlines()[1:])
            for name, file in (("training", "train.tsv"), ("validation", "dev.tsv"))}  # fmt: skip
    assert last["cut_examples"] == long and long["training"] > 0


def test_lora_with_the_usual_alpha_is_one_run(tmp_path):
    token_classifier(tmp_path, training={"steps": 2, "batch_sequences": 2, "warmup_steps": 1, "lora": {"rank": 2}})
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path, "tokens")
    run("run", folder / "spec.json", cwd=tmp_path)
    assert run_folders(tmp_path, "tokens") == [folder]
    assert "base_model.model.score.weight" in tensors_in(folder / "adapter/adapter_model.safetensors")
