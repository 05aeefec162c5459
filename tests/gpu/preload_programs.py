"""The programs of tests/preload, and what each is worth on a real CUDA.

Every program is here once at least: those of SAME end and print the same without the shim and with
it; of SHIM, which ask the shim itself, the end is looked at; a program of LEFT_OUT is not run, for
the reason that stands there. tests/test_gpu_suite.py looks whether one was forgotten.
"""

STATUS = "status"  # what it prints differs: times, addresses, or an intended difference (DESIGN 11)

# (command, STATUS or None). What takes the size of the device is not here: SIMCUDA keeps it small.
SAME = [
    (("arrays",), None),
    (("async", "pairs", "500"), None),
    (("async", "streams", "2000"), None),
    (("async", "mixed"), None),
    (("async", "held"), None),
    (("async", "own"), None),
    (("async", "joined"), None),
    (("async", "pool"), None),
    (("at_limit",), None),
    (("both_address_again", "500"), None),
    (("both_no_context", "pop"), None),
    (("both_no_context", "set"), None),
    (("both_no_context", "destroy"), None),
    (("capture", "relaxed"), None),
    (("capture", "thread"), None),
    (("cross_free",), None),
    (("deadlock", "own", "16777216", "8", "room"), None),
    (("deadlock", "idle", "16777216", "8", "room"), None),
    (("deadlock", "threads", "0", "60", "room"), None),
    (("deadlock", "again", "0", "60", "room"), None),
    (("drv_async_context",), None),
    (("drv_ctx",), None),
    (("drv_ctx_again", "10", "destroy"), STATUS),
    (("drv_green", "serve"), None),
    (("drv_green", "fence"), None),
    (("drv_mix", "20000", "64", "1"), STATUS),
    (("drv_order", "legacy"), None),
    (("drv_order", "current"), None),
    (("drv_pinned_ctx",), None),
    (("drv_pitched",), None),
    (("drv_procaddr",), None),
    (("drv_views",), STATUS),
    (("exits", "_exit", "4"), None),
    (("exits", "quick"), None),
    (("exits", "thread"), None),
    (("forks",), None),
    (("frameworks",), None),
    (("frees",), None),
    (("graphs", "again"), None),
    (("graphs", "flight", "plain"), None),
    (("graphs", "during", "relaxed", "own"), None),
    (("graphs", "during", "relaxed", "other"), None),
    (("graphs", "destroyed"), None),
    (("graphs", "threads"), None),
    (("held", "any", "16777216"), None),
    (("held", "any", "262144"), None),
    (("kinds",), None),
    (("leaks",), None),
    (("life_children", "before"), None),
    (("life_children", "after", "fork", "exit"), None),
    (("life_children", "after", "vfork", "exec"), None),
    (("life_children", "after", "spawn", "exec"), None),
    (("life_ends", "return"), None),
    (("life_ends", "_exit"), None),
    (("life_ends", "atexit"), None),
    (("life_ends", "small"), None),
    (("life_ends", "term"), None),
    (("life_threads", "many"), None),
    (("life_threads", "cached"), None),
    (("life_threads", "late"), None),
    (("lookups",), STATUS),
    (("lookups_host",), STATUS),
    (("many_stacks", "16", "16"), STATUS),
    (("meminfo",), None),
    (("mix", "20000", "64", "1"), STATUS),
    (("multi_ctx",), None),
    (("next_dlsym",), None),
    (("pairs", "live", "2000"), STATUS),
    (("pairs", "hot", "2000"), STATUS),
    (("pairs", "rest", "200"), STATUS),
    (("peers",), None),
    (("pinned",), None),
    (("pinned_direct", "{scratch}"), None),
    (("pinned_life", "reset"), None),
    (("pinned_life", "fork"), None),
    (("pinned_reuse", "same", "plain"), None),
    (("pinned_threads", "4", "200"), None),
    (("pinned_views",), STATUS),
    (("pitched", "use"), None),
    (("plugin_host", "{programs}/plugin_alloc.so"), None),
    (("reset_late",), None),
    (("reset_late", "before"), None),
    (("reuse", "100", "plain"), None),
    (("setdevice",), None),
    (("threads", "8", "500"), None),
    (("throws",), None),
    (("versioned", "1000"), None),
    (("weak_host",), STATUS),
    (("weak_api_host",), STATUS),
]

# What asks how much of the device is free, and wants nobody beside it.
WHOLE = ("meminfo",)

# (command, exit status), with the shim alone.
SHIM = [
    (("api_external",), 0),
    (("api_names",), 0),
    (("api_query",), 0),
    (("api_threads", "4", "200"), 0),
    (("drv_api_life",), 0),
    (("drv_api_life", "host"), 0),
    # Without it a free would have to wait for another context's work, which it does not.
    (("drv_order", "unseen"), 0),
    (("graphs", "flight"), 0),
    (("graphs", "pin"), 0),
    (("held", "room", "16777216"), 0),
    (("pinned_reuse", "same"), 0),
    (("reuse", "1"), 0),
    (("reuse", "70"), 0),
    (("reuse", "200"), 0),
]

SIZED = "is about a device that SIMCUDA makes small"
OPTION = "is about an option or a report, which its test sets and reads"
# cuda.h, cuCtxDestroy: "It is the responsibility of the calling function to ensure that no API call
# issues using ctx while cuCtxDestroy() is executing"; cuda_runtime_api.h, cudaDeviceReset, likewise.
# life_threads cancelled is not here either: it cancels threads inside the driver.
FORBIDDEN = "ends contexts while other threads use them, which a driver need not survive"
MODEL = "needs what only the simulator does"
LEFT_OUT = {
    "abandoned": SIZED, "cache_full": SIZED, "drv_ctx_room": SIZED, "drv_deadlock": SIZED,
    "drv_room": SIZED, "drv_room_context": SIZED, "oom": SIZED, "pooled": SIZED,
    "pressure": SIZED, "pinned_short": SIZED, "modes": SIZED,
    "api_dump": OPTION, "capabilities": OPTION, "capabilities_threads": OPTION,
    "capabilities_use": OPTION, "decay": OPTION, "dump_signal": OPTION, "dumps": OPTION,
    "exit_status": OPTION, "journaled": OPTION, "life_secure_host": OPTION, "localized": OPTION,
    "misuse": OPTION, "pin_mode": OPTION, "published": OPTION, "same_start": OPTION, "sampled": OPTION,
    "shards": OPTION, "zero": OPTION,
    "life_opens_host": "opens the library, and no CUDA",
    "life_plugins_host": OPTION, "pinned_pairs": "prints what it cost, which differs",
    "ctx_storm": FORBIDDEN, "drv_ctx_storm": FORBIDDEN,
    "drv_ctx_many": "takes many minutes where a context is dear",
    "drv_reopen_host": MODEL + ": a driver that can be closed and opened again",
    "drv_tracked": MODEL + ": modules that are any bytes",
    "faults": MODEL + ": calls that fail when they are told to",
    "ipc": MODEL + ": processes that share a file for a device",
    "sticky": MODEL + ": fills that reach any address",
    "drv_broken_peer": MODEL + ": fills that reach any address",
}
