"""Steps of training whose numbers are right on the simulated CUDA, where kernels compute nothing:
what is computed is computed on the host, and goes to the device and back by copies, through as many
temporaries as a network has. PyTorch's own layers and an optimizer run beside it, so that there are
kernels in flight. Prints one line of JSON: the losses on the device, and those without one.
"""

import gc
import json
import os

import torch
from torch import nn

WIDTH, LAYERS, STEPS = 1 << 12, 6, int(os.environ.get("STEPS", "12"))
BATCHES = (64, 24, 96, 8, 48)


class Carry(torch.autograd.Function):
    """A layer that hands on what it gets, and the gradient, in memory of its own."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone()


class Scaled(torch.autograd.Function):
    """The product of each row and the weights, computed on the host."""

    @staticmethod
    def forward(ctx, values, weights):
        ctx.save_for_backward(values, weights)
        return (values.cpu() * weights.cpu()).to(values.device)

    @staticmethod
    def backward(ctx, gradient):
        values, weights = (saved.cpu() for saved in ctx.saved_tensors)
        back = gradient.cpu()
        return ((back * weights).to(gradient.device),
                (back * values).mean(0).to(gradient.device))


class Beside(nn.Module):
    """Real layers, for their launches, allocations and the thread that runs them backwards."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(256, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))

    def forward(self, words):
        values = self.words(words)
        for norm in self.norms:
            values = values + nn.functional.dropout(nn.functional.gelu(norm(values)), 0.1)
        return values.float().square().mean()


def train(device):
    weights = torch.zeros(WIDTH).to(device).requires_grad_()  # zeros on a device may be a kernel
    wanted = torch.linspace(0.5, 1.5, WIDTH)
    beside = Beside().to(device)
    optimizer = torch.optim.AdamW(beside.parameters(), lr=1e-3, foreach=True)
    other = torch.cuda.Stream() if device == "cuda" else None
    losses = []
    for number in range(STEPS):
        rows = BATCHES[number % len(BATCHES)]
        batch = torch.arange(rows * WIDTH, dtype=torch.float32).remainder(7).view(rows, WIDTH) / 7
        optimizer.zero_grad(set_to_none=True)
        if other is None:
            values = batch.to(device)
        else:
            with torch.cuda.stream(other):  # as a loader that is a step ahead
                values = batch.pin_memory().to(device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(other)
            values.record_stream(torch.cuda.current_stream())
            beside(torch.zeros(rows, dtype=torch.long, device=device)).backward()
            optimizer.step()
        for _ in range(LAYERS):
            values = Carry.apply(values)
        values = Scaled.apply(values, weights)
        for _ in range(LAYERS):
            values = Carry.apply(values)
        found = values.detach().cpu()
        error = found - batch * wanted
        losses.append(error.square().mean().item())
        values.backward(error.to(device))
        with torch.no_grad():
            weights.copy_((weights.cpu() - 2 * weights.grad.cpu()).to(device))
        weights.grad = None
    return losses


def main():
    found, right = train("cuda"), train("cpu")
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print(json.dumps({"losses": found, "right": right}))


main()
