"""ALLOC_CONF as a user meets it: the program always runs on, and is told what was wrong."""

import re

import conftest

TABLE = (conftest.ROOT / "config" / "options.def").read_text()
LEVELS = dict(re.findall(r"^CA_OPTION\((\w+), ([A-Z]+),", TABLE, re.MULTILINE))
KEYS = list(LEVELS)
BASIC = [key for key in KEYS if LEVELS[key] == "BASIC"]
RENAMED = re.findall(r'^CA_RENAMED\((\w+), (\w+), "(\w*)"\)$', TABLE, re.MULTILINE)
LABELS = re.findall(r'^CA_COUNTER\(\w+, "([^"]+)"\)',
                    (conftest.ROOT / "base" / "counters.def").read_text(), re.MULTILINE)


def said(run, program, conf=None, **kwargs):
    """What a program that allocates and frees once has on stderr under `conf`."""
    result = run([program("versioned"), 1], conf=conf, **kwargs)
    assert (result.rc, result.out) == (0, "")
    return result.err


def effective(run, program, conf, **kwargs):
    """The configuration in force, as print:true gives it."""
    lines = [line for line in said(run, program, f"{conf},print:true", **kwargs).splitlines()
             if f"{KEYS[0]}:" in line and f"{KEYS[-1]}:" in line]
    assert len(lines) == 1
    return lines[0][lines[0].index(f"{KEYS[0]}:"):]


def value(line, key):
    return re.search(rf"(?:^|,){key}:([^,]*)", line)[1]


def test_defaults_say_nothing(run, program):
    assert said(run, program) == ""
    assert said(run, program, "") == ""


def test_unknown_key_is_told_with_the_nearest(run, program):
    err = said(run, program, "log:warn,max_splt:64M")

    told = r"^cachealloc\[\d+\]: warning: .*\b10\b.*max_splt.*did you mean.*max_split.*\n$"
    assert re.match(told, err), err


def test_bad_value_is_told_and_the_default_stays(run, program):
    err = said(run, program, "max_split:banana")
    assert len(err.splitlines()) == 1
    for word in ("warning", "max_split", "banana", "accepted"):
        assert word in err

    line = effective(run, program, "max_split:banana,leak_max:7")
    assert value(line, "max_split") == "inf"
    assert value(line, "leak_max") == "7"


def test_words_in_the_place_of_a_path_are_read_in_any_case(run, program, tmp_path):
    """Otherwise what was to be off would be written to a file named OFF."""
    line = effective(run, program, "leak_report:OFF,journal:Off,metrics:'oFF',record:OFF,"
                     "suppressions:Off", cwd=tmp_path)
    for key in ("leak_report", "journal", "metrics", "record", "suppressions"):
        assert value(line, key) == "off", key
    assert value(effective(run, program, "leak_report:StdErr"), "leak_report") == "stderr"
    assert list(tmp_path.iterdir()) == []
    line = effective(run, program, "leak_report:./OFF", cwd=tmp_path)
    assert value(line, "leak_report") == "./OFF"
    assert [file.name for file in tmp_path.iterdir()] == ["OFF"]


def test_an_empty_path_is_told_and_the_default_stays(run, program):
    for key in ("leak_report", "journal", "metrics", "record", "suppressions"):
        err = said(run, program, f"{key}:''")
        assert f"{key}:'' has no value; accepted: " in err and "; stays " in err, err


def test_a_choice_that_is_none_is_told_with_those_there_are(run, program):
    for wrong in ("xml", "json+xml", "json+", "+json", "text json"):
        err = said(run, program, f"report_format:{wrong}")
        assert (f"report_format:{wrong} is not understood; accepted: text, json, pprof, folded, "
                "pytorch, or several joined with +; stays text\n") in err

    line = effective(run, program, "report_format:Folded + json+folded")
    assert value(line, "report_format") == "json+folded"


def test_values_out_of_range_are_told(run, program):
    for item in ("leak_max:1000001", "stack_depth:65", "max_split:1", "stats:sometimes", "x_runtime_hooks:maybe",
                 "stacks:sample", "stacks:sample:0", "stacks:sample:2T", "stacks:all:1M"):
        err = said(run, program, item)
        assert len(err.splitlines()) == 1 and item.partition(":")[0] in err, err


def test_sizes_and_separators_mean_the_same(run, program):
    lines = {effective(run, program, f"max_split{rest}")
             for rest in (":64M", "=64M", ":0x4000000", ":67108864", ":'64M'", ':"64M"', ": 64M")}

    assert len(lines) == 1
    assert value(lines.pop(), "max_split") == "64M"


def test_print_can_be_pasted_back(run, program, tmp_path):
    conf = (f"backend:off,x_runtime_hooks:false,max_split:96M,limit:3/4,leak_report:'{tmp_path}/a b,%p',"
            "leak_min:1K,leak_max:5,report_format:text+pprof,stacks:sample:512K,stack_depth:9,"
            "debug:frees+zero,log:info")
    line = effective(run, program, conf)

    again = effective(run, program, line)

    assert again == line
    for key, expected in (("backend", "off"), ("x_runtime_hooks", "false"), ("max_split", "96M"),
                          ("limit", "3/4"), ("leak_max", "5"), ("report_format", "text+pprof"),
                          ("stacks", "sample:512K"),
                          ("stack_depth", "9"), ("debug", "frees+zero"), ("log", "info")):
        assert value(line, key) == expected


def test_every_row_has_its_level():
    assert len(KEYS) == TABLE.count("\nCA_OPTION(") > 40
    assert set(LEVELS.values()) == {"BASIC", "ADVANCED", "EXPERIMENTAL"}


def test_help_lists_the_basic_options_or_all_with_their_values(run, program):
    for conf, keys in (("help:true,leak_exitcode:13", BASIC), ("help:all,leak_exitcode:13", KEYS)):
        err = said(run, program, conf)
        assert set(re.findall(r"^  (\w+):", err, re.MULTILINE)) == set(keys)
        assert "  leak_exitcode:13  (" in err
    assert re.findall(r"^(Basic|Advanced|Experimental)\b", err, re.MULTILINE) == [
        "Basic", "Advanced", "Experimental"]
    assert "help:all" in said(run, program, "help:true").splitlines()[-1]


def test_an_old_name_works_and_is_told_once_with_the_new_one(run, program):
    """All in one: each has its line, and the values are those of the new names."""
    values = {"async": "driver", "lane_r": "false", "settle": "5", "small": "1M",
              "zero": "true"}
    assert set(values) == {old for old, _, _ in RENAMED}
    old = ",".join(2 * [f"{key}:{value}" for key, value in values.items()])
    new = ",".join(f"{name}:{choice or values[key]}" for key, name, choice in RENAMED)

    lines = said(run, program, f"x_warmup:0,{old}").splitlines()

    assert len(lines) == len(RENAMED), lines
    for key, name, choice in RENAMED:
        today = f"{name}:{choice}" if choice else name
        assert len([line for line in lines if "warning: ALLOC_CONF character " in line and line.endswith(
            f'"{key}" is now "{today}"; the old name still works')]) == 1, lines
    assert effective(run, program, f"x_warmup:0,{old},log:error") == effective(
        run, program, f"{new},log:error")


def test_alias(run, program):
    env = {"CACHEALLOC_CONF": "leak_max:17,print:true"}

    assert "leak_max:17" in said(run, program, env=env)


def test_what_is_wrong_is_told_with_the_variable_that_has_it(run, program):
    err = said(run, program, "limit:x", env={"CACHEALLOC_CONF": "leak_max:y," + 16 * "z:0,"})

    lines = err.splitlines()
    assert "ALLOC_CONF character 7: limit:x" in lines[0] and "CACHEALLOC" not in lines[0]
    assert "CACHEALLOC_CONF character 10: leak_max:y" in lines[1]
    assert lines[-1].endswith(": CACHEALLOC_CONF: more items are wrong; they are not listed")


def test_log_off_silences_warnings(run, program):
    assert said(run, program, "no_such_key:1,log:off") == ""
    assert said(run, program, "log:error,no_such_key:1,max_split:banana") == ""


def test_noise_does_no_harm(run, program):
    for conf in (",", ":", "=,=,:", "max_split", "max_split:", "'", "\"max_split:1", "\x01\x02\xff",
                 "a" * 5000, ",".join(f"k{i}:{i}" for i in range(500))):
        err = said(run, program, conf)
        assert len(err.splitlines()) <= 20


def test_statistics_at_exit(run, program):
    result = run([program("versioned"), 1000], conf="stats:exit")

    assert (result.rc, result.out) == (0, "")
    for label in LABELS:
        assert label in result.err, label
    figures = dict(re.findall(r"^\s*(\w[\w ]*?)[ :.]+(\d+)$", result.err, re.MULTILINE))
    assert figures["allocation calls"] == figures["free calls"] == "1000", result.err
    assert int(figures["served from cached memory"]) + int(
        figures["served by a new segment"]) == 1000
    assert 1 <= int(figures["upstream allocations"]) < 50
    assert "live" in result.err and "reserved" in result.err


def test_an_environment_of_a_mebibyte_is_read_in_part_and_the_program_runs_on(run, program):
    """The kernel takes 128 KiB for one string at most."""
    longest = 128 << 10
    hostile = ",".join(["\udcff\udcfe\x01:\udc80", "max_split:" + "9" * 5000, "=" * 3000, "'"] * 20)
    conf = "leak_max:7," + hostile[:longest - 100]
    env = {f"CA_TEST_{i}": "x" * (longest - 100) for i in range(8)} | {
        "CUDA_VISIBLE_DEVICES": "0", "SLURM_PROCID": "9" * 60000}

    result = run([program("versioned"), 1], conf=f"{conf}", env=env)

    assert (result.rc, result.out) == (0, "")
    lines = result.err.splitlines()
    assert 2 <= len(lines) <= 18, lines[-3:]
    assert all(len(line) < 1000 and line.isascii() and line.isprintable() for line in lines), lines
    line = effective(run, program, conf.rpartition(",'")[0], env=env)
    assert value(line, "leak_max") == "7"


COMPATIBILITY = (conftest.ROOT / "docs/compatibility.md").read_text()
PROCESSES = (conftest.ROOT / "docs/several-processes.md").read_text()


def test_every_option_that_pages_about_other_software_name_is_accepted(run, program, tmp_path):
    """Whatever is in code and looks like key:value, and the ALLOC_CONF of each command."""
    text = re.sub(r"^```.*?^```$", "", PROCESSES, flags=re.DOTALL | re.MULTILINE)
    code = re.findall(r"`([^`]+)`", COMPATIBILITY + text)
    settings = {word for word in code if re.fullmatch(r"[a-z_]+:[^ :{]+", word)}
    for word in code:
        settings |= set(re.findall(r"ALLOC_CONF(?:=|, value: \")([^\s\"`]+)", word))
    settings = {setting.replace("/reports", str(tmp_path)) for setting in settings}
    keys = {setting.partition(":")[0] for setting in settings}

    assert {"backend", "limit", "decay", "ipc", "leak_report", "journal", "stream_ordered"} <= keys
    for setting in settings:
        told = said(run, program, setting, cwd=tmp_path)
        assert not re.search(r"warning|error", told), (setting, told)


def test_every_key_that_the_compatibility_page_names_alone_exists():
    alone = set(re.findall(r"`([a-z][a-z_]+)`", COMPATIBILITY)) - {
        "cachealloc", "cuda_memory_resource", "env"}

    assert alone and alone <= set(KEYS)


def test_the_compatibility_page_names_tests_and_files_that_exist():
    names = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|cc|c))`", COMPATIBILITY))

    for name in names:
        assert any(path.match(f"*/{name}") for folder in ("tests", "scripts", "simcuda", "tools",
                                                             "python")
                   for path in (conftest.ROOT / folder).rglob("*")), name
    assert "(docs/compatibility.md)" in (conftest.ROOT / "README.md").read_text()
