// The head of the page, the reader's choices, and what each changes.

const choice = {section: "leaked", process: "", device: "", kind: "", least: 0, query: ""};
const sums = Object.fromEntries(Object.keys(SECTIONS).map((title) => [title, total(title)]));

// --- the head ------------------------------------------------------------------------------------

function spread(key) {
    return [...new Set(processes.map((process) => process[key]))];
}

const CAUSES = new Map([["exit", "its end"], ["dump", "request"], ["signal", "a signal"],
    ["oom", "an out of memory"], ["journal", "its sudden end, by its journal"]]);

function covers() {
    const programs = spread("program"), hosts = spread("host");
    const timed = processes.filter((process) => process.start_s !== 0);
    const first = d3.min(timed, (process) => process.start_s);
    const last = d3.max(timed, (process) => process.start_s + process.now_ns / 1e9);
    const some = (names) => names.slice(0, 4).join(", ") + (names.length > 4 ? ", ..." : "");
    const [{rank, pid, cause}] = processes, said = [];
    said.push(` on ${hosts.length > 4 ? `${number(hosts.length)} hosts: ` : ""}${some(hosts)}`);
    if (processes.length === 1)
        said.push(`${rank === null ? "" : `rank ${rank}, `}pid ${pid}`);
    else
        said.push(`${number(processes.length)} processes: ` +
            processNames(d3.range(processes.length)));
    if (timed.length)
        said.push(`${moment(first)}, ${duration((last - first) * 1e9)}`);
    if (processes.length === 1)
        said.push(`written at ${CAUSES.get(cause) || cause}`);
    at("covers").append(make("b", {}, some(programs)), said.join("; "));
}

function card(id, title, bytes, ...lines) {
    return make("div", {class: "total", id: `total-${id}`}, make("dt", {}, title),
        make("dd", {title: exact(bytes), "data-bytes": bytes}, make("b", {}, size(bytes)),
            ...lines.map((line) => make("small", {}, line))));
}

function totals() {
    const several = processes.length > 1, cards = [];
    for (const title of ["leaked", "suppressed", "destroyed"]) {
        const sum = sums[title];
        if (sum) {
            cards.push(card(title, SECTIONS[title].name, sum.bytes, exact(sum.bytes),
                `${many(sum.count, "allocation")}, ` +
                `${sum.atLeast ? "at least " : ""}${many(sum.stacks, "stack")}`));
        }
    }
    const of = (value) => d3.sum(processes, value), peak = of((process) => process.peak_bytes);
    const top = processes.reduce((a, b) => b.peak_bytes > a.peak_bytes ? b : a);
    cards.push(card("peak", "Peak of live memory", peak, exact(peak), several
        ? `at most; sum of all; most: ${size(top.peak_bytes)}, ${processName(top)}`
        : "at most so much at a time"));
    const pool = (key) => of((process) => process.pool[key]), said = (key) => size(pool(key));
    cards.push(card("pool", "Pool", pool("reserved"), `reserved; ${said("reserved_peak")} at most`,
        `in use ${said("live_blocks")}, free ${said("ready")}, in flight ${said("pending")}`,
        `pinned ${said("pinned_reserved")}`));
    at("totals").append(...cards);
}

function notes() {
    const said = [];
    const where = (test) => d3.range(processes.length).filter((index) => test(processes[index]));
    const note = (positions, text) => {
        if (positions.length)
            said.push(processes.length === 1 ? text : `${text} (${processNames(positions)})`);
    };
    const unlisted = (name, groups, bytes, why) => {
        if (groups)
            said.push(`${name}: ${many(groups, "group")}, ${exact(bytes)}, not listed: ${why}`);
    };
    for (const [title, {name}] of Object.entries(SECTIONS)) {
        const sum = sums[title];
        if (!sum)
            continue;
        unlisted(name, sum.beyond, sum.beyondBytes, "beyond leak_max");
        unlisted(name, sum.small, sum.smallBytes, "below leak_min");
        note(sum.incomplete, `${name}: incomplete, some could not be read`);
        note(sum.without, `${name}: not in the report`);
    }
    note(where((process) => process.shards_busy),
        "Tables that were in use when a signal came were left out");
    note(where(({pool}) => pool.incomplete), "Pool: incomplete, part of it could not be read");
    note(where(({cause}) => cause !== "exit" && cause !== "journal"),
        "The process was still running: what is called leaked may be freed later");
    note(where(({cause}) => cause === "journal"),
        "From the journal of a process that was killed: what is called leaked was live then, " +
        "and nothing is known of times, the pool and who held the peak");
    if (data.earlier)
        said.push(`${many(data.earlier, "earlier report")} left out: ` +
            "of each process the latest counts");
    for (const [file, wrong] of data.unreadable)
        said.push(`${file}: of no use: ${wrong}`);
    at("notes").hidden = !said.length;
    at("notes").querySelector("ul").append(...said.map((text) => make("li", {}, text)));
}

function listProcesses() {
    const heads = ["Rank", "pid", "Host", "Program", "Started", "Lasted", "Cause", "Leaked",
        "Peak at most", "Pool at most", "File"];
    at("processes").querySelector("summary").textContent =
        processes.length === 1 ? "The process" : `The ${number(processes.length)} processes`;
    at("processes").querySelector("table").append(
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", {scope: "col"}, head)))),
        make("tbody", {}, ...processes.map((process) => make("tr", {}, ...[
            process.rank === null ? "" : process.rank, process.pid, process.host, process.program,
            moment(process.start_s), process.now_ns ? duration(process.now_ns) : "", process.cause,
            process.sections.leaked ? size(process.sections.leaked.bytes) : "",
            size(process.peak_bytes), size(process.pool.reserved_peak), process.file,
        ].map((text) => make("td", {}, text))))));
}

function footer() {
    const depths = spread("stack_depth"), unwinders = spread("unwinder");
    at("footer").textContent = `cachealloc ${spread("cachealloc").join(", ")}; ` +
        `call stacks of at most ${depths.join(", ")} frames` +
        (unwinders.join("") ? `, by ${unwinders.join(", ")}` : "");
}

// --- choices -------------------------------------------------------------------------------------

function tabs() {
    at("sections").append(...Object.entries(SECTIONS).filter(([title]) => sums[title]).map(
        ([title, {name, title: says}]) => make("label", {title: says},
            make("input", {type: "radio", name: "section", value: title,
                onchange: () => chooseSection(title)}),
            make("span", {}, `${name} `, make("small", {}, size(sums[title].bytes))))));
    const first = at("sections").querySelector("input");
    if (first) {
        const leaks = sums.leaked && sums.leaked.bytes > 0;
        const start = leaks || !sums.peak ? first : at("sections").querySelector("[value=peak]");
        start.checked = true;
        choice.section = start.value;
    }
}

function chooseSection(title) {
    choice.section = title;
    fillFilters();
    flame.reset();
    update();
}

// A list of what there is; hidden where there is nothing to choose.
function fill(id, all, values, name) {
    const list = at(id);
    if (!values.includes(choice[id]))
        choice[id] = "";
    list.replaceChildren(make("option", {value: ""}, all),
        ...values.map((value) => make("option", {value}, name(value))));
    list.value = choice[id];
    list.closest("label").hidden = values.length < 2;
}

function fillFilters() {
    const groups = data.groups[choice.section];
    const distinct = (column) => [...new Set(groups.map((group) => group[column]))];
    fill("process", "all", processes.map((_, index) => String(index)), (index) => {
        const process = processes[index];
        const name = processName(process);
        return process.rank === null ? name : `${name} (pid ${process.pid})`;
    });
    fill("device", "all", distinct(GROUP.device).sort((a, b) => a - b).map(String), String);
    fill("kind", "all", distinct(GROUP.kind).sort(), String);
}

// --- and what they change ------------------------------------------------------------------------

let rows = [];

function updateTable() {
    const zoomed = flame.zoomed();
    const chosen = rows.filter((row) => flame.through(row) && matches(row, choice.query));
    const listed = d3.sum(chosen, (row) => row.bytes), sum = sums[choice.section];
    const all = sum ? sum.bytes : 0;
    table.show(chosen, all);
    const hidden = sum ? sum.beyondBytes + sum.smallBytes : 0;
    at("table-says").textContent =
        `${many(chosen.length, "group")}, ${exact(listed)} of ${exact(all)} in the reports` +
        (zoomed === null ? "" : `; through ${zoomed}`) +
        (choice.query ? `; with \u201c${choice.query}\u201d` : "") +
        (hidden ? `; ${exact(hidden)} are in groups that the reports do not list` : "");
    at("table").dataset.bytes = listed;
    at("table").dataset.groups = chosen.length;
}

function update() {
    rows = groupsOf(choice);
    flame.show(rows, at("order").value, at("weight").value);
    updateTable();
    const {name, title} = SECTIONS[choice.section];
    at("choose-says").textContent = `${name}: ${title}`;
}

function soon(change) {
    let timer = 0;
    return () => {
        clearTimeout(timer);
        timer = setTimeout(change, 120);
    };
}

function search() {
    choice.query = at("query").value.trim().toLowerCase();
    flame.search(choice.query);
    updateTable();
}

function chooseLeast() {
    const least = parseSize(at("least").value);
    at("least").setCustomValidity(Number.isNaN(least) ? "a size: 4096, 64K, 1.5M" : "");
    at("least").reportValidity();
    if (!Number.isNaN(least)) {
        choice.least = least;
        update();
    }
}

function listen() {
    for (const id of ["process", "device", "kind"]) {
        at(id).addEventListener("change", () => {
            choice[id] = at(id).value;
            if (id === "process")
                timeline.show(choice.process);
            update();
        });
    }
    at("query").addEventListener("input", soon(search));
    at("least").addEventListener("change", chooseLeast);
    at("order").addEventListener("change", () => { flame.reset(); update(); });
    at("weight").addEventListener("change", update);
    at("clear").addEventListener("click", () => {
        Object.assign(choice, {process: "", device: "", kind: "", least: 0, query: ""});
        at("query").value = at("least").value = "";
        fillFilters();
        flame.search("");
        flame.reset();
        timeline.show("");
        update();
    });
    document.addEventListener("keydown", (event) => {
        if (event.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
            event.preventDefault();
            at("query").focus();
        }
    });
    let width = 0;
    new ResizeObserver(() => {
        if (at("flame").clientWidth !== width) {
            width = at("flame").clientWidth;
            flame.draw();
            timeline.draw();
        }
    }).observe(at("flame"));
}

covers();
totals();
notes();
listProcesses();
footer();
tabs();
fillFilters();
timeline.listen();
flame.listen(updateTable);
table.listen(timeline.span);
listen();
timeline.show("");
update();
document.body.dataset.ready = "yes";
