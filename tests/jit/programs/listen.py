"""A speech model."""

import sys
import time

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

torch.manual_seed(0)
config = Wav2Vec2Config(
    hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, conv_dim=(32,) * 7,
    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, apply_spec_augment=False,
)  # fmt: skip
model = Wav2Vec2ForCTC(config).eval()
outputs, seconds = [], []
with torch.inference_mode():
    for _ in range(40):
        wave = torch.randn(1, 8000)
        start = time.perf_counter()
        outputs.append(model(wave).logits)
        seconds.append(time.perf_counter() - start)
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
