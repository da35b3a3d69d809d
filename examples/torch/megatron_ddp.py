# SPDX-License-Identifier: Apache-2.0
"""Data parallelism of Megatron-LM with packet loss, under the backend "droptest"; torch 2.6 and later:

torchrun --nproc-per-node 2 examples/torch/megatron_ddp.py --sharded 1 --network examples/torch/network.json

--sharded 1: the distributed optimizer.
"""

import torch
import torch.distributed as dist
from tiny_gpt import TinyGpt, arguments, batches


def main():
    args = arguments(__doc__, sharded=1)
    if args.network:
        import droptest.torch.backend

        droptest.torch.backend.use(args.network)
    dist.init_process_group("droptest" if args.network else None)  # before Megatron's groups, which take its backend
    if not torch.cuda.is_available():
        import host_memory

        host_memory.use()
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel()
    torch.manual_seed(1)
    sharded = {"use_distributed_optimizer": bool(args.sharded)}
    model = DistributedDataParallel(
        TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True),
        DistributedDataParallelConfig(overlap_grad_reduce=True, bucket_size=40000, **sharded), TinyGpt(),
    )  # fmt: skip
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0, **sharded), [model])
    for step, tokens in enumerate(batches(dist.get_rank(), args.steps), start=1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
