"""Tensors that go to and fro between two devices, on streams of both, in several threads; prints
how many arrived as they were sent."""

import json
import threading

import torch

COUNT, ROUNDS, THREADS = 1 << 16, 20, 3


def travel(number, found):
    streams = [torch.cuda.Stream(device) for device in range(2)]
    for round_ in range(ROUNDS):
        count = COUNT >> round_ % 5
        sent = torch.full((count,), float(number * ROUNDS + round_))
        with torch.cuda.stream(streams[0]):
            here = sent.pin_memory().to("cuda:0", non_blocking=True)
            there = here.to("cuda:1", non_blocking=True)
        event = torch.cuda.Event()
        event.record(streams[0])
        with torch.cuda.stream(streams[1]):
            event.wait(streams[1])
            there.record_stream(streams[1])
            back = there.clone().to("cuda:0")
        streams[1].synchronize()
        torch.cuda.synchronize(0)
        found.append(torch.equal(back.cpu(), sent))
        del here, there, back


def main():
    found = []
    threads = [threading.Thread(target=travel, args=(number, found)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device in range(2):
        torch.cuda.synchronize(device)
    print(json.dumps({"right": sum(found), "of": len(found)}))


main()
