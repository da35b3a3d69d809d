# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize: texts become token files, with a learned vocabulary or a given one."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/tokenize"
BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
END = "<|endoftext|>"
TEXT = "the cat sat on the mat\n\nthe dog — déjà vu — sat on the cat\n\nthe end, the <|endoftext|> end"


def tokenize(*arguments, cwd):
    ran = subprocess.run([SCRIPT, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    if "cannot install" in ran.stderr:
        pytest.skip(ran.stderr.splitlines()[-1])
    return ran


def tokens_of(file):
    header, tokens = np.split(np.frombuffer(file.read_bytes(), "<u2"), [512])
    assert header.view("<i4")[:3].tolist() == [20240520, 1, len(tokens)]
    assert not header.view("<i4")[3:].any()
    return tokens.tolist()


def text_of(tokens, vocabulary):
    """The documents, by GPT-2's table of printable characters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    spelled = {number: token for token, number in vocabulary.items()}
    documents, current = [], b""
    for token in tokens:
        if spelled[token] == END:
            documents.append(current.decode())
            current = b""
        else:
            current += bytes(byte_of[c] for c in spelled[token])
    assert current == b""
    return documents


@pytest.fixture(scope="module")
def learned_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    (folder / "text.txt").write_text(TEXT)
    ran = tokenize("text.txt", "--out", "a.bin", "--separator", "\n\n", "--vocabulary-size", 280, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture
def learned(learned_once, tmp_path):
    """A copy of its own for each test."""
    return Path(shutil.copytree(learned_once, tmp_path, dirs_exist_ok=True))


def vocabulary_of(folder):
    """Token -> number of the learned vocabulary, the end of a document among them."""
    tokenizer = json.loads((folder / "a.tokenizer.json").read_text())
    return tokenizer["model"]["vocab"] | {added["content"]: added["id"] for added in tokenizer["added_tokens"]}


def test_every_document_comes_back_and_ends_with_the_last_token(learned):
    vocabulary = vocabulary_of(learned)
    assert len(vocabulary) == 280 and vocabulary[END] == 279
    tokens = tokens_of(learned / "a.bin")
    assert text_of(tokens, vocabulary) == TEXT.split("\n\n")
    assert tokens.count(279) == 3, "a text that spells the end ends no document"
    assert len(tokens) < len(TEXT.encode()) // 2


def test_what_is_said_of_a_token_file(learned):
    about = json.loads((learned / "a.json").read_text())
    assert about["texts"] == [{"file": "text.txt", "sha256": hashlib.sha256(TEXT.encode()).hexdigest()}]
    counts = [about[key] for key in ("documents", "bytes", "tokens", "vocabulary")]
    assert counts == [3, len(TEXT.encode()) - 4, len(tokens_of(learned / "a.bin")), 280]
    assert about["tokenizer"][0]["file"] == "a.tokenizer.json"


def test_a_vocabulary_that_is_given_gives_the_same_tokens(learned):
    model = json.loads((learned / "a.tokenizer.json").read_text())["model"]
    (learned / "vocab.json").write_text(json.dumps(vocabulary_of(learned)))
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (learned / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    for given in (["--tokenizer", "a.tokenizer.json"], ["--gpt2", "vocab.json", "merges.txt"]):
        ran = tokenize("text.txt", "--out", "b.bin", "--separator", "\n\n", *given, cwd=learned)
        assert ran.returncode == 0, ran.stderr
        assert (learned / "b.bin").read_bytes() == (learned / "a.bin").read_bytes()
        assert not (learned / "b.tokenizer.json").exists()


def test_a_model_trains_on_the_tokens(learned):
    spec = {
        "name": "words",
        "model": {"preset": "nano", "layers": 1, "width": 16, "heads": 1, "context": 4, "vocabulary": 50257},
        "data": {"tokens": "a.bin", "validation_fraction": 0.3},
        "training": {"steps": 2, "batch_sequences": 1},
        "validation": {"tokens": 8},
        "seed": 1,
    }
    (learned / "spec.json").write_text(json.dumps(spec))
    ran = subprocess.run([BINARY, "run", "spec.json"], cwd=learned, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text.txt", "--out", "a.txt"], "got 'a.txt', want a name that ends in .bin"),
        (["text.txt", "--out", "a.bin", "--vocabulary-size", "256"], "got 256, want 257 to 65536"),
        (["nowhere.txt", "--out", "a.bin"], "nowhere.txt: No such file or directory"),
        (["broken.txt", "--out", "a.bin"], "broken.txt: byte 3 begins no UTF-8 sequence"),
        (["empty.txt", "--out", "a.bin"], "empty.txt: no text"),
        (["text.txt", "--out", "a.bin", "--tokenizer", "nowhere.json"], "nowhere.json: there is no such file"),
        (["text.txt", "--out", "a.bin", "--tokenizer", "text.txt"], "text.txt: "),
        (["text.txt", "--out", "a.bin", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_input_is_named_and_leaves_no_token_file(tmp_path, arguments, message):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "broken.txt").write_bytes(b"abc\xff")
    (tmp_path / "empty.txt").write_text("")
    ran = tokenize(*arguments, cwd=tmp_path)
    assert ran.returncode == 2 and message in ran.stderr, ran.stderr
    assert not list(tmp_path.glob("*.bin*"))


def test_calls_at_the_same_time_install_the_library_once(tmp_path):
    """Two first calls of a fresh clone, with a wheel of this name that ends its caller."""
    if importlib.util.find_spec("tokenizers"):
        pytest.skip("tokenizers is installed: no call installs it")
    script = tmp_path / "clone/scripts/tokenize"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    version = re.search(r'"tokenizers==(.+)"', SCRIPT.read_text())[1]
    information = f"tokenizers-{version}.dist-info"
    with zipfile.ZipFile(tmp_path / f"tokenizers-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tokenizers/__init__.py", "raise SystemExit('the wheel of the test')")
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: tokenizers\nVersion: {version}\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    calls = [
        subprocess.Popen(
            [script, "a.txt", "--out", "a.bin"], env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for _ in range(2)
    ]
    said = [call.communicate(timeout=600)[1] for call in calls]
    assert all(text.endswith("the wheel of the test\n") for text in said), said
    assert sum(text.count("installing") for text in said) == 1, said
