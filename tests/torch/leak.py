"""Seven tensors of 3 MiB that nothing frees, and many that are freed."""

import ctypes

import torch

COUNT, SIZE = 7, 3 << 20


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(SIZE // 4, device="cuda"))

    def forward(self, values):
        return values * self.weight


def forget_activations(model):
    activations = model(torch.ones(SIZE // 4, device="cuda"))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(activations.detach()))


def main():
    model = Model()
    for number in range(40):
        model(torch.empty(SIZE // 4, device="cuda"))
        if number < COUNT:
            forget_activations(model)
    torch.cuda.synchronize()
    print(torch.__version__)


main()
