// The groups as a table: sorted by any column; a stack opens below its row; long ones in parts.

const table = (() => {
    const PART = 100;
    const severalProcesses = processes.length > 1;
    const byText = (value) => (a, b) => value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0;
    const byNumber = (value) => (a, b) => value(a) - value(b);

    function threads(row) {
        const names = [...row.threads].slice(0, 4), more = row.threadCount - names.length;
        const rest = `${names.length ? " and " : ""}${number(more)} more`;
        return names.join(", ") + (more > 0 ? rest : "");
    }

    // id, title, what is shown, how rows compare; `down`: the largest first when it is chosen.
    const columns = [
        {id: "bytes", title: "Bytes", cell: (row) => exact(row.bytes).replace(/ bytes?$/, ""),
            compare: byNumber((row) => row.bytes), down: true},
        {id: "share", title: "Share", cell: (row) => bar(row), compare: null},
        {id: "count", title: "Count", cell: (row) => number(row.count),
            compare: byNumber((row) => row.count), down: true},
        {id: "smallest", title: "Smallest", cell: (row) => number(row.smallest),
            compare: byNumber((row) => row.smallest), down: true},
        {id: "largest", title: "Largest", cell: (row) => number(row.largest),
            compare: byNumber((row) => row.largest), down: true},
        {id: "device", title: "Device", cell: (row) => ranges(row.devices),
            compare: byNumber((row) => Math.min(...row.devices))},
        {id: "kind", title: "Kind", cell: (row) => row.kind, compare: byText((row) => row.kind)},
        {id: "threads", title: "Threads", cell: threads,
            compare: byNumber((row) => row.threadCount), down: true},
        ...severalProcesses ? [{id: "ranks", title: "Ranks",
            cell: (row) => processNames([...row.processes]).replace(/^ranks? /, ""),
            compare: byNumber((row) => row.processes.size), down: true}] : [],
        {id: "where", title: "Where", cell: (row) => opener(row),
            compare: byText((row) => siteOf(row.stack))},
    ];
    let rows = [], whole = 0, sort = columns[0], down = true, shown = PART;
    let opened = () => {};
    const open = new Set();

    function bar(row) {
        const filled = make("span", {class: "filled"});
        filled.style.width = whole ? `${100 * row.bytes / whole}%` : "0";
        return make("span", {class: "portion"}, make("span", {class: "bar"}, filled),
            share(row.bytes, whole));
    }

    function opener(row) {
        return make("button", {type: "button", class: "opener", "aria-expanded": open.has(row.key),
            onclick: (event) => toggle(row, event.currentTarget)}, siteOf(row.stack));
    }

    function toggle(row, button) {
        const line = button.closest("tr");
        if (open.delete(row.key)) {
            line.nextElementSibling.remove();
        } else {
            open.add(row.key);
            line.after(details(row));
        }
        button.setAttribute("aria-expanded", open.has(row.key));
        announceOpened();
    }

    function announceOpened() {
        opened(rows.filter((row) => open.has(row.key)).flatMap((row) => row.parts));
    }

    function stack(row) {
        const frames = data.stacks[row.stack];
        if (!frames.length)
            return make("p", {class: "none"}, NO_STACK);
        return make("ol", {class: "stack"}, ...frames.map((frame) => {
            const [text, module, build, offset] = data.frames[frame];
            const id = build ? `, build id ${build}` : "";
            const where = module === null ? "" : `${module}+${offset}${id}`;
            return make("li", {}, make("code", {}, text), " ", make("small", {}, where));
        }));
    }

    function when(group) {
        const first = group[GROUP.first], last = group[GROUP.last];
        if (!last)
            return "";
        return first === last ? duration(first) : `${duration(first)} to ${duration(last)}`;
    }

    // What each process, or device, has of a row.
    const partColumns = [
        ...severalProcesses
            ? [["Process", (group) => processName(processes[group[GROUP.process]])]] : [],
        ["Device", (group) => group[GROUP.device]],
        ["Bytes", (group) => number(group[GROUP.bytes])],
        ["Count", (group) => number(group[GROUP.count])],
        ["Allocated after", when],
        ["Stream", (group) => group[GROUP.stream] || ""],
        ["Threads", (group) => threads({threads: new Set(group[GROUP.threads]),
            threadCount: group[GROUP.threadCount]})],
    ];

    function details(row) {
        const heads = partColumns.map(([title]) => make("th", {scope: "col"}, title));
        const lines = row.parts.slice(0, PART).map((group) => make("tr", {},
            ...partColumns.map(([, cell]) => make("td", {}, cell(group)))));
        const rest = row.parts.length - PART;
        return make("tr", {class: "details"}, make("td", {colspan: columns.length}, stack(row),
            make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Parts"},
                make("table", {class: "parts"}, make("thead", {}, make("tr", {}, ...heads)),
                    make("tbody", {}, ...lines))),
            rest > 0 ? make("p", {}, `and ${many(rest, "more part")}, not shown`) : null));
    }

    function head() {
        at("table").tHead.replaceChildren(make("tr", {}, ...columns.map((column) => {
            const sorted = column === sort ? (down ? "descending" : "ascending") : null;
            const title = !column.compare ? column.title
                : make("button", {type: "button", onclick: () => choose(column)}, column.title);
            return make("th", {scope: "col", class: column.id, "aria-sort": sorted}, title);
        })));
        at("sort").value = sort.id;
        at("direction").textContent = down ? "\u25bc" : "\u25b2";
    }

    function body() {
        const lines = [];
        for (const row of rows.slice(0, shown)) {
            lines.push(make("tr", {class: "group"}, ...columns.map((column) =>
                make("td", {class: column.id, "data-title": column.title}, column.cell(row)))));
            if (open.has(row.key))
                lines.push(details(row));
        }
        at("table").tBodies[0].replaceChildren(...lines);
        const rest = rows.length - shown;
        at("more").hidden = rest <= 0;
        at("more").textContent =
            `Show ${number(Math.min(rest, 2 * PART))} of ${many(rest, "more group")}`;
    }

    function order() {
        const sign = down ? -1 : 1;
        // The same order always: by bytes where the column is the same.
        rows.sort((a, b) => sign * sort.compare(a, b) || b.bytes - a.bytes || a.stack - b.stack);
        head();
        body();
    }

    function choose(column) {
        down = column === sort ? !down : Boolean(column.down);
        sort = column;
        const held = at("table").tHead.contains(document.activeElement);
        order();
        if (held)
            at("table").querySelector(`th.${column.id} button`).focus();
    }

    return {
        // whenOpened gets the parts of the rows that are open.
        listen(whenOpened) {
            opened = whenOpened;
            at("sort").append(...columns.filter((column) => column.compare)
                .map((column) => make("option", {value: column.id}, column.title)));
            at("sort").addEventListener("change", () =>
                choose(columns.find((column) => column.id === at("sort").value)));
            at("direction").addEventListener("click", () => choose(sort));
            at("more").addEventListener("click", () => {
                shown += 2 * PART;
                body();
            });
        },
        // of: the bytes that shares are of
        show(chosen, of) {
            rows = chosen.slice();
            whole = of;
            shown = PART;
            order();
            announceOpened();
        },
    };
})();
