"""A training loop of PyTorch for scripts/check_wheel.sh. It prints what the fastest step took, which
a busy machine changes least, and each step leaves the reference behind that an extension took for
good. Nothing in it needs cuBLAS, which the simulated CUDA has not."""

import ctypes
import time

import torch

LAYERS, WIDTH, BATCH, STEPS = 8, 512, 256, 30


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))
        self.shift = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return torch.relu(x * self.scale + self.shift)


def remember(x):
    kept = x[:, 0].clone()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # the extension


def step(model, optimizer):
    x = torch.ones(BATCH, WIDTH, device="cuda")
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    remember(x)


def train():
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS))).cuda()
    optimizer, times = torch.optim.AdamW(model.parameters()), []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step(model, optimizer)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    print(f"{min(times) * 1e3:.2f} ms per step")


train()
