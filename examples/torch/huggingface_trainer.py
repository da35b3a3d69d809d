# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face transformers with packet loss, on a GPT-2 that is made from a config:

torchrun --nproc-per-node 2 examples/torch/huggingface_trainer.py --network examples/torch/network.json
"""

import tempfile

import torch
import torch.distributed as dist
from tiny_gpt import CONTEXT, VOCABULARY, arguments, batches
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import droptest.torch


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}: loss {float(logs['loss']):.9g}", flush=True)


def main():
    args = arguments(__doc__)
    torch.manual_seed(args.seed)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT + 1, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0,
                        embd_pdrop=0, attn_pdrop=0)  # fmt: skip
    examples = [{"input_ids": row, "labels": row} for rows in batches(0, 2 * args.steps) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(folder, max_steps=args.steps, per_device_train_batch_size=8, learning_rate=1e-3,
                                     logging_steps=1, eval_strategy="steps", eval_steps=args.steps,
                                     save_strategy="no", report_to=[], use_cpu=True,
                                     disable_tqdm=True)  # fmt: skip
        trainer = Trainer(GPT2LMHeadModel(config), settings, train_dataset=examples, eval_dataset=examples[:16],
                          callbacks=[PrintLosses()])  # fmt: skip
        if args.network:
            seeds = {"weights": args.seed, "data": args.seed}
            trainer.add_callback(droptest.torch.TrainerCallback(args.network, seeds=seeds, unit="nats per byte"))
        trainer.train()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
