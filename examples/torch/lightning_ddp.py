# SPDX-License-Identifier: Apache-2.0
"""Lightning with packet loss:

torchrun --nproc-per-node 2 examples/torch/lightning_ddp.py --network examples/torch/network.json
"""

import os

import lightning
import torch
import torch.distributed as dist
from tiny_gpt import TinyGpt, arguments, batches
from torch.utils.data import DataLoader

import droptest.torch


class Training(lightning.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.model, self.steps = TinyGpt(), steps

    def train_dataloader(self):
        return DataLoader(list(batches(self.global_rank, self.steps)), batch_size=None)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def training_step(self, tokens):
        loss = self.model(tokens)
        if self.global_rank == 0:
            print(f"step {self.global_step + 1}: loss {loss.item():.9g}", flush=True)
        return loss

    def val_dataloader(self):
        return DataLoader(list(batches(1000, 4)), batch_size=None)

    def validation_step(self, tokens):
        self.log("val_loss", self.model(tokens), batch_size=len(tokens))


def main():
    args = arguments(__doc__)
    torch.manual_seed(args.seed)
    seeds = {"weights": args.seed, "data": args.seed}
    callback = droptest.torch.LightningCallback(args.network, seeds=seeds, unit="nats per byte")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_epochs=1,
        use_distributed_sampler=False, gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[callback] if args.network else [],
    )  # fmt: skip
    trainer.fit(Training(args.steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
