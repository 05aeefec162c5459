"""A training loop in miniature for docs/find-a-leak.md. It keeps each loss to print their average,
and with the loss all that was made on the way to it. Memory comes from the CUDA runtime by ctypes:
that stands for PyTorch without its cache."""

import ctypes

runtime = ctypes.CDLL("libcudart.so.13")
FEATURES, BATCH, STEPS = 1 << 10, 1 << 8, 10


class Tensor:
    """Float numbers on the device, and what they were made of, as autograd keeps it."""

    def __init__(self, count, *made_of):
        self.count, self.made_of, self.pointer = count, made_of, ctypes.c_void_p()
        assert runtime.cudaMalloc(ctypes.byref(self.pointer), ctypes.c_size_t(4 * count)) == 0

    def __del__(self):
        runtime.cudaFree(self.pointer)


class Layer:
    def __init__(self):
        self.weight = Tensor(FEATURES * FEATURES)

    def forward(self, values):
        return Tensor(values.count, values, self.weight)


class Model:
    def __init__(self):
        self.layers = [Layer(), Layer()]

    def forward(self, values):
        for layer in self.layers:
            values = layer.forward(values)
        return values


def step(model):
    batch = Tensor(BATCH * FEATURES)
    return Tensor(1, model.forward(batch))


def train():
    model, losses = Model(), []
    for _ in range(STEPS):
        losses.append(step(model))  # its number alone would not keep the rest
    print(f"the average of {len(losses)} losses")


train()
