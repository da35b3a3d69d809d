# SPDX-License-Identifier: Apache-2.0
"""A training script of another framework over a backend that is there before the script asks for one. Arguments: the
backend ("-": none), the beginning of the names of the ranks' files, the script, and its own arguments. Each file has
the bytes of the parameters, and their digest after each step."""

import hashlib
import os
import runpy
import sys
from pathlib import Path

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

lines = []


def take(optimizer, *_):
    content, size = hashlib.sha256(), 0
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        values = parameter.detach().numpy()
        content.update(values.tobytes())
        size += values.nbytes
    lines.append(f"{size} {content.hexdigest()}\n")


backend, file, script = sys.argv[1:4]
register_optimizer_step_post_hook(take)
if backend != "-":
    import droptest.torch.backend  # noqa: F401 (registers the name)

    dist.init_process_group(backend)
sys.argv = sys.argv[3:]
sys.path.insert(0, str(Path(script).parent))
runpy.run_path(script, run_name="__main__")
Path(f"{file}{os.environ['RANK']}").write_text("".join(lines))
