"""Ten steps of training, with a look at the validation loss between them."""

import sys
import time

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(64, 16)
y = x.sum(1, keepdim=True)
outputs, seconds = [], []
for _ in range(10):
    start = time.perf_counter()
    loss = torch.nn.functional.mse_loss(model.train()(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        validation = torch.nn.functional.mse_loss(model.eval()(x), y)
    outputs.append(torch.stack([loss.detach(), validation]))
    seconds.append(time.perf_counter() - start)
outputs.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
torch.save({"outputs": outputs, "seconds": seconds}, sys.argv[1])
