#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/tokenizers.json: tokens that Hugging Face's tokenizers makes of random ASCII texts.

Each entry has a tokenizer.json, texts with their tokens (without special tokens, and special tokens in texts as text),
and the hash that scripts/tokenize and droptest have for the vocabulary. tests/experiments/vocabulary_test.cc reads
them. Needs tokenizers from PyPI:

    python3 scripts/make_tokenizer_vectors.py
"""

import argparse
import copy
import hashlib
import json
import random
from pathlib import Path

if __name__ == "__main__":  # before the library, which may not be there
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

import tokenizers

OUT = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "tokenizers.json"
TEXT = (
    "In the beginning was the word, and the word was small.\nThe rest of the words were smaller still, they'll say.\n"
)
PARTS = [
    "the",
    " the",
    " word",
    "s",
    "'ll",
    "'",
    " ",
    "  ",
    "\n",
    "\t",
    "12",
    "!?",
    "<a>",
    "<ab>",
    "<|endoftext|>",
    "X",
]
GPT2_PLAIN = {"type": "ByteLevel", "add_prefix_space": False}
MODEL_TEXTS = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")
MODEL_FLAGS = ("fuse_unk", "byte_fallback", "ignore_merges")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def settings_of(content):
    """All that changes tokens and is not GPT-2's (docs/formats.md)."""
    settings = {}
    if content.get("normalizer") is not None:
        settings["normalizer"] = content["normalizer"]
    pre = copy.deepcopy(content.get("pre_tokenizer"))
    if isinstance(pre, dict) and pre.get("type") == "ByteLevel":
        pre.pop("trim_offsets", None)
        if pre.get("use_regex") is True:
            del pre["use_regex"]
    if pre != GPT2_PLAIN:
        settings["pre_tokenizer"] = pre
    model = content["model"]
    chosen = {name: model[name] for name in MODEL_TEXTS if model.get(name) not in (None, "")}
    chosen |= {name: True for name in MODEL_FLAGS if model.get(name) is True}
    if chosen:
        settings["model"] = chosen
    added = []
    for token in sorted(content.get("added_tokens") or [], key=lambda one: one["id"]):
        if not token.get("special"):
            flags = {name: bool(token.get(name)) for name in FLAGS}
            flags["normalized"] = flags["normalized"] and "normalizer" in settings
            added.append({"id": token["id"], "content": token["content"]} | flags)
    if added:
        settings["added_tokens"] = added
    return settings


def hash_of(content):
    tokens = {number: token for token, number in content["model"]["vocab"].items()}
    tokens |= {added["id"]: added["content"] for added in content["added_tokens"]}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in content["model"]["merges"]]
    text = "".join(f"{number} {token}\n" for number, token in sorted(tokens.items())) + "\n"
    text += "".join(f"{left} {right}\n" for left, right in merges)
    if settings := settings_of(content):
        text += f"\n{json.dumps(settings, sort_keys=True, separators=(',', ':'), ensure_ascii=False)}\n"
    return hashlib.sha256(text.encode()).hexdigest()


def variants(base):
    """(name, tokenizer.json) of settings that droptest honours, and of those that it refuses."""

    def changed(change):
        content = copy.deepcopy(base)
        change(content)
        return content

    def added(content, *tokens):
        number = max(token["id"] for token in content["added_tokens"])
        for token in tokens:
            number += 1
            content["added_tokens"].append({"id": number} | token)

    def token(content, **flags):
        return {"content": content, **dict.fromkeys((*FLAGS, "special"), False)} | flags

    yield "plain", base
    yield "prefix", changed(lambda c: c["pre_tokenizer"].update(add_prefix_space=True))
    yield "no_regex", changed(lambda c: c["pre_tokenizer"].update(use_regex=False))
    yield (
        "added",
        changed(lambda c: added(c, token("<a>"), token("<ab>", normalized=True), token("<a", normalized=True))),
    )
    yield "added_special", changed(lambda c: added(c, token("<a>", special=True), token("<ab>")))

    def prefix_and_added(content):
        content["pre_tokenizer"]["add_prefix_space"] = True
        added(content, token("<a>"), token(" word"))

    yield "prefix_and_added", changed(prefix_and_added)
    yield "truncation_and_padding", changed(
        lambda c: c.update(
            truncation={"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            padding={"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1,
                     "pad_type_id": 0, "pad_token": "!"},
        )
    )  # fmt: skip
    yield "refused_normalizer", changed(lambda c: c.update(normalizer={"type": "Lowercase"}))
    yield (
        "refused_metaspace",
        changed(
            lambda c: c.update(
                pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
            )
        ),
    )
    yield "refused_suffix", changed(lambda c: c["model"].update(end_of_word_suffix="</w>", merges=[]))
    yield "refused_ignore_merges", changed(lambda c: c["model"].update(ignore_merges=True))
    yield "refused_rstrip", changed(lambda c: added(c, token("<a>", rstrip=True)))


def main():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    draw = random.Random(1)
    texts = ["".join(draw.choices(PARTS, k=draw.randint(1, 12))) for _ in range(40)]
    texts += ["".join(chr(draw.randrange(128)) for _ in range(draw.randint(1, 20))) for _ in range(40)]
    entries = []
    for name, content in variants(json.loads(tokenizer.to_str())):
        entry = {"name": name, "tokenizer": content, "sha256": hash_of(content)}
        if not name.startswith("refused_"):
            loaded = tokenizers.Tokenizer.from_str(json.dumps(content))
            loaded.no_truncation()
            loaded.no_padding()
            loaded.encode_special_tokens = True
            entry["texts"] = [
                {"text": text, "tokens": loaded.encode(text, add_special_tokens=False).ids} for text in texts
            ]
        entries.append(entry)
    OUT.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


if __name__ == "__main__":
    main()
