"""A training step of PyTorch for the simulated CUDA, which has no cuBLAS: all of it is PyTorch's
own kernels, which allocate and launch as they do on hardware, though they compute nothing there.

Sequences of changing length and number go through blocks that mix neighbours (shifts, a gate) and
channels (a wide layer that is a sum of outer products), in bfloat16 with master weights, and are
trained by AdamW. Any script can stand in its place that takes the number of steps from the
environment, STEPS, and prints one line of JSON last, of the second half of its steps:

    {"ms_median": wall time of a step, "cpu_ms_med": that of its threads on a core}
"""

import json
import os
import statistics
import threading
import time

import torch
from torch import nn

WIDTH, WIDER, LAYERS, WORDS, RANK = 384, 1536, 8, 16000, 3
SHAPES = ((24, 160), (12, 352), (32, 128), (16, 208), (8, 448))  # sequences, their length
SHIFTS = (1, 2, 4)
STEPS = int(os.environ.get("STEPS", "20"))


class Outer(nn.Module):
    """From one width to another by RANK outer products, an elementwise stand-in for a matrix."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.down = nn.Parameter(torch.randn(RANK, inputs) / inputs)
        self.up = nn.Parameter(torch.randn(RANK, outputs))

    def forward(self, x):
        down, up = self.down.to(x.dtype), self.up.to(x.dtype)
        return sum((x * row).sum(-1, keepdim=True) * column for row, column in zip(down, up))


class Mix(nn.Module):
    """Each place of a sequence with those some steps before it, through a gate."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(len(SHIFTS), WIDTH))
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        mixed = x * torch.sigmoid(self.gate.to(x.dtype))
        for shift, weight in zip(SHIFTS, self.weights.to(x.dtype)):
            mixed = mixed + torch.roll(x, shift, 1) * weight
        return mixed


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix, self.widen, self.narrow = Mix(), Outer(WIDTH, WIDER), Outer(WIDER, WIDTH)

    def forward(self, x):
        mixed = self.mix(self.norms[0](x).to(torch.bfloat16))
        x = x + nn.functional.dropout(mixed, 0.1)
        wide = nn.functional.silu(self.widen(self.norms[1](x).to(torch.bfloat16)))
        return x + nn.functional.dropout(self.narrow(wide), 0.1)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), Outer(WIDTH, WORDS)

    def forward(self, words):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).to(torch.bfloat16))


class Clock:
    """Time on a core of this thread and of the one in which autograd runs backwards."""

    def __init__(self):
        self.threads = {threading.get_ident()}

    def watch(self, tensor):
        tensor.register_hook(lambda gradient: self.threads.add(threading.get_ident()))

    def read_ms(self):
        return sum(time.clock_gettime(time.pthread_getcpuclockid(thread))
                   for thread in self.threads) * 1e3


def main():
    torch.manual_seed(3)
    network = Network().cuda()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, foreach=True)
    clock, wall_ms, core_ms = Clock(), [], []
    for number in range(STEPS):
        before, began = clock.read_ms(), time.perf_counter()
        words = torch.zeros(SHAPES[number % len(SHAPES)], dtype=torch.long, pin_memory=True)
        words = words.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        logits = network(words)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), words.flatten())
        clock.watch(loss)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=True)
        optimizer.step()
        loss.item()
        wall_ms.append((time.perf_counter() - began) * 1e3)
        core_ms.append(clock.read_ms() - before)
    half = STEPS // 2
    print(json.dumps({"ms_median": statistics.median(wall_ms[half:]),
                      "cpu_ms_med": statistics.median(core_ms[half:])}))


main()
