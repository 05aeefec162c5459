"""The chart of a bench: a group of bars for each of the main cases, logarithmic."""

import matplotlib

matplotlib.use("svg")
# The same results give the same file, but for its figures.
matplotlib.rcParams["svg.hashsalt"] = "bench"

from matplotlib import pyplot  # noqa: E402 (after the choice of what draws)

CASES = (("hot_64KiB_busy", 1, "64 KiB,\nin flight"), ("hot_16MiB_busy", 1, "16 MiB,\nin flight"),
         ("live_1000_busy", 1, "live 1,000,\nin flight"), ("hot_1KiB", 1, "hot 1 KiB"),
         ("live_64", 1, "live 64"), ("live_1000", 1, "live 1,000"),
         ("live_10000", 1, "live 10,000"), ("live_100000", 1, "live 100,000"),
         ("hot_1KiB", 2, "2 threads"), ("prodcons", 2, "producer,\nconsumer"),
         ("async_8", 1, "8 streams"))
COLOURS = {"cachealloc": "#1a7f37", "cachealloc_stacks": "#7bc58f", "cachealloc_order": "#0b4f1f",
           "cudaMallocAsync": "#8a5a8f", "rmm_pool": "#1f4e8c", "rmm_binning": "#4a7fc1",
           "rmm_arena": "#8fb3df", "rmm_tracking": "#b9c9dd", "cub": "#c26a1c",
           "glibc": "#999999"}


def draw(results, path):
    medians = {(one["allocator"], one["case"], one["threads"]): one for one in results}
    cases = [case for case in CASES if any(key[1:] == case[:2] for key in medians)]
    names = [name for name in COLOURS if any(key[0] == name for key in medians)]
    figure, axes = pyplot.subplots(figsize=(max(4, 1.4 * len(cases)), 4.2))
    width = 0.85 / max(1, len(names))
    for i, name in enumerate(names):
        shown = [(x, medians[name, case, threads]) for x, (case, threads, _) in enumerate(cases)
                 if (name, case, threads) in medians]
        heights = [one["ns_per_pair"] for _, one in shown]
        spread = [[one["ns_per_pair"] - min(one["repetitions"]) for _, one in shown],
                  [max(one["repetitions"]) - one["ns_per_pair"] for _, one in shown]]
        axes.bar([x + (i - (len(names) - 1) / 2) * width for x, _ in shown], heights, width,
                 yerr=spread, error_kw={"linewidth": 0.5}, color=COLOURS[name], label=name)
    axes.set_yscale("log")
    axes.set_ylabel("ns per allocation and free")
    axes.set_xticks(range(len(cases)), [label for _, _, label in cases])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncol=4, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
