"""Sends tensors to another process by torch.multiprocessing, and an event by its IPC handle; the
other one says what it found, changes the tensors in place, and this one says what came back."""

import json

import torch
import torch.multiprocessing as multiprocessing

COUNTS = (1000, 1 << 19, 3 << 20)
LIMIT_S = 240


def other(questions, answers):
    event_handle = questions.get(timeout=LIMIT_S)
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), event_handle)
    event.wait()
    event.synchronize()
    answers.put(event.query())
    for _ in COUNTS:
        tensor = questions.get(timeout=LIMIT_S)
        answers.put((tensor.cpu()[0].item(), tensor.cpu()[-1].item(), tensor.numel()))
        tensor.copy_(torch.full((tensor.numel(),), -1.0))
        torch.cuda.synchronize()
        del tensor
        answers.put("done")
    questions.get(timeout=LIMIT_S)  # the tensors are the first process's


def main():
    context = multiprocessing.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=other, args=(questions, answers), daemon=True)
    process.start()
    event = torch.cuda.Event(enable_timing=False, interprocess=True)
    torch.zeros(1 << 20, device="cuda")
    event.record()
    questions.put(event.ipc_handle())
    found = {"event": answers.get(timeout=LIMIT_S), "there": [], "back": []}
    kept = []
    for number, count in enumerate(COUNTS):
        kept.append(torch.empty(700, device="cuda"))
        tensor = torch.full((count,), number + 0.5).cuda()
        kept.append(tensor)
        torch.cuda.synchronize()
        questions.put(tensor)
        first, last, length = answers.get(timeout=LIMIT_S)
        assert answers.get(timeout=LIMIT_S) == "done"
        found["there"].append([first, last, length])
        found["back"].append([tensor.cpu()[0].item(), tensor.cpu()[-1].item()])
    questions.put(None)
    process.join(LIMIT_S)
    found["ended"] = process.exitcode
    print(json.dumps(found))


if __name__ == "__main__":
    main()
