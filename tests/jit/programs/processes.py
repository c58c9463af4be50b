"""A pool of processes, each with a model of its own."""

import multiprocessing
import sys
import time

import torch


def work(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)).eval()
    with torch.inference_mode():
        return torch.stack([model(torch.randn(2, 32)) for _ in range(5)]).numpy()


if __name__ == "__main__":
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        outputs = [torch.from_numpy(array) for array in pool.map(work, range(4))]
    torch.save({"outputs": outputs, "seconds": [time.perf_counter() - start]}, sys.argv[1])
