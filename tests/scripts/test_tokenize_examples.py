# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize --examples: labelled texts in tokens, and files that it refuses as droptest does."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/tokenize"
BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
MODEL = ROOT / "tests/vectors/huggingface/lm"  # with the tokenizer that Hugging Face's library wrote
TOKENIZER = MODEL / "tokenizer.json"


def tokenize(file, layout, *more, cwd):
    ran = subprocess.run(
        [SCRIPT, file, "--examples", layout, "--tokenizer", TOKENIZER, "--out", "out.jsonl", *more],
        cwd=cwd, capture_output=True, text=True,
    )  # fmt: skip
    if "cannot install" in ran.stderr:
        pytest.skip(ran.stderr.splitlines()[-1])
    return ran


def validate(file, layout, cwd):
    """droptest's own reading of the same file."""
    spec = {"name": "t", "task": "classification", "data": {"examples": str(file), "layout": layout}}
    (cwd / "spec.json").write_text(json.dumps(spec))
    return subprocess.run([BINARY, "validate", "spec.json"], cwd=cwd, capture_output=True, text=True)


def rows_of(folder):
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


ENCODED = {item["text"]: item["tokens"] for item in json.loads((MODEL.parent / "encoded.json").read_text())}


@pytest.mark.parametrize(
    ("file", "layout", "content", "wanted"),
    [
        ("a.tsv", "plain", 'label\ttext\nx\t"a\tb ""c"""\ny\tsay "no"\n', [("x", 'a\tb "c"'), ("y", 'say "no"')]),
        ("a.txt", "plain", "n\ttext_b\tlabel\ttext_a\n1\tb\tyes\ta", [("yes", "a | b")]),
        ("a.tsv", "plain", "\ufefflabel\ttext\nx\ty\n", [("x", "y")]),
        ("a.tsv", "cola", 'gj\t1\t\tOur "friends\ngj\t0\t*\tBad\n', [("1", 'Our "friends'), ("0", "Bad")]),
        ("a.tsv", "mnli", "gold_label\tsentence1\tsentence2\n-\ta\tb\nneutral\tc\td\n", [("neutral", "c | d")]),
        ("a.tsv", "sst2", "sentence\tlabel\nfine \t1\n", [("1", "fine ")]),
        ("a.jsonl", "plain", '{"label": 2, "text": "a"}\n{"label": "x", "text_a": "b", "text_b": ""}\n',
         [("2", "a"), ("x", "b | ")]),
        ("a.json", "rte", '{"label": "yes", "sentence1": "a", "sentence2": "b"}\n', [("yes", "a | b")]),
    ],
)  # fmt: skip
def test_examples_are_read_in_their_layout(tmp_path, file, layout, content, wanted):
    (tmp_path / file).write_text(content)
    ran = tokenize(file, layout, "--separator", " | ", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (tmp_path / "plain.jsonl").write_text(
        "".join(json.dumps({"label": label, "text": text}) + "\n" for label, text in wanted)
    )
    rows = rows_of(tmp_path)
    assert [row["label"] for row in rows] == [label for label, _ in wanted]
    about = json.loads((tmp_path / "out.json").read_text())
    assert (about["examples"], about["tokens"]) == (len(wanted), sum(len(row["tokens"]) for row in rows))
    assert tokenize("plain.jsonl", "plain", cwd=tmp_path).returncode == 0
    assert rows_of(tmp_path) == rows


def test_tokens_are_those_of_hugging_face(tmp_path):
    lines = [json.dumps({"label": 1, "text": text}) for text in ENCODED if text]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert tokenize("a.jsonl", "plain", cwd=tmp_path).returncode == 0
    assert [row["tokens"] for row in rows_of(tmp_path)] == [tokens for text, tokens in ENCODED.items() if text]


@pytest.mark.parametrize(
    ("file", "layout", "content"),
    [
        ("a.tsv", "plain", b'label\ttext\nx\t"a\n'),
        ("a.tsv", "plain", b'label\ttext\n"x"y\ta\n'),
        ("a.tsv", "plain", b"label\ttext\nx\ty\r\n"),
        ("a.tsv", "plain", b"label\ttext\nx\tab\xff\n"),
        ("a.tsv", "plain", b"label\ttext\nx\n"),
        ("a.tsv", "plain", b"label\ttext\n\nx\ty\n"),
        ("a.tsv", "plain", b"label\ttext\n\ty\n"),
        ("a.tsv", "plain", b"label\ttext\nx\t\n"),
        ("a.tsv", "plain", b"label\tsentence\nx\ty\n"),
        ("a.tsv", "plain", b"label\ttext\ttext_a\ttext_b\nx\ty\tz\tw\n"),
        ("a.tsv", "plain", b"label\ttext\ttext\nx\ty\tz\n"),
        ("a.tsv", "plain", b"label\ttext\n"),
        ("a.tsv", "plain", b""),
        ("a.tsv", "sst2", b"sentence\tlabel\na\n"),
        ("a.tsv", "qqp", b"sentence\tlabel\n"),
        ("a.tsv", "cola", b"1\tx\n"),
        ("a.tsv", "mnli", b"gold_label\tsentence1\tsentence2\n-\ta\tb\n"),
        ("a.csv", "plain", b"label\ttext\nx\ty\n"),
        ("a.jsonl", "plain", b'{"label": 1.5, "text": "a"}\n'),
        ("a.jsonl", "plain", b'{"label": true, "text": "a"}\n'),
        ("a.jsonl", "plain", b'{"label": "x", "text": 5}\n'),
        ("a.jsonl", "plain", b'{"text": "a"}\n'),
        ("a.jsonl", "plain", b'{"label": "x", "text": "a", "text_a": "b"}\n'),
        ("a.jsonl", "plain", b'{"label": "x", "text_a": "b"}\n'),
        ("a.jsonl", "plain", b'{"label": "x"}\n'),
        ("a.jsonl", "plain", b'{"label": "", "text": "a"}\n'),
        ("a.jsonl", "plain", b"[1]\n"),
        ("a.jsonl", "plain", b'{"label": "x", "text": "a"}\n\n'),
        ("a.jsonl", "rte", b'{"label": "x", "sentence1": "a"}\n'),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_the_words_of_droptest(tmp_path, file, layout, content):
    (tmp_path / file).write_bytes(content)
    ran = tokenize(file, layout, cwd=tmp_path)
    assert ran.returncode == 2, ran.stderr
    assert not list(tmp_path.glob("out*"))
    message = ran.stderr.removeprefix("tokenize: error: ").strip()
    assert message.startswith(f"{file}: ")
    refused = validate(file, layout, tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.jsonl", b'{"label": "x"\n', "a.jsonl: line 1: "),
        ("a.jsonl", b'{"label": "x", "text": "a"}\n{"label": "x", "text": "\\ud800"}\n', "a.jsonl: line 2: "),
        pytest.param("a.jsonl", b"[" * 100000, "a.jsonl: line 1: ", id="deep"),
        ("a.jsonl", b'{"label": "x", "tokens": [1]}\n', "line 1: has tokens, want a text that is not in tokens yet"),
        ("none.tsv", None, "none.tsv: No such file or directory"),
    ],
)  # fmt: skip
def test_other_bad_files_are_named(tmp_path, file, content, message):
    if content is not None:
        (tmp_path / file).write_bytes(content)
    ran = tokenize(file, "plain", cwd=tmp_path)
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False)
    assert message in ran.stderr
    assert not list(tmp_path.glob("out*"))


def test_a_long_cell_and_a_lone_carriage_return_are_text(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"label\ttext\nx\t" + b"a" * 140000 + b"\ny\tb\rc\n")
    assert tokenize("a.tsv", "plain", cwd=tmp_path).returncode == 0
    assert [row["label"] for row in rows_of(tmp_path)] == ["x", "y"]
    (tmp_path / "b.tsv").write_bytes(b"label\ttext\nx\ta\rb\ny\tc\nx\ta\ny\tc\n")
    (tmp_path / "spec.json").write_text(
        json.dumps({"name": "t", "task": "classification",
                    "data": {"examples": "b.tsv", "validation_fraction": 0.5}})
    )  # fmt: skip
    accepted = subprocess.run([BINARY, "validate", "spec.json"], cwd=tmp_path, capture_output=True, text=True)
    assert accepted.returncode == 0, accepted.stderr


def test_the_vocabulary_has_one_hash_in_python_and_in_droptest(tmp_path):
    """The sidecar's hash is the one that a spec with the folder resolves to; another vocabulary's is refused."""
    texts = "label\ttext\n" + "x\tsome words\ny\tother words\n" * 3
    (tmp_path / "a.tsv").write_text(texts)
    for more, refused in ([], False), (["--gpt2", MODEL / "vocab.json", MODEL / "merges.txt"], False), (
        ["--vocabulary-size", "260"], True,
    ):  # fmt: skip
        source = more or ["--tokenizer", TOKENIZER]
        ran = subprocess.run(
            [SCRIPT, "a.tsv", "--examples", "plain", "--out", "out.jsonl", *source],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        spec = {"name": "t", "task": "classification", "model": {"pretrained": str(MODEL)},
                "data": {"examples": "out.jsonl", "validation_examples": "other.jsonl"}}  # fmt: skip
        (tmp_path / "other.jsonl").write_text((tmp_path / "out.jsonl").read_text() * 2)
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        checked = subprocess.run([BINARY, "validate", "spec.json"], cwd=tmp_path, capture_output=True, text=True)
        if refused:
            assert "out.jsonl was made with the vocabulary" in checked.stderr
        else:
            assert checked.returncode == 0, checked.stderr
