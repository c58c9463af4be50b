"""A pool of processes that share the images of a data set, each with a model of its own."""

import multiprocessing
import sys
import time

import torch
from torch import nn


def stage(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                         nn.MaxPool2d(2))  # fmt: skip


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(stage(3, 16), stage(16, 32), stage(32, 64), stage(64, 128))
        self.head = nn.Linear(128, 10)

    def forward(self, images):
        return self.head(self.stages(images).mean((2, 3)))


def work(share):
    torch.manual_seed(0)
    model = Classifier().eval()
    torch.manual_seed(share)
    scores, seconds = [], []
    with torch.inference_mode():
        for _ in range(60):
            images = torch.randn(2, 3, 64, 64)
            start = time.perf_counter()
            scores.append(model(images))
            seconds.append(time.perf_counter() - start)
    return torch.stack(scores).numpy(), seconds


if __name__ == "__main__":
    pool = multiprocessing.get_context("spawn").Pool(2)
    found = pool.map(work, range(2), chunksize=1)
    pool.close()
    pool.join()
    outputs = [torch.from_numpy(scores) for scores, _ in found]
    seconds = [one for calls in zip(*(seconds for _, seconds in found), strict=True) for one in calls]
    torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
