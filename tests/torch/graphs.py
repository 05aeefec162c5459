"""Captures a region that has temporaries, allocates what would land on them, and replays it: prints
what the graph computed, and how many of the later tensors it changed. Copies alone are used,
which the simulated CUDA does."""

import json

import torch

COUNT, VICTIMS, REPLAYS = 1 << 16, 48, 3


def main():
    source = torch.arange(COUNT, dtype=torch.float32).cuda()
    result = torch.empty(COUNT, device="cuda")

    def work():
        first = torch.empty(COUNT, device="cuda")
        first.copy_(source)
        second = torch.empty(COUNT, device="cuda")
        second[:COUNT // 2].copy_(first[COUNT // 2:])
        second[COUNT // 2:].copy_(first[:COUNT // 2])
        result.copy_(second)
        return first.data_ptr(), second.data_ptr()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            temporaries = work()
    except RuntimeError as error:
        print(json.dumps({"refused": str(error).split("\n", 1)[0]}))
        return
    victims = [torch.full((COUNT,), 7.0).cuda() for _ in range(VICTIMS)]
    changed, right = 0, True
    for number in range(REPLAYS):
        sent = torch.arange(COUNT, dtype=torch.float32) + number
        source.copy_(sent)
        graph.replay()
        right = right and torch.equal(result.cpu(), sent.roll(COUNT // 2))
        changed += sum(not torch.equal(victim.cpu(), torch.full((COUNT,), 7.0))
                       for victim in victims)
    reused = sum(victim.data_ptr() in temporaries for victim in victims)
    graph.reset()
    torch.cuda.synchronize()
    print(json.dumps({"right": right, "changed": changed, "reused": reused}))


main()
