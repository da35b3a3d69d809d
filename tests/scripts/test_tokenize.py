# SPDX-License-Identifier: Apache-2.0
"""scripts/tokenize: texts become token files, with a learned vocabulary or a given one."""

import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from byte_pairs import random_settings, spec_with_folder

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


def of_library(folder, texts):
    """The tokens of each text by the library itself, with the file tokenizer.json of the folder."""
    program = """
import json, sys, tokenizers
content = json.load(open("tokenizer.json"))
content |= {"truncation": None, "padding": None, "post_processor": None}
content["model"]["dropout"] = None
tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
tokenizer.encode_special_tokens = True
print(json.dumps([tokenizer.encode(text, add_special_tokens=False).ids for text in json.load(sys.stdin)]))
"""
    python = ROOT / ".cache/tokenize/bin/python"  # scripts/tokenize made it
    ran = subprocess.run([python if python.exists() else "python3", "-c", program], cwd=folder, input=json.dumps(texts),
                         capture_output=True, text=True)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


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


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": END, "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {END: {"id": END, "ids": [279], "tokens": [END]}},
}  # fmt: skip
STORED = {
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "!"},
    "post_processor": TEMPLATE,
}  # fmt: skip


@pytest.mark.parametrize("stored", [*STORED, "dropout", "all"])
def test_what_a_file_stores_for_other_uses_changes_no_token(learned, stored):
    content = json.loads((learned / "a.tokenizer.json").read_text())
    content |= STORED if stored == "all" else {key: value for key, value in STORED.items() if key == stored}
    if stored in ("dropout", "all"):
        content["model"]["dropout"] = 0.9
    (learned / "stored.json").write_text(json.dumps(content))
    ran = tokenize("text.txt", "--out", "b.bin", "--separator", "\n\n", "--tokenizer", "stored.json", cwd=learned)
    assert ran.returncode == 0, ran.stderr
    assert (learned / "b.bin").read_bytes() == (learned / "a.bin").read_bytes()
    hashes = [json.loads((learned / name).read_text())["vocabulary_sha256"] for name in ("a.json", "b.json")]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("seed", range(12))
def test_tokens_are_those_of_the_library_whatever_the_settings(learned, seed):
    """Random normalizers, cuts into words, options of the model and added tokens."""
    generator = random.Random(seed)
    content = json.loads((learned / "a.tokenizer.json").read_text())
    random_settings(generator, content)
    content |= {key: value for key, value in STORED.items() if generator.random() < 0.5}
    if generator.random() < 0.5:
        content["model"]["dropout"] = 0.5
    (learned / "tokenizer.json").write_text(json.dumps(content))
    characters = [*"aàbcdeth \n\t'.…é", "the", " cat", "<extra>", END, "\U0001f600"]
    texts = ["".join(generator.choices(characters, k=generator.randrange(1, 40))) for _ in range(20)]
    (learned / "many.txt").write_text("@@".join(texts))
    ran = tokenize("many.txt", "--out", "b.bin", "--separator", "@@", "--tokenizer", "tokenizer.json", cwd=learned)
    assert ran.returncode == 0, ran.stderr
    tokens = tokens_of(learned / "b.bin")
    assert tokens == [token for ids in of_library(learned, texts) for token in [*ids, 279]]


@pytest.mark.parametrize(
    ("change", "missing", "character", "what"),
    [
        ({}, "g", "g", "has no token"),
        ({"fuse_unk": True}, "g", "g", "has no token"),
        ({"ignore_merges": True}, "g", "g", "has no token"),
        ({"unk_token": ""}, "g", "g", "has no token"),
        ({"unk_token": END}, "g", "g", f"becomes the token {END}, which ends documents"),
        ({"continuing_subword_prefix": "##", "merges": []}, "g", "h", "has no token"),
        ({"end_of_word_suffix": "</w>", "merges": []}, "g", "e", "has no token"),
        ({}, "\u0136", "—", "has no token"),  # one of its three bytes
    ],
)
def test_a_character_without_a_token_is_named_with_its_place(learned, change, missing, character, what):
    content = json.loads((learned / "a.tokenizer.json").read_text())
    model = content["model"]
    vocabulary = {token: place for place, token in enumerate(token for token in model["vocab"] if missing not in token)}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    model |= {"merges": [merge for merge in merges if missing not in "".join(merge)]}
    model |= {"vocab": vocabulary | {END: len(vocabulary)}} | change
    content["added_tokens"][0]["id"] = len(vocabulary)
    (learned / "poor.json").write_text(json.dumps(content))
    ran = tokenize("text.txt", "--out", "b.bin", "--separator", "\n\n", "--tokenizer", "poor.json", cwd=learned)
    place = f"byte {TEXT.encode().index(character.encode())}"
    assert f'text.txt: {place}: the character "{character}" (U+{ord(character):04X}) {what}' in ran.stderr, ran.stderr
    assert ran.returncode == 2 and "Traceback" not in ran.stderr and not (learned / "b.bin").exists()


def test_a_text_that_becomes_the_end_of_documents_is_refused(learned):
    content = json.loads((learned / "a.tokenizer.json").read_text())
    content["added_tokens"][0]["special"] = False  # so the library looks for it in texts
    (learned / "b.json").write_text(json.dumps(content))
    ran = tokenize("text.txt", "--out", "c.bin", "--separator", "\n\n", "--tokenizer", "b.json", cwd=learned)
    place = TEXT.encode().index(END.encode())
    assert ran.returncode == 2
    assert f'text.txt: byte {place}: the character "<" (U+003C) becomes the token {END}' in ran.stderr


WORDS = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None, "decoder": None,
    "added_tokens": [{"id": n, "content": token, "special": True, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False} for n, token in enumerate(["[UNK]", "[SEP]"])],
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100,
              "vocab": {"[UNK]": 0, "[SEP]": 1, "the": 2, "cat": 3, "##s": 4, "sep": 5, "[": 6, "]": 7}},
}  # fmt: skip


def test_documents_end_with_the_token_that_is_named(tmp_path):
    (tmp_path / "words.json").write_text(json.dumps(WORDS))
    (tmp_path / "text.txt").write_text("The cats|cat [SEP] dog|the")
    call = ("text.txt", "--separator", "|", "--tokenizer", "words.json", "--out", "a.bin")
    ran = tokenize(*call, cwd=tmp_path)
    assert ran.returncode == 2
    assert f'words.json: has no token "{END}" to end documents with: --end TOKEN names another one' in ran.stderr
    ran = tokenize(*call, "--end", "[EOS]", cwd=tmp_path)
    assert ran.returncode == 2 and 'words.json: has no token "[EOS]"' in ran.stderr
    assert not list(tmp_path.glob("a.*"))
    ran = tokenize(*call, "--end", "[SEP]", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert tokens_of(tmp_path / "a.bin") == [2, 3, 4, 1, 3, 6, 5, 7, 0, 1, 2, 1]
    about = json.loads((tmp_path / "a.json").read_text())
    assert {name: about[name] for name in ("documents", "tokens", "vocabulary")} == {
        "documents": 3, "tokens": 12, "vocabulary": 8,
    }  # fmt: skip
    assert about["vocabulary_sha256"] == hashlib.sha256((tmp_path / "words.json").read_bytes()).hexdigest()


def test_a_text_that_becomes_the_named_end_is_refused(tmp_path):
    (tmp_path / "words.json").write_text(json.dumps(WORDS))
    (tmp_path / "text.txt").write_text("the dog")
    ran = tokenize("text.txt", "--tokenizer", "words.json", "--end", "[UNK]", "--out", "a.bin", cwd=tmp_path)
    assert ran.returncode == 2 and "becomes the token [UNK], which ends documents" in ran.stderr, ran.stderr


def test_the_named_end_of_gpt2_files_changes_neither_vocabulary_nor_hash(learned):
    model = json.loads((learned / "a.tokenizer.json").read_text())["model"]
    write_gpt2(learned, model["vocab"] | {"</s>": len(model["vocab"])}, model["merges"])
    call = ("text.txt", "--separator", "\n\n", "--gpt2", "vocab.json", "merges.txt")
    for more in (["--out", "b.bin"], ["--out", "c.bin", "--end", "</s>"]):
        ran = tokenize(*call, *more, cwd=learned)
        assert ran.returncode == 0, ran.stderr
    number = len(model["vocab"])
    assert [number if n == number + 1 else n for n in tokens_of(learned / "b.bin")] == tokens_of(learned / "c.bin")
    assert tokens_of(learned / "c.bin").count(number) == 3
    assert (learned / "b.json").read_text() == (learned / "c.json").read_text()


def write_gpt2(folder, vocabulary, merges, line_end="\n"):
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(m if isinstance(m, str) else " ".join(m) for m in merges), ""]
    (folder / "merges.txt").write_bytes(line_end.join(lines).encode())


def hash_of(tokens, merges, settings=None):
    """The definition of docs/formats.md."""
    lines = [f"{number} {token}\n" for token, number in sorted(tokens.items(), key=lambda item: item[1])]
    lines += ["\n", *(f"{left} {right}\n" for left, right in merges)]
    if settings:
        lines += ["\n", json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False), "\n"]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["in vocab.json", "in added_tokens.json", "nowhere"])
@pytest.mark.parametrize("more", [{}, {"<extra>": 279}])
def test_gpt2_files_give_the_tokens_and_the_hash_that_they_say(learned, line_end, end, more):
    model = json.loads((learned / "a.tokenizer.json").read_text())["model"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    vocabulary, number = dict(model["vocab"]), len(model["vocab"])
    added = {token: number + place for place, token in enumerate(more)}
    if end == "in vocab.json":
        vocabulary[END] = number
        added = {token: number + 1 for token in more}
    elif end == "in added_tokens.json":
        added |= {END: number + len(more)}
    write_gpt2(learned, vocabulary, merges, line_end)
    if added:
        (learned / "added_tokens.json").write_text(json.dumps(added))
    (learned / "text.txt").write_text("the cat<extra>the cat")
    ran = tokenize("text.txt", "--out", "b.bin", "--gpt2", "vocab.json", "merges.txt", cwd=learned)
    assert ran.returncode == 0, ran.stderr
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    settings = {"added_tokens": [{"id": added[t], "content": t} | flags for t in more]} if more else None
    about = json.loads((learned / "b.json").read_text())
    assert about["vocabulary_sha256"] == hash_of(vocabulary | added, merges, settings)
    assert [Path(f["file"]).name for f in about["tokenizer"]][2:] == (["added_tokens.json"] if added else [])
    tokens = tokens_of(learned / "b.bin")
    last = number + len(more) if end != "in vocab.json" else number
    assert tokens[-1] == last and tokens.count(last) == 1
    assert len(tokens) < 10 if more else len(tokens) > 10, "merges are applied, and added tokens are found"
    assert tokens.count(added.get("<extra>")) == len(more)
    assert about["vocabulary"] == len({**vocabulary, **added, END: 0})


@pytest.mark.parametrize(
    ("vocabulary", "added", "message"),
    [
        ({"a": 0, "b": 0}, None, 'vocab.json: tokens "a" and "b" have the number 0'),
        ({"a": 0, "b": -1}, None, 'vocab.json: token "b": got number -1'),
        ({"a": 0, "b": 1.5}, None, 'vocab.json: token "b": got number 1.5'),
        (["a"], None, 'vocab.json: got ["a"], want an object of tokens'),
        ({"a": 0, "b": 1}, {"c": 1}, 'added_tokens.json: tokens "b" and "c" have the number 1'),
        ({"a": 0, "b": 1}, {"b": 2}, 'added_tokens.json: token "b" has the numbers 1 and 2'),
        ({"a": 0, "b": 1}, {"c": 3}, 'token "c" has the number 3, and the library gives it 2'),
        ({"a": 0, "b": 5}, None, f'token "{END}" has the number 6, and the library gives it 2'),
        ({"a": 0, "b": 1}, ["c"], 'added_tokens.json: got ["c"], want an object of tokens'),
    ],
)
def test_numbers_that_the_library_would_change_are_refused(tmp_path, vocabulary, added, message):
    write_gpt2(tmp_path, vocabulary, [])
    if added is not None:
        (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    (tmp_path / "text.txt").write_text("ab")
    ran = tokenize("text.txt", "--out", "b.bin", "--gpt2", "vocab.json", "merges.txt", cwd=tmp_path)
    assert ran.returncode == 2 and message in ran.stderr, ran.stderr
    assert not list(tmp_path.glob("b.*"))


@pytest.mark.parametrize(
    ("merges", "message"),
    [(b"a b c\n", 'merges.txt: line 1: got "a b c"'), (b"#version: 0.2\nab\n", 'merges.txt: line 2: got "ab"')],
)
def test_merges_that_are_none_are_named(tmp_path, merges, message):
    write_gpt2(tmp_path, {"a": 0, "b": 1, "ab": 2}, [])
    (tmp_path / "merges.txt").write_bytes(merges)
    (tmp_path / "text.txt").write_text("ab")
    ran = tokenize("text.txt", "--out", "b.bin", "--gpt2", "vocab.json", "merges.txt", cwd=tmp_path)
    assert ran.returncode == 2 and message in ran.stderr, ran.stderr


def test_a_number_beyond_16_bits_is_refused(learned):
    content = json.loads((learned / "a.tokenizer.json").read_text())
    content["model"]["vocab"] |= {END: 279, "far": 65536}  # of few tokens
    (learned / "far.json").write_text(json.dumps(content))
    ran = tokenize("text.txt", "--out", "b.bin", "--tokenizer", "far.json", cwd=learned)
    assert ran.returncode == 2 and "has tokens up to 65536, want at most 65535" in ran.stderr, ran.stderr


def test_an_added_number_that_the_library_would_change_is_refused(learned):
    content = json.loads((learned / "a.tokenizer.json").read_text())
    content["added_tokens"][0]["id"] = 300
    (learned / "moved.json").write_text(json.dumps(content))
    ran = tokenize("text.txt", "--out", "b.bin", "--tokenizer", "moved.json", cwd=learned)
    assert ran.returncode == 2 and f'token "{END}" has the number 300, and the library gives it 279' in ran.stderr


@pytest.mark.parametrize("seed", range(12))
def test_the_hash_is_that_of_droptest_and_covers_every_setting(learned, seed):
    """A spec with the folder takes examples of scripts/tokenize, and refuses those of another tokenizer.json, of which
    one setting that changes tokens is different."""
    generator = random.Random(1000 + seed)
    content = json.loads((learned / "a.tokenizer.json").read_text())
    changed = random_settings(generator, content)
    (learned / "tokenizer.json").write_text(json.dumps(content))
    (learned / "a.tsv").write_text("label\ttext\n" + "x\tthe cat\ny\ta dog\n" * 3)
    ran = tokenize("a.tsv", "--examples", "plain", "--out", "out.jsonl", "--tokenizer", "tokenizer.json", cwd=learned)
    assert ran.returncode == 0, ran.stderr
    spec_with_folder(learned, ["tokenizer.json"], "out.jsonl", vocabulary=290)
    checked = subprocess.run([BINARY, "validate", "spec.json"], cwd=learned, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    if changed:
        (learned / "model/tokenizer.json").write_text((learned / "a.tokenizer.json").read_text())
        checked = subprocess.run([BINARY, "validate", "spec.json"], cwd=learned, capture_output=True, text=True)
        assert checked.returncode == 2 and "out.jsonl was made with the vocabulary" in checked.stderr, changed


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("added", [None, {END: 279}, {"<extra>": 279}, {"<extra>": 279, END: 280}])
def test_the_hash_of_gpt2_files_is_that_of_droptest(learned, line_end, added):
    model = json.loads((learned / "a.tokenizer.json").read_text())["model"]
    write_gpt2(learned, model["vocab"], model["merges"], line_end)
    files = ["vocab.json", "merges.txt"]
    if added:
        (learned / "added_tokens.json").write_text(json.dumps(added))
        files.append("added_tokens.json")
    (learned / "a.tsv").write_text("label\ttext\n" + "x\tthe cat\ny\ta dog\n" * 3)
    source = ["--gpt2", "vocab.json", "merges.txt"]
    ran = tokenize("a.tsv", "--examples", "plain", "--out", "out.jsonl", *source, cwd=learned)
    assert ran.returncode == 0, ran.stderr
    spec_with_folder(learned, files, "out.jsonl", vocabulary=290)
    checked = subprocess.run([BINARY, "validate", "spec.json"], cwd=learned, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


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
        (["text.txt", "--out", "a.bin", "--end", "a"], "argument --end: want --tokenizer or --gpt2 with it"),
        (["a.tsv", "--out", "a.jsonl", "--examples", "plain", "--tokenizer", "t.json", "--end", "a"],
         "argument --end: not allowed with --examples"),
        (["text.txt", "--out", "a.bin", "--colour"], "unrecognized arguments: --colour"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_leaves_no_token_file(tmp_path, arguments, message):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "broken.txt").write_bytes(b"abc\xff")
    (tmp_path / "empty.txt").write_text("")
    ran = tokenize(*arguments, cwd=tmp_path)
    assert ran.returncode == 2 and message in ran.stderr, ran.stderr
    assert not list(tmp_path.glob("*.bin*"))


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["a.bin", "--out", "a.bin"], "a.bin"),
        (["link.txt", "--out", "a.bin"], "link.txt"),
        (["hard.txt", "--out", "./a.bin"], "hard.txt"),
        (["text.txt", "a.json", "--out", "a.bin"], "a.json"),
        (["a.tokenizer.json", "--out", "a.bin"], "a.tokenizer.json"),
        (["a.bin.part", "--out", "a.bin"], "a.bin.part"),
        (["a.json", "--examples", "plain", "--out", "a.jsonl"], "a.json"),
        (["a.jsonl", "--examples", "plain", "--out", "a.jsonl"], "a.jsonl"),
        (["text.txt", "--out", "a.tokenizer.bin", "--tokenizer", "a.tokenizer.json"], "a.tokenizer.json"),
        (["text.txt", "--out", "vocab.bin", "--gpt2", "vocab.json", "merges.txt"], "vocab.json"),
        (["text.txt", "--out", "added_tokens.bin", "--gpt2", "vocab.json", "merges.txt"], "added_tokens.json"),
        (["text.txt", "--out", "folder/merges.bin", "--gpt2", "vocab.json", "merges.txt"], "merges.txt"),
    ],
)
def test_an_input_is_never_written_over(tmp_path, arguments, kept):
    for name in ("a.bin", "a.json", "a.jsonl", "a.bin.part", "a.tokenizer.json", "text.txt", "vocab.json",
                 "merges.txt", "added_tokens.json"):  # fmt: skip
        (tmp_path / name).write_text(f"the content of {name}")
    (tmp_path / "link.txt").symlink_to("a.bin")
    (tmp_path / "hard.txt").hardlink_to(tmp_path / "a.bin")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/merges.json").symlink_to("../merges.txt")
    before = {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    ran = tokenize(*arguments, cwd=tmp_path)
    assert ran.returncode == 2
    assert f"{kept}: --out {Path(arguments[arguments.index('--out') + 1])} would write over this input" in ran.stderr
    assert {path: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == before


def test_an_earlier_output_is_replaced(learned):
    ran = tokenize("text.txt", "--out", "a.bin", "--tokenizer", "a.tokenizer.json", cwd=learned)
    assert ran.returncode == 0, ran.stderr


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
