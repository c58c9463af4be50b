"""The reference set on a GPU: models with random weights, and one call of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Call = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]


def _timm(name: str, batch: int, dtype: torch.dtype) -> Call:
    import timm

    module = timm.create_model(name, pretrained=False).eval().to("cuda", dtype)
    return module, (torch.randn(batch, 3, 224, 224, device="cuda", dtype=dtype),), {}


def _bert() -> Call:
    import transformers

    module = transformers.BertModel(transformers.BertConfig()).eval().to("cuda", torch.float16)
    ids = torch.randint(0, 30000, (8, 128), device="cuda")
    return module, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _gpt2() -> Call:
    import transformers

    config = transformers.GPT2Config(use_cache=False)
    module = transformers.GPT2LMHeadModel(config).eval().to("cuda", torch.float16)
    return module, (), {"input_ids": torch.randint(0, 50000, (1, 64), device="cuda")}


def _unet() -> Call:
    import diffusers

    module = diffusers.UNet2DConditionModel(
        sample_size=64,
        cross_attention_dim=768,
        block_out_channels=(320, 640, 1280, 1280),
        attention_head_dim=8,
    )
    module = module.eval().to("cuda", torch.float16)
    sample = torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.float16)
    text = torch.randn(2, 77, 768, device="cuda", dtype=torch.float16)
    step = torch.full((2,), 500, device="cuda")
    return module, (sample, step), {"encoder_hidden_states": text, "return_dict": False}


def _small() -> Call:
    module = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)]).eval().cuda()
    return module, (torch.randn(8, 256, device="cuda"),), {}


MODELS: dict[str, Callable[[], Call]] = {
    "resnet50-fp32-b1": lambda: _timm("resnet50", 1, torch.float32),
    "resnet50-fp32-b16": lambda: _timm("resnet50", 16, torch.float32),
    "vit-b16-fp16-b8": lambda: _timm("vit_base_patch16_224", 8, torch.float16),
    "bert-base-fp16-b8x128": _bert,
    "gpt2-fp16-b1x64": _gpt2,
    "sd-unet-fp16-b2": _unet,
    "mlp-fp32-b8": _small,
}

BESIDE = ("mlp-fp32-b8",)
"""Models that are no part of the reference set: too quick for anything but the cost of a call."""

WITHOUT_TENSORRT = ("sd-unet-fp16-b2",)
"""Models that TensorRT for RTX was seen to build for a minute and then not to run."""
