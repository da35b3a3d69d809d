# SPDX-License-Identifier: Apache-2.0
"""Starts a program on two ranks: python3 two_ranks.py PROGRAM WORDS... For PyTorch 1.13: its own launcher fails on
Python 3.11."""

import os
import socket
import subprocess
import sys

RANKS = 2


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    words = [sys.executable, *sys.argv[1:]]
    ranks = [subprocess.Popen(words, env=common | {"RANK": str(i), "LOCAL_RANK": str(i)}) for i in range(RANKS)]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
