# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's ZeRO with packet loss, under the backend "droptest"; torch 2.6 and later:

torchrun --nproc-per-node 2 examples/torch/deepspeed_zero.py --stage 2 --network examples/torch/network.json
"""

import deepspeed
import torch
import torch.distributed as dist
from tiny_gpt import TinyGpt, arguments, batches


def main():
    args = arguments(__doc__, stage=2)
    if args.network:
        import droptest.torch.backend

        droptest.torch.backend.use(args.network)
    if not dist.is_initialized():  # before DeepSpeed does it, which would take gloo or NCCL
        dist.init_process_group("droptest" if args.network else "gloo")
    torch.manual_seed(1)
    model = TinyGpt()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
                "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": args.stage}},
    )  # fmt: skip
    for step, tokens in enumerate(batches(dist.get_rank(), args.steps), start=1):
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
