"""README and docs/: each output that they show is what the library prints, each link leads
somewhere, each setting is accepted, and the words are the field's."""

import hashlib
import re
import subprocess

import pytest

import conftest
import words
from test_options import BASIC, KEYS, said

ROOT = conftest.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages whose words and samples are their own; their links are checked all the same.
LINKING = sorted({*PAGES, *ROOT.glob("*.md"), *(ROOT / "tests").rglob("*.md")})
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return str(page.relative_to(ROOT))


def wrong(check, pages=PAGES):
    """What `check` finds on each page. One test for all pages: a page takes a millisecond."""
    return {name_of(page): found for page in pages if (found := list(check(page)))}


def blocks(page, *languages):
    return [text for language, text in BLOCK.findall(page.read_text()) if language in languages]


def code(page):
    """What stands between single backticks."""
    return re.findall(r"`([^`\n]+)`", BLOCK.sub("", page.read_text()))


# --- links ----------------------------------------------------------------------------------------


def anchors(page):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {slug for slug in slugs}


def broken_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not re.match(r"https?://", target) and not (
                file.exists() and (not anchor or anchor in anchors(file))):
            yield target


def test_links_lead_to_files_and_headings_that_exist():
    assert not wrong(broken_links, LINKING)


def test_another_page_links_to_every_page():
    linked = {(page.parent / path).resolve() for page in PAGES
              for path in re.findall(r"\]\(([^)\s#]+)", page.read_text())}
    assert set(PAGES) - linked <= {ROOT / "README.md"}


ROOMS = ("base", "config", "docs", "include", "pool", "python", "registry", "scripts", "shim",
         "simcuda", "tests", "tools")


def test_the_files_that_are_named_exist():
    assert not wrong(lambda page: (
        name for name in code(page)
        if re.fullmatch(rf"(?:{'|'.join(ROOMS)})/[\w./-]+", name) and not (ROOT / name).exists()))


def test_what_cites_a_section_of_the_design_finds_it():
    design = (ROOT / "docs/internals/design.md").read_text()
    sections = re.findall(r"^## (\d+)\. ", design, re.MULTILINE)
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*")
             if path.suffix in (".c", ".h", ".py", ".tsv", ".def", ".S")]
    cited = {section for path in files for section in
             re.findall(r"\bdesign\.md (\d+)", path.read_text(errors="replace"))}
    assert len(cited) >= 5 and cited <= set(sections)


def test_the_targets_of_make_that_are_named_exist():
    rules = "\n".join((ROOT / file).read_text()
                      for file in ("Makefile", "scripts/check.mk", "tests/fuzz/fuzz.mk"))
    targets = set(re.findall(r"^([a-z][a-z0-9 -]*):", rules, re.MULTILINE))
    targets = {word for words in targets for word in words.split()}
    assert not wrong(lambda page: set(re.findall(
        r"^make ([a-z][a-z0-9-]*)", "\n".join([*blocks(page, "sh"), *code(page)]),
        re.MULTILINE)) - targets)


def test_the_rules_for_inner_frames_are_those_of_the_table():
    text = (ROOT / "docs/reports.md").read_text()
    shown = re.search(r"<!-- fold -->\n(.*?)<!-- /fold -->", text, re.DOTALL)[1]
    rules = set()
    for row in shown.splitlines()[2:]:
        of, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for cell, rule in zip(cells, (("FUNCTION", "true"), ("MODULE", "true"),
                                      ("PYTHON_FILE", "true"), ("FUNCTION", "false")), strict=True):
            rules |= {(of, rule[0], name, rule[1]) for name in re.findall("`(.*?)`", cell)}

    table = re.findall(r'^CA_FOLD\("(.*?)", (\w+), "(.*?)", (\w+)\)$',
                       (ROOT / "registry/names/fold.def").read_text(), re.MULTILINE)
    assert rules == set(table) and len(table) == len(rules)


def test_the_folded_stack_shown_is_that_of_the_unit_test():
    source = (ROOT / "tests/unit/test_fold.c").read_text()
    wanted = re.search(r"static void a_framework_s_frames_are_one_line(.*?)^}", source,
                       re.DOTALL | re.MULTILINE)[1]
    text = (ROOT / "docs/reports.md").read_text()
    shown = re.search(r"<!-- folded_frames -->\n```text\n(.*?)```", text, re.DOTALL)[1]
    assert "".join(re.findall(r'"(.*?)"', wanted)).replace("\\n", "\n") == shown


# --- length and words -----------------------------------------------------------------------------


@pytest.mark.parametrize("page, most", [("README.md", 180), ("CONTRIBUTING.md", 120)])
def test_what_is_read_first_is_short(page, most):
    lines = (ROOT / page).read_text().splitlines()
    assert len(lines) <= most


def test_each_line_of_contributing_is_at_most_100_columns():
    """Tables too: it is read in a terminal."""
    assert not [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines()
                if len(line) > 100]


def long_lines(page):
    """But for tables, and what the options' table brings."""
    text = re.sub(r"<!-- options -->.*<!-- /options -->", "", page.read_text(), flags=re.DOTALL)
    for line in BLOCK.sub("", text).splitlines():
        if len(line) > 100 and not line.startswith("|") and " " in line.strip():
            yield line


def test_lines_are_at_most_100_columns():
    assert not wrong(long_lines)


def prose(page):
    """Without code, where links lead to, and links that are named after a file."""
    return re.sub(r"<!--.*?-->|`[^`\n]+`|\[[\w/.]+\]\([^)\s]+\)|\]\([^)\s]+\)", " ",
                  BLOCK.sub("", page.read_text()), flags=re.DOTALL)


def refused(page):
    return list(words.found("pages", prose(page)))


def test_the_words_are_the_fields():
    assert not wrong(refused), "docs/internals/glossary.md has the right ones"


@pytest.mark.parametrize("room", words.ROOMS)
def test_the_words_of_names_and_comments_are_the_fields(room):
    """tests/words.py has the list; run, it prints what it finds."""
    there = list(words.in_room(ROOT, room))
    assert not there, "\n".join(": ".join(one) for one in there)


def test_refused_words_are_found(tmp_path):
    for text in ("A thread who waits", "served by lane R", "the pool has settled",
                 "whoever frees it", "a hit takes no lock"):
        (tmp_path / "page.md").write_text(f"# Page\n\n{text}, `lane_r`.\n")
        assert refused(tmp_path / "page.md")
    (tmp_path / "page.md").write_text("# Page\n\nA thread that waits, `lane_r`, [hit.h](hit.h)\n")
    assert not refused(tmp_path / "page.md")


def test_refused_words_are_found_in_names_and_comments_alone(tmp_path):
    bad = {"/* the thread who\n * waits */": "who", "int ca_hit_take;": "ca_hit_take",
           "// a wrong\nint x; /* a wrong\n * free */": "wrong free", "int hitTake;": "hitTake",
           'int heap; char *x = "nobody";': "heap", "int heap; int heaps, heap2;": "heap",
           '#define CA_OPTION(a, "settled")': None, "/* a cache hit; no heap is used */": None,
           "int shutdown, whole, white, latest, stocky; /* turns later */": None,
           'char *x = "/* who */ nobody";': None, "CA_RENAMED(lane_r, hits)": "lane_r",
           "int slot_of;": "slot_of", "R_X86_64_JUMP_SLOT;": None, "/* a record's word */": "record's word",
           "int line;": "line", "int cache_lines;": None, "/* before the look */": "the look",
           "/* a look-up */": None, "look_up();": None, "look_at();": "look_at",
           "bool taken;": "taken", "/* it is gone */": "gone", "/* it has gone back */": None,
           "/* bytes given */": "bytes given", "int note;": "note", "note_free();": None,
           "fence_t *ends;": "ends", "int ends_of;": None, "/* if there is room */": "room"}
    (tmp_path / "pool").mkdir()
    for text, what in bad.items():
        (tmp_path / "pool/one.c").write_text(text)
        found = [one for _, one, _ in words.in_room(tmp_path, "pool")]
        assert (found[0] if found else None) == what, text
    (tmp_path / "pool/one.c").unlink()
    (tmp_path / "pool/options.def").write_text(
        'CA_OPTION(a, "settled")\nCA_RENAMED(lane_r, hits, "settled")\n')
    assert [one for _, one, _ in words.in_room(tmp_path, "pool")] == ["settled"]


# --- tuning numbers -------------------------------------------------------------------------------


def test_each_tuning_number_has_its_experiment():
    """A row of the table names numbers of pool/tuning.h, and links a section of the notes."""
    page = (ROOT / "docs/internals/pool.md").read_text()
    table = page.split("## Tuning numbers")[1].split("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(CA_\w+)`", row)]
    defined = re.findall(r"^#define (CA_\w+) ", (ROOT / "pool/tuning.h").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(defined)
    assert all("(../../tests/replay/NOTES.md#" in row for row in rows)


# --- settings -------------------------------------------------------------------------------------


def settings(page):
    """Each key:value that is shown: alone, in ALLOC_CONF, or behind -o; of a shell's variables a
    number."""
    words = set(code(page))
    for text in [*code(page), *blocks(page, "sh")]:
        words |= set(re.findall(r"(?:ALLOC_CONF(?:=|, value: \")|-o )([^\s\"]+)", text))
    items = {re.sub(r"\$\w+", "4", item)
             for word in words for item in re.split(r",(?=[a-z_]+:)", word)}
    setting = re.compile(rf"(?!help|print)({'|'.join(KEYS)}):[^ ,:{{}}][^ ,]*")
    return set(filter(setting.fullmatch, items))


def test_every_setting_that_is_shown_is_accepted(run, program, tmp_path):
    """All in one: what is wrong is reported item by item, and the last value of a key counts."""
    shown = set().union(*map(settings, PAGES))
    assert len(shown) > 40
    folders = ("/reports", "/var/lib/node_exporter")
    for folder in folders:
        shown = {item.replace(folder, str(tmp_path)) for item in shown}

    off = ("stats", "suppressions", "journal", "metrics", "record", "leak_report", "dump_signal")
    conf = ",".join([*sorted(shown), *(f"{key}:off" for key in off), "limit:inf", "log:warn"])
    assert said(run, program, conf, cwd=tmp_path) == ""
    assert "no_such" in said(run, program, f"no_such:1,{conf}", cwd=tmp_path)


def test_the_readme_names_the_basic_options():
    table = re.search(r"^## Options\n(.*?)^## ", (ROOT / "README.md").read_text(),
                      re.MULTILINE | re.DOTALL)[1]
    keys = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)))
    assert sorted(keys) == sorted(BASIC)


# --- samples --------------------------------------------------------------------------------------

# What each output that is shown is compared with: here, or in test_demo.py.
OF_THE_DEMO = ("report", "json", "pprof", "folded", "diff", "pytorch", "python")


def same(text):
    """A sample without what differs from run to run, and from tree to tree: line numbers of test
    programs, frames of the simulator, and what runs before main."""
    text = re.sub(r"^(cachealloc)\[\d+\]", r"\1[PID]", text, flags=re.MULTILINE)
    text = re.sub(r"0x[0-9a-f]+", "0xN", re.sub(r"(\.c):\d+$", r"\1:N", text, flags=re.MULTILINE))
    text = re.sub(r"^ +(cuda|cu[A-Z])\w+ at .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"(^( +)main\b[^\n]*\n)(?:\2[^\n]+\n)*", r"\1", text, flags=re.MULTILINE)


def oom(run, program):
    result = run([program("oom"), "device"], conf="leak_report:off,oom_report:60s",
                 sim="memory:64M")
    return result.err


def freed_twice(run, program):
    return run([program("misuse"), "twice", "device", 1000], conf="debug:frees").err


def overrun(run, program):
    return run([program("misuse"), "behind", "device", 1000], conf="debug:redzone").err


SAMPLES = {"oom": oom, "free": freed_twice, "redzone": overrun}


def samples(page):
    return re.findall(r"^<!-- (\w+) -->\n```text\n(.*?)```\n<!-- /\1 -->$", page.read_text(),
                      re.MULTILINE | re.DOTALL)


def untested(page):
    """Blocks of no language, and outputs without a name that has a test."""
    of_examples = {"dockerfile", "yaml", "ini", "singularity"}  # tests/test_examples.py
    yield from {language for language, _ in BLOCK.findall(page.read_text())} - {
        "sh", "text", "c", "python", "conf"} - (
            of_examples if page.name == "several-processes.md" else set())
    named = [name for name, _ in samples(page)]
    yield from set(named) - {*OF_THE_DEMO, *SAMPLES, "launcher", "folded_frames", "top"}
    yield from blocks(page, "text")[len(named):]


def test_every_output_that_is_shown_has_a_test():
    assert not wrong(untested)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_output_shown_is_what_a_program_has(run, program, name):
    text, = [text for page in PAGES for other, text in samples(page) if other == name]
    assert same(text) == same(SAMPLES[name](run, program))


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time would have to come first")
def test_what_the_launcher_says_is_shown(run, build, tmp_path):
    # Without a loader named, as what is linked statically.
    (tmp_path / "none").write_bytes((build / "demo/tiles").read_bytes()[:100])
    (tmp_path / "none").chmod(0o755)
    script = ROOT / "tools/cachealloc"
    lines = []
    for shown, command, path in (("./app", "check", build / "demo/tiles"),
                                 ("/sbin/ldconfig", "run", tmp_path / "none")):
        result = run([script, command, "--library", conftest.SHIM, path], preload=False)
        lines += [f"$ cachealloc {command} {shown}",
                  (result.out + result.err).strip().replace(str(path), shown)]
    shown, = [text for page in PAGES for name, text in samples(page) if name == "launcher"]
    assert shown.splitlines() == lines


def test_the_example_in_c_compiles(tmp_path):
    example, = blocks(ROOT / "docs/api.md", "c")
    head, _, body = example.rpartition("\n\n")
    (tmp_path / "example.c").write_text(f"{head}\nint main(void)\n{{\n{body}\n}}\n")
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", f"-I{ROOT}/include", "-c",
                    "-o", tmp_path / "example.o", tmp_path / "example.c"], check=True)


# --- pictures -------------------------------------------------------------------------------------


def stale(source):
    """`make docs` writes the source's checksum into the picture."""
    picture = source.with_suffix(".svg").read_text()
    if hashlib.sha256(source.read_bytes()).hexdigest() not in picture:
        yield "make docs"


def test_the_pictures_are_made_from_their_sources():
    sources = sorted((ROOT / "docs").rglob("*.dot"))
    assert len(sources) >= 2 and not wrong(stale, sources)
