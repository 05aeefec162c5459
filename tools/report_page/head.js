// The head of the page: what the reports cover, their totals, what is missing, the processes.

const sums = Object.fromEntries(Object.keys(SECTIONS).map((title) => [title, total(title)]));

function spread(key) {
    return [...new Set(processes.map((process) => process[key]))];
}

const CAUSES = new Map([["exit", "its end"], ["dump", "request"], ["signal", "a signal"],
    ["oom", "an out of memory"], ["journal", "its sudden end, by its journal"]]);

function covers() {
    const programs = spread("program"), hosts = spread("host");
    const timed = processes.filter((process) => process.start_s !== 0);
    const first = d3.min(timed, (process) => process.start_s);
    const last = d3.max(timed, (process) => process.start_s + endOf(process) / 1e9);
    const some = (names) => names.slice(0, 4).join(", ") + (names.length > 4 ? ", ..." : "");
    const [{rank, pid, cause}] = processes, said = [];
    said.push(` on ${hosts.length > 4 ? `${number(hosts.length)} hosts: ` : ""}${some(hosts)}`);
    if (compared)
        said.push(SIDES.map((name, side) => `${name}: ${ofSide(side).length === 1
            ? ofSide(side)[0].file : many(ofSide(side).length, "process", "processes")}`)
            .join("; "));
    else if (processes.length === 1)
        said.push(`${rank === null ? "" : `rank ${rank}, `}pid ${pid}`);
    else
        said.push(`${number(processes.length)} processes: ` +
            processNames(d3.range(processes.length)));
    if (timed.length && !compared)
        said.push(`${moment(first)}, ${duration((last - first) * 1e9)}`);
    if (processes.length === 1)
        said.push(`written at ${CAUSES.get(cause) || cause}`);
    at("covers").append(make("b", {}, some(programs)), said.join("; "));
}

const ofSide = (side) => processes.filter((process) => process.side === side);

function card(id, title, bytes, ...lines) {
    return make("div", {class: "total", id: `total-${id}`}, make("dt", {}, title),
        make("dd", {title: exact(bytes), "data-bytes": bytes}, make("b", {}, size(bytes)),
            ...lines.filter((line) => line !== null).map((line) => make("small", {}, line))));
}

// What has changed of something, and from what to what.
function changeCard(id, title, before, after) {
    const sign = after > before ? "+" : after < before ? "\u2212" : "";
    const by = Math.abs(after - before);
    return make("div", {class: "total", id: `total-${id}`}, make("dt", {}, title),
        make("dd", {title: exact(after - before), "data-bytes": after - before},
            make("b", {}, `${sign}${size(by)}`),
            make("small", {}, `from ${exact(before)}`), make("small", {}, `to ${exact(after)}`)));
}

function changes() {
    const cards = [];
    for (const title of ["leaked", "suppressed", "destroyed", "allocated"]) {
        const [before, after] = [0, 1].map((side) => total(title, side) || {bytes: 0});
        if (sums[title])
            cards.push(changeCard(title, SECTIONS[title].name, before.bytes, after.bytes));
    }
    const of = (value) => [0, 1].map((side) => d3.sum(ofSide(side), value));
    cards.push(changeCard("peak", "Peak of live memory",
        ...of((process) => peakOf(process).bytes)));
    cards.push(changeCard("pool", "Reserved by the pool at most",
        ...of((process) => process.pool.reserved_peak)));
    at("totals").append(...cards);
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
    const of = (value) => d3.sum(processes, value), peaks = processes.map(peakOf);
    const peak = d3.sum(peaks, (one) => one.bytes);
    const top = peaks.reduce((most, one, index) => one.bytes > peaks[most].bytes ? index : most, 0);
    cards.push(card("peak", "Peak of live memory", peak, exact(peak),
        peaks.every((one) => one.exact) ? null : "at most so much",
        several ? `sum of all; most: ${size(peaks[top].bytes)}, ${processName(processes[top])}`
            : null));
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
        if (!compared || sum.without.length < processes.length)
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
    const heads = ["Rank", "pid", "Host", "Program", "Started", "Lasted", "Cause", "Leaked", "Peak",
        "Pool at most", "File"];
    at("processes").querySelector("summary").textContent =
        processes.length === 1 ? "The process" : `The ${number(processes.length)} processes`;
    at("processes").querySelector("table").append(
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", {scope: "col"}, head)))),
        make("tbody", {}, ...processes.map((process) => make("tr", {}, ...[
            process.rank === null ? "" : process.rank, process.pid, process.host, process.program,
            moment(process.start_s), endOf(process) ? duration(endOf(process)) : "",
            process.cause, process.sections.leaked ? size(process.sections.leaked.bytes) : "",
            `${peakOf(process).exact ? "" : "at most "}${size(peakOf(process).bytes)}`,
            size(process.pool.reserved_peak), process.file,
        ].map((text) => make("td", {}, text))))));
}

function footer() {
    const depths = spread("stack_depth"), unwinders = spread("unwinder");
    at("footer").textContent = `cachealloc ${spread("cachealloc").join(", ")}; ` +
        `call stacks of at most ${depths.join(", ")} frames` +
        (unwinders.join("") ? `, by ${unwinders.join(", ")}` : "");
}
