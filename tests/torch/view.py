"""What PyTorch's memory_viz finds in a report of the library: view.py FILE"""

import json
import pickle
import sys

from torch.cuda import _memory_viz


def main():
    with open(sys.argv[1], "rb") as file:
        snapshot = pickle.load(file)
    assert _memory_viz.segsum(snapshot) and _memory_viz.trace_plot(snapshot)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]
              if block["state"] == "active_allocated"]
    names = [frame["name"] for frame in blocks[0]["frames"]
             if frame["filename"].endswith("leak.py")]
    print(json.dumps({"bytes": sum(block["size"] for block in blocks), "names": names}))


main()
