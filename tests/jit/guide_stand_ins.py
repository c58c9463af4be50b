"""What stands in for things of the guide that a machine lacks; ``test_jit_guide.REPLACED`` lists them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import types

import torch


class Backbone(torch.nn.Module):
    """A small ResNet, as timm would make one."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 16, 7, 4, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(16)
        self.conv2 = torch.nn.Conv2d(16, 16, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(16)
        self.fc = torch.nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        return self.fc(x.mean((2, 3)))


class Denoiser(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Conv2d(4, 16, 3, padding=1)
        self.outer = torch.nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, latents, t):
        return self.outer(torch.tanh(self.inner(latents))) * torch.cos(t)


class Pipeline:
    """Text in, image out; called as a pipeline of diffusers is."""

    def __init__(self):
        self.text_encoder = torch.nn.Embedding(128, 4).eval()
        self.transformer = Denoiser().eval()
        self.decoder = torch.nn.ConvTranspose2d(4, 3, 2, 2).eval()

    @classmethod
    def from_pretrained(cls, name):
        torch.manual_seed(len(name))
        return cls()

    def to(self, device):
        for part in (self.text_encoder, self.transformer, self.decoder):
            part.to(device)
        return self

    @torch.no_grad()
    def __call__(self, prompt):
        ids = torch.tensor([[ord(letter) % 128 for letter in prompt[:16].ljust(16)]])
        latents = torch.ones(1, 4, 16, 16) * self.text_encoder(ids).mean((0, 1))[:, None, None]
        for step in range(4):
            latents = latents - self.transformer(latents, torch.tensor(float(step))) / 4
        return types.SimpleNamespace(images=self.decoder(latents))


def install():
    """Put the stand-ins in the place of what is not there."""
    if not torch.cuda.is_available():
        _cuda_is_the_cpu()
    if importlib.util.find_spec("timm") is None:
        sys.modules["timm"] = _made("timm")
        sys.modules["timm"].create_model = lambda name, pretrained: Backbone().eval()
    if importlib.util.find_spec("diffusers") is None:
        sys.modules["diffusers"] = _made("diffusers")
    import diffusers

    diffusers.DiffusionPipeline = Pipeline


def _made(name):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)  # transformers asks whether it is installed
    return module


def _cuda_is_the_cpu():
    module_to, randn = torch.nn.Module.to, torch.randn
    torch.nn.Module.cuda = lambda self, device=None: self
    torch.nn.Module.to = lambda self, *args, **kwargs: (
        self if args[:1] == ("cuda",) else module_to(self, *args, **kwargs)
    )

    def on_the_cpu(*size, device=None, **kwargs):
        return randn(*size, device=None if device == "cuda" else device, **kwargs)

    torch.randn = on_the_cpu


def show():
    """Print what was seen as JSON, the last line of the output."""
    import aitune.torch as ait

    def flat(nodes):
        for node in nodes:
            yield node.name, node.level, str(node.state)
            yield from flat(node.children)

    print(json.dumps(list(flat(ait.PatchedModule.hierarchy()))))
