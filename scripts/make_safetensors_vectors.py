#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/safetensors_damage.json: small files with damage, and what the format's library reads.

Each entry has a file in hex, and its tensors as [dtype, shape, bytes in hex], or null where the library refuses it.
tests/models/safetensors_test.cc reads them. Needs safetensors from PyPI:

    python3 scripts/make_safetensors_vectors.py
"""

import argparse
import json
import random
import struct
from pathlib import Path

if __name__ == "__main__":  # before the library, which may not be there
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

import safetensors

OUT = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "safetensors_damage.json"
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    "b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
}
FILES = 600


def file_of(header, data):
    return struct.pack("<Q", len(header)) + header + data


def damaged(draw):
    """The bytes of a file whose header, size or data are not those of a whole one."""
    header = json.loads(json.dumps(HEADER))
    data = bytes(range(11))
    kind = draw.randrange(8)
    if kind == 0:
        header["__metadata__"] = draw.choice([None, {}, {"a": 1}, {"a": None}, [], "x", {"a": "b"}])
    elif kind == 1:
        name, member = draw.choice("ab"), draw.choice(["dtype", "shape", "data_offsets", "more"])
        header[name][member] = draw.choice(
            [
                "I32",
                "U32",
                "I8",
                "BOOL",
                "F33",
                [2],
                [3],
                [1, 3, 1],
                [1, 2],
                [8],
                [2, 2],
                [],
                [0, 8],
                [8, 11],
                [1, 9],
                [3.0],
                [-1],
                None,
                2**63,
                [2**63, 2],
            ]
        )
    elif kind == 2:
        del header[draw.choice(["__metadata__", "a", "b"])]
    text = json.dumps(header).encode()
    if kind == 3:
        place = draw.randrange(len(text))
        text = text[:place] + bytes([draw.randrange(256)]) + text[place + 1 :]
    elif kind == 4:
        text += draw.choice([b"\0", b"\0\0junk", b" ", b"  \n", b"x", b"{}", b" \0", b"\t"])
    elif kind == 5:
        text = draw.choice([b" ", b"\0", b"\xef\xbb\xbf", b"[", b""]) + text
    elif kind == 6:
        place = draw.randrange(len(text))
        text = text[:place] + b"\0" + text[place:]
    file = file_of(text, data)
    if kind == 7:
        place = draw.randrange(9)
        file = file[:place] + bytes([draw.randrange(256)]) + file[place + 1 :]
    return file if draw.randrange(10) else file[: draw.randrange(len(file))] + draw.choice([b"", b"\0", b"x"])


def tensors_of(file):
    try:
        found = safetensors.deserialize(file)
    except safetensors.SafetensorError:
        return None
    return {name: [tensor["dtype"], tensor["shape"], bytes(tensor["data"]).hex()] for name, tensor in found}


def main():
    draw = random.Random(1)
    files = dict.fromkeys(damaged(draw) for _ in range(FILES))
    lines = [json.dumps({"file": file.hex(), "tensors": tensors_of(file)}, sort_keys=True) for file in files]
    OUT.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
