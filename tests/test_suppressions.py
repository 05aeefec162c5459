"""Leaks that are known: rules as LeakSanitizer has them, and what each was for."""

import pytest

import leak_report

TILES, TABLES = (304096, 4), (6077, 3)  # bytes and allocations of the two functions of leaks.c


@pytest.fixture
def report(run, program, tmp_path):
    """report(rules) is the report of leaks.c under these rules, and what was said before it."""
    def suppressed(rules, conf="", name="leaks", binary=False, **kwargs):
        path = tmp_path / "known.supp"
        if binary:
            path.write_bytes(rules)
        else:
            path.write_text(rules)
        result = run(program(name), conf=f"suppressions:{path},{conf}", **kwargs)
        assert (result.rc, result.out) == (0, "")
        said, _, text = result.err.rpartition("cachealloc[")
        return leak_report.parse("cachealloc[" + text), said

    return suppressed


def amount(section):
    return section.bytes, section.count


@pytest.mark.parametrize("conf", ["", "x_runtime_hooks:false", "backend:off"])
def test_what_a_rule_is_for_is_counted_and_not_listed(report, conf):
    found, said = report("# known since June\n\n  leak:forget_tables  \nleak:nowhere\n", conf)

    assert said == ""
    assert amount(found) == TILES and amount(found.suppressed) == TABLES
    assert [group.bytes for group in found.groups] == [300000, 4096]
    assert not any("forget_tables" in frame for group in found.groups for frame in group.frames)
    used, unused = found.suppressed.rules
    assert used[:3] == (*TABLES, "leak:forget_tables") and used[3].endswith("known.supp")
    assert unused[2] == "leak:nowhere" and (used[4], unused[4]) == (3, 4)


@pytest.mark.parametrize("pattern, tiles, tables", [
    ("forget_ti", True, False), ("^forget_tiles$", True, False), ("orget_tiles$", True, False),
    ("^orget_tiles", False, False), ("forget_tile$", False, False), ("^forget_t*s$", True, True),
    ("f*t_tab*s", False, True), ("leaks.c", True, True), ("/tests/preload/leaks$", True, True),
    ("libcudart", False, False), ("main", True, True), ("^*$", True, True)])
def test_a_pattern_is_looked_for_in_functions_files_and_modules(report, pattern, tiles, tables):
    found, said = report(f"leak:{pattern}\n")

    assert said == ""
    expected = [part for part, is_known in ((TILES, tiles), (TABLES, tables)) if is_known]
    assert amount(found.suppressed) == (sum(part[0] for part in expected),
                                        sum(part[1] for part in expected))
    assert found.bytes + found.suppressed.bytes == TILES[0] + TABLES[0]


@pytest.mark.parametrize("conditions, groups", [
    ("kind=pinned", [4096]), ("dev=0 kind=managed", [6000]), ("dev=1", []),
    ("max_bytes=4K", [4096, 77]), ("max_bytes=4095", [77]), ("max_count=2", [6000, 4096, 77]),
    ("max_count=1 kind=device max_bytes=77", [77])])
def test_conditions_narrow_a_rule(report, conditions, groups):
    found, said = report(f"leak:forget_ {conditions}\n")

    assert said == ""
    assert found.suppressed.bytes == sum(groups)
    assert sorted(group.bytes for group in found.groups) == sorted(
        {300000, 6000, 4096, 77} - set(groups))


@pytest.mark.parametrize("rule, suppressed", [("leak:^main$", 7), ("leak:^forget_tiles$", 4),
                                              ("leak:^main$ kind=pinned", 1)])
def test_a_pattern_is_looked_for_beyond_the_frames_that_are_shown(report, rule, suppressed):
    """Where all leaks are one function's to whoever reads the report."""
    found, said = report(f"{rule}\n", conf="leak_depth:1")

    assert said == "" and found.suppressed.count == suppressed
    assert found.count == 7 - suppressed
    assert all(len(group.frames) == 1 for group in found.groups)


def test_of_several_rules_the_first_counts(report):
    found, _ = report("leak:nowhere\n" * 70 + "leak:forget_tiles kind=pinned\nleak:forget_\n")

    amounts = {rule[4]: rule[:2] for rule in found.suppressed.rules}
    assert (amounts[71], amounts[72]) == ((4096, 1), (306077, 6))
    assert len(amounts) == 72


def test_what_destroyed_contexts_held_is_suppressed_too(report):
    found, _ = report("leak:allocate_on_first\n", name="multi_ctx", sim="devices:2")

    assert found.destroyed is None and found.bytes == 0
    assert found.suppressed.count == 100


@pytest.mark.parametrize("line, wrong", [
    ("race:forget", "it does not begin with leak:"), ("forget_tables", "it does not begin with"),
    ("leak:", "there is no pattern"), ("leak: kind=device", "there is no pattern"),
    ("leak:a dev=x", "dev= must be"), ("leak:a dev=256", "dev= must be"),
    ("leak:a kind=gpu", "kind= must be"), ("leak:a max_bytes=-1", "max_bytes= must be a size"),
    ("leak:a max_count=many", "max_count= must be"), ("leak:a maxbytes=3", "unknown condition")])
def test_a_bad_line_is_named_and_the_others_count(report, line, wrong):
    found, said = report(f"leak:forget_tables\n{line}\n")

    message, = said.splitlines()
    for piece in ("warning: suppressions: ", f"known.supp:2: \"{line}\" is no rule: ", wrong,
                  "accepted: leak:PATTERN", "dev=N, kind=NAME, max_bytes=SIZE, max_count=N"):
        assert piece in message, message
    assert amount(found.suppressed) == TABLES and len(found.suppressed.rules) == 1


def test_operators_are_no_conditions(report):
    found, said = report("leak:T::operator= kind=device\nleak:bool operator=\n")

    assert said == "" and len(found.suppressed.rules) == 2


def test_a_file_of_noise_is_survived(report):
    found, said = report(bytes(range(256)) * 400, binary=True)

    assert amount(found) == (TILES[0] + TABLES[0], 7)
    lines = said.splitlines()
    assert len(lines) == 17 and "more lines of" in lines[-1]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("path, reason", [("/no/such/file", "No such file"),
                                          ("/dev/zero", "Invalid argument"), ("/", "")])
def test_a_file_that_cannot_be_read_suppresses_nothing(run, program, path, reason):
    result = run(program("leaks"), conf=f"suppressions:{path}")

    message = result.err.splitlines()[0]
    for piece in (f"suppressions: cannot read {path} ({reason}", "no leak is suppressed", "accepted:"):
        assert piece in message
    found = leak_report.parse(result.err)
    assert found.count == 7 and found.suppressed is None


def test_the_file_is_read_before_the_program_goes_elsewhere(run, program, tmp_path):
    (tmp_path / "known.supp").write_text("leak:forget_\n")
    result = run([program("leaks"), "chdir"], conf="suppressions:known.supp", cwd=tmp_path)

    found = leak_report.parse(result.err)
    assert (found.count, found.suppressed.count) == (0, 7)


@pytest.mark.parametrize("name", ["leaks", "multi_ctx"])
def test_printed_rules_suppress_what_they_were_printed_for(report, name):
    first, _ = report("", conf="suppressions_print:true", name=name, sim="devices:2")
    again, said = report("\n".join(first.rules) + "\n", name=name, sim="devices:2")

    if name == "leaks":
        assert first.rules == ["leak:^forget_tiles$ kind=device", "leak:^forget_tables$ kind=managed",
                               "leak:^forget_tiles$ kind=pinned", "leak:^forget_tables$ kind=device"]
    assert said == "" and again.bytes == 0 and again.destroyed is None
    lost = first.destroyed.bytes if first.destroyed else 0
    assert again.suppressed.bytes == first.bytes + lost
    assert all(rule[1] for rule in again.suppressed.rules)


def test_without_rules_nothing_is_said_of_them(report):
    found, said = report("# none\n")

    assert said == "" and found.suppressed is None and found.rules is None


# --- built-in rules -------------------------------------------------------------------------------

PYTORCH = [(4000, 1, "leak:getCUDABlasLtWorkspace"), (3000, 1, "leak:CachingHostAllocator"),
           (2000, 1, "leak:getCudnnHandle"), (1000, 1, "leak:DeviceCachingAllocator")]


@pytest.mark.parametrize("ends", [[], ["_exit"]])
@pytest.mark.parametrize("conf", ["", "x_runtime_hooks:false", "backend:off"])
def test_what_pytorch_keeps_on_purpose_is_counted_and_not_listed(run, program, conf, ends):
    """After _exit by the names that the linker knows. A tensor that its allocator takes past the
    cache is the program's, and a leak."""
    result = run([program("frameworks"), *ends], conf=conf)

    report = leak_report.parse(result.err)
    assert result.rc == 0
    assert sorted(group.bytes for group in report.groups) == [300, 500]
    assert amount(report.suppressed) == (10000, 4)
    assert [rule[:3] for rule in sorted(report.suppressed.rules, reverse=True)] == PYTORCH
    assert result.err.count("(built in)") == 4


def test_built_in_rules_can_be_turned_off(run, program):
    report = leak_report.parse(run(program("frameworks"), conf="suppressions_builtin:false").err)

    assert report.bytes == 10800 and report.suppressed is None


def test_of_built_in_rules_nothing_is_said_where_they_are_for_nothing(run, program):
    report = leak_report.parse(run(program("leaks")).err)

    assert report.bytes == TILES[0] + TABLES[0] and report.suppressed is None


def test_rules_of_a_file_come_before_those_that_are_built_in(report):
    found, said = report("leak:alloc_block\nleak:nowhere\n", name="frameworks")

    assert said == "" and found.bytes == 800
    assert sorted(rule[:3] for rule in found.suppressed.rules) == sorted(
        [(1000, 1, "leak:alloc_block"), *PYTORCH[:3], (0, 0, "leak:nowhere")])


def test_what_they_are_for_is_no_reason_for_another_exit_status(run, program, tmp_path):
    (tmp_path / "known").write_text("leak:forget\n")

    for conf, rc in (("", 23), (f",suppressions:{tmp_path}/known", 0),
                     (f",suppressions:{tmp_path}/known,suppressions_builtin:false", 23)):
        assert run(program("frameworks"), conf=f"leak_exitcode:23{conf}").rc == rc
        silent = run(program("frameworks"), conf=f"leak_exitcode:23,leak_report:off{conf}")
        assert (silent.rc, silent.err) == (rc, "")
