#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/huggingface/: folders that Hugging Face's own libraries wrote, and what their models compute.

lm/ is a GPT2LMHeadModel in several shards with a GPT-2 tokenizer, classifier/ a GPT2ForSequenceClassification in one
file; expected.safetensors has the loss of the first and the logits of the second, in float64, for tokens by the formula
of make_gpt2_vectors.py. tests/experiments/pretrained_test.cc reads them. Needs PyTorch, and transformers 4 from PyPI:

    python3 scripts/make_huggingface_vectors.py
"""

import argparse
import json
import shutil
from pathlib import Path

if __name__ == "__main__":  # before the libraries, which may not be there
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

import make_gpt2_vectors as tiny
import tokenizers
import torch
import transformers

OUT = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "huggingface"
TEXT = "In the beginning was the word, and the word was small.\nThe rest of the words were smaller still, they say.\n"
VOCABULARY, CONTEXT, CLASSES = 270, 16, 3
PROMPTS = (
    "the word",
    " the  words,\n\n they're small; we'll say 12 words ",
    "x",
    "  ",
    "a\t'quoted' end?!",
    "He'd said\n",
)
LENGTHS, LABELS = (5, 16, 1, 9), (2, 0, 1, 1)


def write_tokenizer(folder):
    """Returns the number of tokens."""
    learned = tokenizers.ByteLevelBPETokenizer()
    learned.train_from_iterator([TEXT], vocab_size=VOCABULARY, min_frequency=1, special_tokens=["<|endoftext|>"])
    learned.save_model(str(folder))
    fast = transformers.GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))
    fast.save_pretrained(folder)
    encoded = [{"text": text, "tokens": fast.encode(text)} for text in PROMPTS]
    (OUT / "encoded.json").write_text(json.dumps(encoded, indent=1) + "\n")
    return learned.get_vocab_size()


def config(vocabulary, **more):
    return transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=CONTEXT,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        **more,
    )


def perturb(model):
    """Hugging Face's initial biases are 0 and gains 1: mistakes with those would not be seen."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def formula_tokens(count, vocabulary):
    return [int((tiny.mixed(1000, i) + 0.5) * vocabulary) for i in range(count)]


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "lm").mkdir(parents=True)
    vocabulary = write_tokenizer(OUT / "lm")
    lm = perturb(transformers.GPT2LMHeadModel(config(vocabulary)))
    lm.save_pretrained(OUT / "lm", max_shard_size="24KB")
    classifier = perturb(
        transformers.GPT2ForSequenceClassification(config(vocabulary, num_labels=CLASSES, pad_token_id=1))
    )
    classifier.save_pretrained(OUT / "classifier")

    tokens = torch.tensor(formula_tokens(2 * CONTEXT, vocabulary)).reshape(2, CONTEXT)
    loss = lm.double()(tokens, labels=tokens).loss
    rows = torch.tensor(formula_tokens(len(LENGTHS) * CONTEXT, vocabulary)).reshape(len(LENGTHS), CONTEXT)
    rows[rows == 1] = 2  # 1 pads
    mask = torch.tensor([[i < length for i in range(CONTEXT)] for length in LENGTHS])
    rows[~mask] = 1
    out = classifier.double()(rows, attention_mask=mask.long(), labels=torch.tensor(LABELS))
    versions = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"
    tiny.write_safetensors(
        OUT / "expected.safetensors",
        {"lm_loss": loss.detach().reshape(1), "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)},
        {"origin": f"scripts/make_huggingface_vectors.py, {versions}, float64"},
    )
    print(f"{OUT}: {versions}, losses {float(loss)} {float(out.loss)}")


if __name__ == "__main__":
    main()
