# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize --examples: labelled texts in tokens, and files that it refuses as droptest does."""

import importlib.util
import json
import os
import random
import subprocess
from importlib.machinery import SourceFileLoader
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
    return subprocess.run([BINARY, "validate", "spec.json"], cwd=cwd, capture_output=True, text=True,
                          errors="replace")  # fmt: skip


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
        ("a.jsonl", "plain", b'{"label": "x", "text": "a", "label": "y"}\n'),
        ("a.jsonl", "plain", b'{"label": "x", "text": "a", "more": [0, {"a/b": 1, "a/b": 2}]}\n'),
        ("a.jsonl", "plain", b'{"label": "x", "text": "a", "more": ' + b"[" * 64 + b"]" * 64 + b"}\n"),
        ("a.jsonl", "plain", b'{"label": "x", "text": "a"}\n' + b"[" * 100000),
        ("a.jsonl", "plain", b'{"label": 18446744073709551616, "text": "a"}\n'),
        ("a.jsonl", "plain", b'{"label": -9223372036854775809, "text": "a"}\n'),
        ("a.jsonl", "plain", b'{"label": ["' + "ä".encode() * 100 + b'"], "text": "a"}\n'),
        ("a.jsonl", "plain", b'{"label": {"b": "\\u0001", "a": 1e-7}, "text": "a"}\n'),
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
        ("a.jsonl", b'{"label": "x"\n', "a.jsonl: line 1: not JSON: "),
        ("a.jsonl", b'{"label": "x", "text": "a", "p": NaN}\n', "a.jsonl: line 1: not JSON: NaN"),
        ("a.jsonl", b'{"label": "x", "text": "a", "p": [-Infinity]}\n', "a.jsonl: line 1: not JSON: -Infinity"),
        ("a.jsonl", b'{"label": "x", "text": "a", "p": 1e999}\n', "got 1e999, want a number in a double's range"),
        ("a.jsonl", b'{"label": "x", "text": "a", "p": ' + b"9" * 5000 + b"}\n", "want a number in a double's range"),
        ("a.jsonl", b'{"label": "x", "text": "a"}\n{"label": "x", "text": "\\ud800"}\n', "a.jsonl: line 2: "),
        ("a.jsonl", b'{"label": "x", "tokens": [1]}\n', "line 1: has tokens, want a text that is not in tokens yet"),
        ("a.jsonl", b'{"label": "x", "text": "a"}\0, more\n', "a.jsonl: line 1: not JSON: "),
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


@pytest.fixture(scope="module")
def script():
    """scripts/tokenize as a module: its readers of examples need no library."""
    loader = SourceFileLoader("tokenize_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def damaged(generator, content):
    """The bytes with one to three changes of the kinds that files meet."""
    # fmt: off
    numbers = [b"NaN", b"1e999", b"-1e999", b"1e-999", b"-0", b"00", b"1.0", b"18446744073709551615",
               b"18446744073709551616", b"9" * 400]
    members = [b"true", b"null", b'"label"', b'"text"', b'"label": "z", ', b'{"a": 1, "a": 2}', b"[" * 61 + b"]" * 61,
               b"[" * 65 + b"]" * 65]
    characters = [b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\ud83d\\ude00", b"\\u0000", b"\r", b"\n",
                  b"\t", b" ", b'"', b'""', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"/*c*/", b"\x01", b"\x7f"]
    # fmt: on
    pieces = [*numbers, *members, *characters]
    for _ in range(generator.choice((0, 1, 1, 2, 3))):
        at = generator.randrange(len(content) + 1)
        cut = at + generator.choice((0, 0, 1, generator.randrange(12)))
        content = content[:at] + generator.choice([*pieces, b""]) + content[cut:]
    return content


PLAIN_JSON = b"""{"label": "x", "text": "a b", "more": [1, 2.5, {"k": null}]}
{"label": 12, "text_a": "c", "text_b": "", "p": 0.25}
{"text": "d\\n\\u00e9", "label": "y"}
"""
PLAIN_TSV = b'label\ttext\nx\t"a\tb ""c"""\ny\tsay "no"\nz\t\xc3\xa9\n'


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv"])
@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_refused_where_droptest_refuses_them_and_only_there(tmp_path, script, capsys, name, seed):
    generator = random.Random(seed)
    counts = {True: 0, False: 0}
    for case in range(30):
        content = damaged(generator, PLAIN_JSON if name == "a.jsonl" else PLAIN_TSV)
        (tmp_path / name).write_bytes(content)
        try:
            read = [row[1:] for row in script.examples_of([str(tmp_path / name)], "plain", "\n")]
        except SystemExit:
            read = None
        said = capsys.readouterr().err
        counts[read is not None] += 1
        refused = validate(tmp_path / name, "plain", tmp_path)
        if read is None:
            assert refused.returncode == 2, (case, content, said)
            assert said.startswith(f"tokenize: error: {tmp_path / name}") and said.count("\n") == 1
        else:
            assert f"{name}: line" not in refused.stderr and "has no example" not in refused.stderr, (content, refused)
    assert min(counts.values()) >= 5


def test_an_example_of_which_no_token_is_left_is_refused(tmp_path):
    content = json.loads(TOKENIZER.read_text()) | {
        "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}
    }
    (tmp_path / "t.json").write_text(json.dumps(content))
    (tmp_path / "a.tsv").write_text("label\ttext\nx\ta\ny\t  \n")
    ran = subprocess.run(
        [SCRIPT, "a.tsv", "--examples", "plain", "--tokenizer", "t.json", "--out", "out.jsonl"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 2 and 'a.tsv: line 3: no token is left of the text "  "' in ran.stderr, ran.stderr
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
          "vocab": {"[UNK]": 0, "a": 1, "##b": 2, "<s>": 3}}, [1, 2, 0]),
        ({"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
          "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": False, "ignore_merges": False,
          "vocab": {"<unk>": 0, "a": 1, "b": 2, "<s>": 3, "ab": 4}, "merges": ["a b"]}, [4, 0]),
    ],
)  # fmt: skip
def test_examples_need_no_token_that_ends_documents(tmp_path, model, tokens):
    added = {"id": 3, "content": "<s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False}  # fmt: skip
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added], "normalizer": None,
               "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
               "model": model}  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(content))
    (tmp_path / "a.tsv").write_text("label\ttext\nx\tab c\n")
    ran = tokenize("a.tsv", "plain", "--tokenizer", "t.json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert rows_of(tmp_path) == [{"label": "x", "tokens": tokens}]
    assert json.loads((tmp_path / "out.json").read_text())["vocabulary"] == len(model["vocab"])


def test_a_place_in_an_example_is_named(tmp_path):
    content = json.loads(TOKENIZER.read_text())
    del content["model"]["vocab"]["\u0122"]
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "\u0122" not in "".join(merge)]
    (tmp_path / "t.json").write_text(json.dumps(content))
    (tmp_path / "a.tsv").write_text("label\ttext_a\ttext_b\nx\ta\tb\ny\tßa\tc—\n")
    ran = subprocess.run(
        [SCRIPT, "a.tsv", "--examples", "plain", "--tokenizer", "t.json", "--out", "out.jsonl"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    message = 'a.tsv: line 3: the text: byte 5: the character "—" (U+2014) has no token'
    assert ran.returncode == 2 and message in ran.stderr, ran.stderr


def test_labels_are_written_in_utf8_whatever_the_locale(tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext\né\ta\n")
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    ran = subprocess.run(
        [SCRIPT, "a.tsv", "--examples", "plain", "--tokenizer", TOKENIZER, "--out", "out.jsonl"],
        cwd=tmp_path, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert rows_of(tmp_path)[0]["label"] == "é"


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
