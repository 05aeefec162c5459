"""Wrong uses of memory are found and explained: frees always, reads and overruns with `debug`."""

import re
import sys
import time
import types

import pytest

import leak_report

LANES = ["x_runtime_hooks:true", "x_runtime_hooks:false"]
HEAD = re.compile(r"^cachealloc\[\d+\]: warning: (.*)$")
FREE = re.compile(r"^free of (0x[0-9a-f]+): (.*); refused$")


def notices(text):
    """The messages with call stacks in `text`: line, and stacks by what they are."""
    found = []
    for line in text.splitlines():
        if match := HEAD.match(line):
            found.append(types.SimpleNamespace(line=match[1], stacks={}))
        elif line.startswith("      "):
            list(found[-1].stacks.values())[-1].append(line.strip())
        elif line.startswith("    ") and found and found[-1].stacks is not None:
            title = re.match(r"^    (allocated|freed|freed again|this free) by thread \S+:$", line)
            if title is None:
                break  # the leak report, which comes last
            found[-1].stacks[title[1]] = []
        else:
            break
    return found


def the_notice(result):
    assert result.rc == 0, result.err
    found = notices(result.err)
    assert len(found) == 1, result.err
    return found[0]


def goes_through(stack, *functions):
    """Whether the functions come in that order, innermost first."""
    text = "\n".join(stack)
    places = [text.find(f"{function} at misuse.c:") for function in functions]
    assert -1 not in places and places == sorted(places), text
    return True


# --- frees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("size", [1000, 1 << 20])
@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_a_double_free_names_what_was_freed(run, program, kind, size, lane):
    result = run([program("misuse"), "twice", kind, size], conf=lane)
    notice = the_notice(result)

    assert re.search(rf": it was freed before and was.* {size} bytes of {kind} memory on device 0;",
                     notice.line)
    assert set(notice.stacks) == {"allocated", "freed again"}
    assert goes_through(notice.stacks["allocated"], "allocates", "main")
    assert goes_through(notice.stacks["freed again"], "frees_again", "main")


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_a_double_free_after_a_hit_names_where_it_came_from(run, program, kind):
    """The block in stock knows its stack, not its exact size."""
    result = run([program("misuse"), "hits", kind, 1000], conf="x_warmup:0")
    notice = the_notice(result)

    assert re.search(rf": it was freed before and was up to \d+ bytes of {kind} memory on device 0;",
                     notice.line)
    assert goes_through(notice.stacks["allocated"], "allocates", "hits")
    assert goes_through(notice.stacks["freed again"], "frees_again", "hits")


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_with_frees_the_first_free_is_shown_too(run, program, kind, lane):
    notice = the_notice(run([program("misuse"), "twice", kind], conf=f"debug:frees,{lane}"))

    assert f" and was 1000 bytes of {kind} memory" in notice.line
    assert list(notice.stacks) == ["allocated", "freed", "freed again"]
    assert goes_through(notice.stacks["allocated"], "allocates", "main")
    assert goes_through(notice.stacks["freed"], "frees_first", "main")
    assert goes_through(notice.stacks["freed again"], "frees_again", "main")


@pytest.mark.parametrize("lane", LANES)
def test_with_frees_what_was_hits_is_known_exactly(run, program, lane):
    notice = the_notice(run([program("misuse"), "hits", "device"],
                            conf=f"debug:frees,x_warmup:0,{lane}"))

    assert " and was 1000 bytes of device memory" in notice.line
    assert goes_through(notice.stacks["freed"], "frees_first", "hits")


@pytest.mark.parametrize("conf", ["x_runtime_hooks:true", "x_runtime_hooks:false", "debug:frees", "x_warmup:0",
                                  "debug:poison+redzone", "backend:off"])
def test_of_two_threads_that_free_one_is_refused_and_told(run, program, conf):
    for _ in range(5):
        notice = the_notice(run([program("misuse"), "threads", 1000], conf=conf))

        assert re.search("it was freed before and was.* 1000 bytes|up to 1024 bytes", notice.line)
        assert goes_through(notice.stacks["allocated"], "allocates", "main")
        assert goes_through(notice.stacks["freed again"], "frees_first", "in_thread")


def test_of_two_frees_in_the_driver_at_once_no_record_stays(run, program):
    """Either may be the one that the driver takes, with or without the record."""
    for _ in range(40):
        result = run([program("misuse"), "threads", 1000], conf="backend:off",
                     sim="latency:cuMemFree_v2=60000")

        assert " it was freed before and was 1000 bytes" in the_notice(result).line
        assert "LEAK SUMMARY" not in result.err


@pytest.mark.parametrize("conf", [*LANES, "backend:off"])
@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_an_interior_pointer_is_told_with_what_it_lies_in(run, program, kind, conf):
    notice = the_notice(run([program("misuse"), "inside", kind, 5000], conf=conf))

    match = re.fullmatch(r"free of (0x\w+): it lies inside a live allocation, at offset 100 of "
                         rf"5000 bytes of {kind} memory on device 0 at (0x\w+); refused", notice.line)
    assert match and int(match[1], 16) - int(match[2], 16) == 100, notice.line
    assert goes_through(notice.stacks["allocated"], "allocates", "main")
    assert goes_through(notice.stacks["this free"], "frees_again", "main")


@pytest.mark.parametrize("conf", [*LANES, "backend:off"])
def test_memory_of_another_kind_is_told_and_stays(run, program, conf):
    result = run([program("misuse"), "kinds"], conf=conf)
    assert result.rc == 0, result.err
    device, pinned = notices(result.err)

    assert "3000 bytes of device memory on device 0, which cudaFree frees, not" in device.line
    assert "3000 bytes of pinned memory on device 0, which cudaFreeHost frees, not" in pinned.line
    for notice in device, pinned:
        assert goes_through(notice.stacks["allocated"], "allocates", "kinds")
        assert goes_through(notice.stacks["this free"], "frees_again", "kinds")
    assert leak_report.parse(result.err) is None


@pytest.mark.parametrize("conf", LANES)
def test_each_address_is_told_once(run, program, conf):
    result = run([program("misuse"), "loop", 200], conf=conf)

    assert result.rc == 0, result.err
    assert len(notices(result.err)) == 2


def test_many_wrong_frees_do_not_flood(run, program):
    start = time.monotonic()
    result = run([program("misuse"), "flood", 5000])
    seconds = int(time.monotonic() - start) + 2

    assert result.rc == 0, result.err
    told = [line for line in result.err.splitlines() if HEAD.match(line)]
    assert 8 < len(told) <= min(8 * seconds + 1, 64 + 2)
    assert sum("some are not shown" in line for line in told) == 1


def test_under_the_loader_s_lock_places_are_shown_without_names(run, program):
    """The names need that lock: the free must come back without."""
    result = run([program("plugin_host"), program("plugin_misuse.so")], conf="x_runtime_hooks:false")
    notice = the_notice(result)

    assert result.out == "1000\n"
    assert re.match(r"plugin_misuse.so\+0x[0-9a-f]+$", notice.stacks["allocated"][0])


def test_of_python_they_are_shown_with_names(run, program, tmp_path):
    """Which need nothing of the loader."""
    script = tmp_path / "opens.py"
    script.write_text("import ctypes, sys\ndef opens():\n    ctypes.CDLL(sys.argv[1])\nopens()\n")
    result = run([sys.executable, script, program("plugin_misuse.so")])
    notice = the_notice(result)

    for stack in notice.stacks.values():
        assert stack[-2:] == ["opens at opens.py:3", "<module> at opens.py:4"]
        assert not any(line.startswith("0x8") for line in stack)


@pytest.mark.parametrize("conf", ["stacks:off", "stacks:off,debug:frees"])
def test_without_stacks_the_rest_is_told(run, program, conf):
    notice = the_notice(run([program("misuse"), "twice", "device"], conf=conf))

    assert "1000 bytes of device memory on device 0" in notice.line
    assert all(stack == ["(no call stack)"] for stack in notice.stacks.values())


def test_nothing_is_said_where_nobody_wants_to_hear(run, program):
    for use in ["twice", "device"], ["inside", "device"], ["kinds"], ["behind", "device"]:
        result = run([program("misuse"), *use], conf="log:error,debug:frees+redzone")
        assert (result.rc, result.err) == (0, "")


# --- poison ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("size", [1, 1000, 3 << 20])
@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_poison_shows_in_fresh_and_in_freed_memory(run, program, kind, size, lane):
    result = run([program("misuse"), "look", kind, size], conf=f"debug:poison,{lane}",
                 sim="racecheck:1")

    assert (result.rc, result.err) == (0, "")
    assert result.out == "fresh ca ca\nwritten 11 11\nfreed df df\n"


def test_without_poison_memory_is_as_it_was_left(run, program):
    for conf in None, "debug:frees+redzone":
        result = run([program("misuse"), "look", "device"], conf=conf)
        assert result.out == "fresh 00 00\nwritten 11 11\nfreed 11 11\n"


def test_zeros_come_before_poison(run, program):
    result = run([program("misuse"), "look", "device"], conf="debug:poison+zero")

    assert result.out == "fresh 00 00\nwritten 11 11\nfreed df df\n"
    assert run(program("zero"), conf="debug:poison+redzone+zero").out == "clean\n"


@pytest.mark.parametrize("lane", LANES)
def test_work_under_way_does_not_see_the_poison(run, program, lane):
    for kind in "device", "async", "pinned":
        result = run([program("misuse"), "busy", kind], conf=f"debug:poison+redzone,{lane}",
                     sim="racecheck:1")
        assert (result.rc, result.out, result.err) == (0, "wrong 0\n", "")


# --- redzone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("size", [1, 512, 1000, 3 << 20])
@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_a_byte_behind_the_end_is_found_by_the_free(run, program, kind, size, lane):
    notice = the_notice(run([program("misuse"), "behind", kind, size], sim="racecheck:1",
                            conf=f"debug:redzone,{lane}"))

    assert re.fullmatch(rf"written behind the end of {size} bytes of {kind} memory on device 0 at "
                        rf"0x\w+: the first bad byte is at offset {size}, 1 of the 256 behind it "
                        r"differ \(found by its free\)", notice.line)
    assert goes_through(notice.stacks["allocated"], "allocates", "main")
    assert goes_through(notice.stacks["freed"], "frees_first", "main")


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_or_at_exit(run, program, kind, lane):
    result = run([program("misuse"), "kept", kind], conf=f"debug:redzone,{lane}",
                 sim="racecheck:1")
    notice = notices(result.err)[0]

    assert result.rc == 0
    assert "offset 1000, 1 of the 256 behind it differ (found at exit)" in notice.line
    assert goes_through(notice.stacks["allocated"], "allocates", "main")
    assert leak_report.parse(result.err).bytes == 1000


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_or_before_the_context_goes(run, program, kind, lane):
    result = run([program("misuse"), "reset", kind], conf=f"debug:redzone,{lane}",
                 sim="racecheck:1")
    notice = notices(result.err)[0]

    assert result.rc == 0 and result.err.count("written behind") == 1
    assert ("offset 1000, 1 of the 256 behind it differ (found when its context was to go)"
            in notice.line)
    assert goes_through(notice.stacks["allocated"], "allocates", "main")
    assert leak_report.parse(result.err).destroyed.bytes == 1000


def test_what_goes_during_the_look_at_exit_is_not_touched(run, program):
    """Another thread gives the pinned memory back while the device's is read."""
    result = run([program("misuse"), "looked-at"], conf="debug:redzone",
                 sim="devices:2,latency:cuMemcpyDtoHAsync_v2=400000000")

    assert (result.rc, result.out) == (0, "given back\n"), result.err
    assert "written behind" not in result.err


@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_the_last_byte_may_be_written(run, program, kind):
    for size in 1, 512, 1000, 3 << 20:
        result = run([program("misuse"), "before-its-end", kind, size],
                     conf="debug:frees+poison+redzone", sim="racecheck:1")
        assert (result.rc, result.err) == (0, "")


@pytest.mark.parametrize("kind", ["device", "pinned", "async"])
def test_no_guard_lies_in_another_allocation(run, program, kind):
    for size in 512, 4096, 65536:
        result = run([program("misuse"), "neighbours", kind, size],
                     conf="debug:frees+poison+redzone", sim="racecheck:1")
        assert (result.rc, result.err) == (0, "")


# --- what is right stays right --------------------------------------------------------------------


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("cmd, sim", [
    (["threads", 4, 200], "memory:2G"),
    (["capture", "relaxed"], None),
    (["multi_ctx"], "devices:2"),
    (["kinds"], None),
    (["pinned"], None),
    (["pitched", "pairs"], None),
    (["drv_ctx"], None),
    (["drv_green"], None),
    (["async", "streams", 100], "racecheck:1"),
    (["reuse", 20, "plain"], "memory:4G"),
], ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value))
def test_right_programs_are_right_under_all_of_it(run, program, cmd, sim, lane):
    result = run([program(cmd[0]), *cmd[1:]], sim=sim, conf=f"debug:frees+poison+redzone,{lane}")

    assert result.rc == 0, result.err
    assert leak_report.nothing_leaked(result.err), result.err


def test_off_costs_nothing(run, program):
    """No call more of the driver's; the instructions of hits are test_bench.py's."""
    def calls(conf, preload=True):
        counted = run([program("pairs"), "hot", 1000], conf=conf, preload=preload, stats=True).sim
        return [counted["calls"].get(name, 0)
                for name in ("cuMemsetD8Async", "cuMemcpyDtoHAsync_v2", "cuCtxSynchronize")]

    own = calls(None, preload=False)
    assert calls("debug:off") == calls(None) == own
    more = [with_debug - without for with_debug, without in zip(calls("debug:poison+redzone"), own)]
    assert more == [3000, 1000, 0]  # waits are for events


def test_a_wait_ends_no_capture_that_begins_meanwhile(run, build):
    """A thread frees, and waits; another one begins to capture."""
    for conf in ("free_sync:true,x_warmup:16", "debug:poison", "debug:redzone"):
        result = run([build / "random", "--seed", 23, "--ops", 1000, "--profile", "graphs"],
                     conf=conf, sim="devices:2")
        assert (result.rc, result.err) == (0, ""), (conf, result.err)


@pytest.mark.parametrize("value", ["poisn", "poison+", "frees,redzone", "poison+what"])
def test_an_unknown_choice_is_refused_with_what_is_accepted(run, program, value):
    result = run([program("misuse"), "look", "device"], conf=f"debug:{value}")

    assert "off, frees, poison, redzone, or several joined with +" in result.err \
        or "redzone" in result.err
    assert result.out == "fresh 00 00\nwritten 11 11\nfreed 11 11\n"
