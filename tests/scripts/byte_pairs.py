# SPDX-License-Identifier: Apache-2.0
"""Random settings of a tokenizer.json, and a spec with a folder that has a tokenizer."""

import json

CUTS = (
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
    {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": " ?\\p{L}+| ?[^\\s\\p{L}]+|\\s+"}, "behavior": "Isolated",
         "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
)  # fmt: skip
NORMALIZERS = ({"type": "Lowercase"}, {"type": "NFD"}, {"type": "Replace", "pattern": {"String": "é"}, "content": "e"},
               {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip", "strip_left": True,
                                                                    "strip_right": False}]})  # fmt: skip


def random_settings(generator, content):
    """Changes settings of a tokenizer.json that change tokens. Returns the names of those changed."""
    changed = []
    if generator.random() < 0.4:
        content["normalizer"] = generator.choice(NORMALIZERS)
        changed.append("normalizer")
    if generator.random() < 0.5:
        content["pre_tokenizer"] = generator.choice(CUTS)
        changed.append("pre_tokenizer")
    if generator.random() < 0.3:
        content["model"]["ignore_merges"] = True
        changed.append("ignore_merges")
    if generator.random() < 0.3:
        content["model"]["unk_token"] = "!"
        changed.append("unk_token")
    if generator.random() < 0.4:
        last = max(token["id"] for token in content["added_tokens"])
        flags = {name: generator.random() < 0.5 for name in ("single_word", "lstrip", "rstrip", "normalized")}
        content["added_tokens"].append({"id": last + 1, "content": "<extra>", "special": False} | flags)
        changed.append("added_tokens")
    return changed


def spec_with_folder(folder, files, examples, vocabulary):
    """Writes spec.json for the examples, with a model whose folder has these files and this many tokens."""
    model = folder / "model"
    model.mkdir()
    for name in files:
        (model / name).write_bytes((folder / name).read_bytes())
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 1, "n_positions": 64, "vocab_size": vocabulary}
    (model / "config.json").write_text(json.dumps(config))
    shapes = {"wte.weight": [vocabulary, 4], "wpe.weight": [64, 4], "ln_f.weight": [4], "ln_f.bias": [4]}
    of_block = {"ln_1.weight": [4], "ln_1.bias": [4], "ln_2.weight": [4], "ln_2.bias": [4],
                "attn.c_attn.weight": [4, 12], "attn.c_attn.bias": [12], "attn.c_proj.weight": [4, 4],
                "attn.c_proj.bias": [4], "mlp.c_fc.weight": [4, 16], "mlp.c_fc.bias": [16],
                "mlp.c_proj.weight": [16, 4], "mlp.c_proj.bias": [4]}  # fmt: skip
    shapes |= {f"h.0.{name}": shape for name, shape in of_block.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    spec = {"name": "t", "task": "classification", "model": {"pretrained": "model"},
            "data": {"examples": examples, "validation_fraction": 0.5}}  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec))
