"""Makes allocation traces of the project's own, the same for the same seed:

    generate.py DIRECTORY [--seed N] [NAME...]

Each is what a kind of program does, drawn from its structure (layers, levels, partitions, requests)
and not from a recording. The format is that of trace.h.
"""

import argparse
import gzip
import pathlib
import random
import sys

HEADER = "op,id,size,stream,t\n"
KIB, MIB = 1 << 10, 1 << 20


class Trace:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.rows, self.last, self.time = [], 0, 0

    def alloc(self, size, stream=0):
        self.last += 1
        self.time += self.rng.randint(1, 20)
        self.rows.append(f"a,{self.last},{max(1, int(size))},{stream},{self.time}\n")
        return self.last, stream

    def free(self, *blocks):
        for name, stream in blocks:
            self.time += self.rng.randint(1, 5)
            self.rows.append(f"f,{name},0,{stream},{self.time}\n")

    def scratch(self, size, stream=0):
        self.free(self.alloc(size, stream))


def transformer_training(trace):
    """Weights, gradients and moments stay; activations live from the forward to the backward pass;
    batches have different lengths."""
    width, layers, heads, words = 1024, 24, 16, 32000
    shapes = [3 * width * width, width * width, 4 * width * width, 4 * width * width, width, width]
    weights = [trace.alloc(4 * words * width)]
    weights += [trace.alloc(4 * n) for _ in range(layers) for n in shapes]
    moments = []
    for step in range(6):
        tokens = 8 * trace.rng.choice((384, 448, 512, 512, 512))
        kept, gradients = [], []
        for _ in range(layers):
            layer = [trace.alloc(2 * tokens * width) for _ in range(3)]
            qkv = trace.alloc(6 * tokens * width)
            scores = trace.alloc(2 * tokens * tokens * heads // 8)
            trace.scratch(2 * tokens * tokens * heads // 8)
            layer += [qkv, scores, trace.alloc(4 * tokens), trace.alloc(4 * tokens)]
            layer += [trace.alloc(8 * tokens * width), trace.alloc(2 * tokens * width)]
            trace.scratch(8 * tokens * width)
            kept.append(layer)
        logits = trace.alloc(4 * tokens * words)
        trace.scratch(4 * tokens * words)
        trace.free(logits)
        for layer in reversed(kept):
            flow = trace.alloc(2 * tokens * width)
            for n, block in zip(shapes, reversed(layer)):
                workspace = trace.alloc(trace.rng.choice((0.25, 1, 8, 8.125)) * MIB)
                gradients.append(trace.alloc(4 * n))
                trace.free(block, workspace)
            trace.free(*layer[:-len(shapes)], flow)
        if step == 0:
            moments = [trace.alloc(4 * n) for _ in range(layers) for n in shapes + shapes]
        trace.scratch(4 * 64 * MIB // 16)
        trace.free(*gradients)
    trace.free(*weights, *moments)


def inference(trace):
    """A decoder serves requests one after another: caches of keys and values grow by doubling."""
    width, layers = 2048, 24
    weights = [trace.alloc(2 * n * width * width) for _ in range(layers) for n in (3, 1, 4, 4)]
    for _ in range(12):
        prompt = trace.rng.randint(16, 1500)
        room = 64
        while room < prompt:
            room *= 2
        caches = [trace.alloc(4 * room * width) for _ in range(layers)]
        for position in range(prompt, prompt + trace.rng.randint(4, 40)):
            rows = prompt if position == prompt else 1
            if position >= room:
                room *= 2
                for i, old in enumerate(caches):
                    caches[i] = trace.alloc(4 * room * width)
                    trace.free(old)
            for _ in range(layers // 4):
                hidden = trace.alloc(2 * rows * width)
                qkv = trace.alloc(6 * rows * width)
                scores = trace.alloc(2 * rows * position * 16)
                trace.free(qkv)
                up = trace.alloc(8 * rows * width)
                trace.free(scores, up, hidden)
            trace.scratch(4 * rows * 32000)
        trace.free(*caches)
    trace.free(*weights)


def cnn(trace):
    """A convolutional network: activations shrink from layer to layer, workspaces come and go, and
    the last batch of an epoch is smaller."""
    stages = [(64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3)]
    weights = [trace.alloc(4 * c * c * k) for c, _, n in stages for _ in range(n) for k in (1, 9, 4)]
    for step in range(16):
        batch = 64 if step % 8 != 7 else trace.rng.randint(9, 63)
        kept = [trace.alloc(4 * batch * 3 * 224 * 224)]
        for channels, side, count in stages:
            for _ in range(count):
                for factor in (1, 1, 4):
                    workspace = trace.alloc(trace.rng.choice((0, 1.5, 6.2, 24, 72.3)) * MIB + 1024)
                    kept.append(trace.alloc(4 * batch * factor * channels * side * side))
                    kept.append(trace.alloc(8 * channels * factor))
                    trace.free(workspace)
        gradients = []
        for block in reversed(kept):
            gradients.append(trace.alloc(trace.rng.choice(stages)[0] ** 2 * 4))
            trace.scratch(trace.rng.choice((0.5, 3, 18)) * MIB)
            trace.free(block)
        trace.free(*gradients)
    trace.free(*weights)


def solver(trace):
    """A multigrid solver: levels that shrink by eight, rebuilt when the mesh is refined, vectors
    in every iteration."""
    points = 400000
    for _ in range(8):
        levels = []
        for level in range(6):
            n = max(64, points >> 3 * level)
            matrix = [trace.alloc(8 * 7 * n), trace.alloc(4 * 7 * n), trace.alloc(4 * (n + 1))]
            trace.scratch(12 * 7 * n)
            levels.append((n, matrix))
        for _ in range(30):
            vectors = []
            for n, _ in levels:
                vectors.append([trace.alloc(8 * n) for _ in range(3)])
                trace.scratch(8 * max(1, n // 256))
            for row in reversed(vectors):
                trace.free(*row)
        for _, matrix in levels:
            trace.free(*matrix)
        points = int(points * trace.rng.uniform(1.1, 1.5))


def etl(trace):
    """Columns of tables are read, filtered, joined and written by partition; sizes follow the
    data."""
    dimension = [trace.alloc(trace.rng.lognormvariate(13, 1.5)) for _ in range(24)]
    backlog = []
    for _ in range(150):
        rows = int(trace.rng.lognormvariate(12, 0.8))
        columns = [trace.alloc(rows * trace.rng.choice((1, 4, 8, 8, 23))) for _ in range(10)]
        masks = [trace.alloc(rows // 8 + 1) for _ in columns]
        keep = trace.rng.uniform(0.05, 0.9)
        kept = [trace.alloc(rows * keep * trace.rng.choice((1, 4, 8))) for _ in columns]
        trace.free(*masks, *columns)
        table = trace.alloc(16 * rows)
        joined = [trace.alloc(rows * keep * trace.rng.uniform(4, 16)) for _ in range(6)]
        trace.free(table, *kept)
        backlog.append(joined)
        if len(backlog) > trace.rng.randint(2, 8):
            trace.free(*backlog.pop(trace.rng.randrange(len(backlog))))
    trace.free(*dimension, *(block for joined in backlog for block in joined))


def serving(trace):
    """Requests on eight streams at the same time, each with buffers of its own size and time."""
    models = [trace.alloc(trace.rng.randint(40, 180) * MIB) for _ in range(4)]
    running = []
    for _ in range(2500):
        if len(running) > trace.rng.randint(2, 24):
            trace.free(*running.pop(trace.rng.randrange(len(running))))
        stream = trace.rng.randint(1, 8)
        batch = trace.rng.choice((1, 1, 2, 4, 8, 16))
        side = trace.rng.choice((128, 224, 320, 512))
        blocks = [trace.alloc(12 * batch * side * side, stream)]
        for shift in range(2, 7):
            blocks.append(trace.alloc(batch * side * side * 256 >> shift, stream))
            if shift > 3:
                trace.free(blocks.pop(-2))
        blocks.append(trace.alloc(4000 * batch, stream))
        running.append(blocks)
    trace.free(*models, *(block for blocks in running for block in blocks))


def small_program(trace):
    """A small program: less than 8 MiB live, in sizes of all kinds."""
    live, held = [], 0
    for _ in range(4000):
        while live and (held > 6.5 * MIB or trace.rng.random() < 0.35):
            block, size = live.pop(trace.rng.randrange(len(live)))
            trace.free(block)
            held -= size
        size = int(min(768 * KIB, trace.rng.lognormvariate(9, 2.2))) + 1
        live.append((trace.alloc(size), size))
        held += size
    trace.free(*(block for block, _ in live))


WORKLOADS = (transformer_training, inference, cnn, solver, etl, serving, small_program)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    known = {workload.__name__: workload for workload in WORKLOADS}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(known)}")
    try:
        arguments.directory.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or known:
            trace = Trace(f"{name} {arguments.seed}")
            known[name](trace)
            text = HEADER + "".join(trace.rows)
            # No time stamp in the file: the same seed gives the same bytes.
            (arguments.directory / f"made_{name}.csv.gz").write_bytes(
                gzip.compress(text.encode(), compresslevel=6, mtime=0))
    except OSError as error:
        sys.exit(f"generate.py: {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
