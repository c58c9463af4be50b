"""Decoding latents in a loop, by another entry point than forward."""

import sys
import time

import torch
from diffusers import AutoencoderKL

torch.manual_seed(0)
vae = AutoencoderKL(block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, latent_channels=4).eval()  # fmt: skip
outputs, seconds = [], []
with torch.inference_mode():
    for _ in range(40):
        latents = torch.randn(1, 4, 16, 16)
        start = time.perf_counter()
        outputs.append(vae.decode(latents).sample)
        seconds.append(time.perf_counter() - start)
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
