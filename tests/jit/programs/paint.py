"""A text-to-image pipeline of tiny parts."""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
letters = [f"{letter}{end}" for letter in "abcdefghijklmnopqrstuvwxyz" for end in ("", "</w>")]
(folder / "vocab.json").write_text(
    json.dumps({token: index for index, token in enumerate(["<|startoftext|>", "<|endoftext|>", *letters])})
)
(folder / "merges.txt").write_text("#version: 0.2\n")
tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)
text = CLIPTextModel(
    CLIPTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=16, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )
)  # fmt: skip
unet = UNet2DConditionModel(
    sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, norm_num_groups=8,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
)  # fmt: skip
vae = AutoencoderKL(block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, latent_channels=4)  # fmt: skip
pipe = StableDiffusionPipeline(
    vae=vae, text_encoder=text, tokenizer=tokenizer, unet=unet, scheduler=DDIMScheduler(), safety_checker=None,
    feature_extractor=None, requires_safety_checker=False,
)  # fmt: skip
for part in (text, unet, vae):
    part.eval()  # as from_pretrained leaves them
pipe.set_progress_bar_config(disable=True)
outputs, seconds = [], []
for number in range(8):
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(number)
    image = pipe("a cat", num_inference_steps=5, height=32, width=32, generator=generator, output_type="pt").images
    outputs.append(image)
    seconds.append(time.perf_counter() - start)
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
