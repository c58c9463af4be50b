"""Greedy generation with a cache that grows."""

import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=3, n_head=4, vocab_size=1000, n_positions=128)).eval()
prompts = torch.randint(3, 1000, (2, 12))
outputs, seconds = [], []
for _ in range(8):
    start = time.perf_counter()
    outputs.append(model.generate(prompts, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=999))
    seconds.append(time.perf_counter() - start)
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
