// The groups as a table: sorted by any column; a stack opens below its row; long ones in parts.

const table = (() => {
    const PART = 100, LISTED = 20;
    const severalProcesses = processes.length > 1;
    const byText = (value) => (a, b) => value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0;
    const byNumber = (value) => (a, b) => value(a) - value(b);
    const bare = (value) => compared && value > 0 ? `+${number(value)}` : number(value);

    let rows = [], whole = 0, groups = null, way = "stack", shown = PART, opened = () => {};
    const open = new Set(), unfolded = new Set();

    function threadsSaid(names, count) {
        const some = names.slice(0, 4), more = count - some.length;
        const rest = `${some.length ? " and " : ""}${number(more)} more`;
        return some.join(", ") + (more > 0 ? rest : "");
    }

    const counted = (column) => groups[column].some((value) => value > 0);
    const devices = (row) => [...distinct(row, "device", groups)];

    // id, title, what is shown, how rows compare; `down`: the largest first when it is chosen;
    // `when`: whether there is such a column now.
    const columns = [
        {id: "bytes", title: compared ? "Grew by" : "Bytes", cell: (row) => bare(row.bytes),
            compare: byNumber((row) => row.bytes), down: true},
        {id: "share", title: "Share", cell: (row) => bar(row), compare: null,
            when: () => !compared},
        {id: "before", title: "Before", cell: (row) => number(row.before),
            compare: byNumber((row) => row.before), down: true, when: () => compared},
        {id: "after", title: "After", cell: (row) => number(row.after),
            compare: byNumber((row) => row.after), down: true, when: () => compared},
        {id: "through", title: "With callees", cell: (row) => bare(row.through),
            compare: byNumber((row) => row.through), down: true, when: () => way !== "stack"},
        {id: "count", title: "Count", cell: (row) => bare(row.count),
            compare: byNumber((row) => row.count), down: true},
        {id: "allocations", title: "Allocated", cell: (row) => bare(row.allocations),
            says: "how many allocations there were in all, freed ones too",
            compare: byNumber((row) => row.allocations), down: true,
            when: () => counted("allocations")},
        {id: "temporaries", title: "Temporary", cell: (row) => bare(row.temporaries),
            says: "how many of these were freed before the next one came",
            compare: byNumber((row) => row.temporaries), down: true,
            when: () => counted("temporaries")},
        {id: "smallest", title: "Smallest", cell: (row) => sized(row, row.smallest),
            compare: byNumber((row) => row.smallest), down: true, when: () => !compared},
        {id: "largest", title: "Largest", cell: (row) => sized(row, row.largest),
            compare: byNumber((row) => row.largest), down: true, when: () => !compared},
        {id: "device", title: "Device", cell: (row) => ranges(devices(row)),
            compare: byNumber((row) => Math.min(...devices(row)))},
        {id: "kind", title: "Kind", cell: kinds, compare: byText(kinds)},
        {id: "threads", title: "Threads",
            cell: (row) => threadsSaid([...threadsOf(row, groups)], threadCount(row, groups)),
            compare: byNumber((row) => threadCount(row, groups)), down: true},
        {id: "ranks", title: "Ranks",
            cell: (row) => processNames([...distinct(row, "process", groups)])
                .replace(/^ranks? /, ""), when: () => severalProcesses && !compared,
            compare: byNumber((row) => distinct(row, "process", groups).size), down: true},
        {id: "where", title: "Where", cell: opener, compare: byText(nameOf)},
    ];
    let sort = columns[0], down = true;

    const present = () => columns.filter((column) => !column.when || column.when());

    function sized(row, value) {
        return row.parts.length ? number(value) : "";
    }

    function nameOf(row) {
        return row.unit === undefined ? siteOf(row.stack) : row.name;
    }

    function served(row) {
        const by = row.unit === undefined ? servedBy(row.stack) : "";
        return by ? make("small", {}, ` ${by}`) : null;
    }

    function kinds(row) {
        return [...distinct(row, "kind", groups)].map((kind) => data.kinds[kind]).sort().join(", ");
    }

    function bar(row) {
        const filled = make("span", {class: "filled"});
        filled.style.width = whole ? `${Math.min(100, 100 * row.bytes / whole)}%` : "0";
        return make("span", {class: "portion"}, make("span", {class: "bar"}, filled),
            share(row.bytes, whole));
    }

    function opener(row) {
        return make("button", {type: "button", class: "opener", "aria-expanded": open.has(row.key),
            onclick: (event) => toggle(row, event.currentTarget)}, nameOf(row), served(row));
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
        opened(rows.filter((row) => open.has(row.key)).flatMap((row) => row.parts), groups);
    }

    // --- below a row ----------------------------------------------------------------------------

    // Its number is its place in the whole stack.
    function frameLine(frame, index) {
        const [text, module, build, offset, places, language] = data.frames[frame];
        const id = build ? `, build id ${build}` : "";
        const where = module !== null ? `${module}${offset === null ? "" : `+${offset}`}${id}`
            : language === "python" && places.length ? `Python, ${places[0][1] || ""}` : "";
        return make("li", {value: index + 1}, make("code", {}, text), " ",
            make("small", {}, where));
    }

    // Runs of frames, each [first, end, folded].
    function runsOf(frames) {
        const runs = [];
        frames.forEach((frame, index) => {
            const inner = isInner(frame), last = runs[runs.length - 1];
            if (last && inner && last[2])
                last[1] = index + 1;
            else
                runs.push([index, index + 1, inner]);
        });
        return runs;
    }

    function stack(number_) {
        const frames = data.stacks[number_];
        if (!frames.length)
            return make("p", {class: "none"}, NO_STACK);
        const list = make("ol", {class: "stack"});
        for (const [first, end, inner] of runsOf(frames)) {
            const lines = frames.slice(first, end).map((frame, index) =>
                frameLine(frame, first + index));
            const key = `${number_} ${first}`;
            if (!inner || end - first < 2 || unfolded.has(key)) {
                list.append(...lines);
                continue;
            }
            const libraries = new Set(frames.slice(first, end).map((frame) =>
                base(data.frames[frame][1] || "a framework")));
            const line = make("li", {class: "folded", value: first + 1}, make("button", {
                type: "button", onclick: () => {
                    unfolded.add(key);
                    line.replaceWith(...lines);
                }}, `${number(end - first)} frames inside ${[...libraries].join(", ")}`));
            list.append(line);
        }
        return list;
    }

    function when(part) {
        const first = groups.first_ns[part], last = groups.last_ns[part];
        if (!last)
            return "";
        return first === last ? duration(first) : `${duration(first)} to ${duration(last)}`;
    }

    // What each process, or device, has of a row.
    const partColumns = [
        ...severalProcesses ? [["Process", (part) => processName(processes[groups.process[part]])]]
            : [],
        ["Device", (part) => groups.device[part]],
        ["Bytes", (part) => number(groups.bytes[part])],
        ["Count", (part) => number(groups.count[part])],
        ["Allocated after", when],
        ["Stream", (part) => data.streams[groups.stream[part]] || ""],
        ["Threads", (part) => threadsSaid(data.threads[groups.threads[part]],
            groups.thread_count[part])],
    ];

    function lines(columnsOf, all, say) {
        const rest = all.length - PART;
        return [make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Parts"},
            make("table", {class: "parts"},
                make("thead", {}, make("tr", {}, ...columnsOf.map(([title]) =>
                    make("th", {scope: "col"}, title)))),
                make("tbody", {}, ...all.slice(0, PART).map((one) => make("tr", {},
                    ...columnsOf.map(([, cell]) => make("td", {}, cell(one)))))))),
        rest > 0 ? make("p", {}, `and ${many(rest, say)}, not shown`) : null];
    }

    // The stacks that go through a function, a line or a file.
    function stacksThrough(row) {
        const all = row.rows.slice().sort((a, b) => Math.abs(b.bytes) - Math.abs(a.bytes));
        const rest = all.length - LISTED;
        return [make("ul", {class: "through"}, ...all.slice(0, LISTED).map((one) => make("li", {},
            make("details", {ontoggle: (event) => {
                if (event.currentTarget.open && !event.currentTarget.querySelector(".stack, .none"))
                    event.currentTarget.append(stack(one.stack));
            }}, make("summary", {}, `${compared && one.bytes > 0 ? "+" : ""}${exact(one.bytes)}: `,
                make("code", {}, siteOf(one.stack)), " ",
                make("small", {}, servedBy(one.stack))))))),
        rest > 0 ? make("p", {}, `and ${many(rest, "more call stack")}, not shown`) : null];
    }

    function details(row) {
        const inside = row.unit === undefined
            ? [stack(row.stack), ...lines(partColumns, row.parts, "more part")]
            : stacksThrough(row);
        return make("tr", {class: "details"}, make("td", {colspan: present().length},
            ...inside.filter(Boolean)));
    }

    // --- the table ------------------------------------------------------------------------------

    function head() {
        at("table").tHead.replaceChildren(make("tr", {}, ...present().map((column) => {
            const sorted = column === sort ? (down ? "descending" : "ascending") : null;
            const title = !column.compare ? column.title
                : make("button", {type: "button", title: column.says,
                    onclick: () => choose(column)}, column.title);
            return make("th", {scope: "col", class: column.id, "aria-sort": sorted}, title);
        })));
        at("sort").replaceChildren(...present().filter((column) => column.compare)
            .map((column) => make("option", {value: column.id}, column.title)));
        at("sort").value = sort.id;
        at("direction").textContent = down ? "\u25bc" : "\u25b2";
    }

    function body() {
        const list = [], here = present();
        for (const row of rows.slice(0, shown)) {
            list.push(make("tr", {class: "group"}, ...here.map((column) =>
                make("td", {class: column.id, "data-title": column.title}, column.cell(row)))));
            if (open.has(row.key))
                list.push(details(row));
        }
        at("table").tBodies[0].replaceChildren(...list);
        const rest = rows.length - shown;
        at("more").hidden = rest <= 0;
        at("more").textContent = `Show ${number(Math.min(rest, 2 * PART))} of ${number(rest)} more`;
    }

    // With as many columns as fit.
    function fit() {
        const card = at("groups"), width = at("table-says").clientWidth;
        for (const set of [[], ["few"], ["few", "cards"]]) {
            card.classList.remove("few", "cards");
            card.classList.add(...set);
            if ((width > 700 || set.length === 2) && at("table").offsetWidth <= width)
                return;
        }
    }

    function order() {
        const sign = down ? -1 : 1;
        // The same order always: by bytes where the column is the same.
        rows.sort((a, b) => sign * sort.compare(a, b) || b.bytes - a.bytes ||
            b.through - a.through || (a.stack || a.unit) - (b.stack || b.unit));
        head();
        body();
        fit();
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
            at("sort").addEventListener("change", () =>
                choose(columns.find((column) => column.id === at("sort").value)));
            at("direction").addEventListener("click", () => choose(sort));
            at("more").addEventListener("click", () => {
                shown += 2 * PART;
                body();
                fit();
            });
        },
        fit,
        // all: rows of a section; by: what they are; of: the bytes that shares are of
        show(all, section, by, of) {
            groups = data.groups[section];
            whole = of;
            shown = PART;
            if (way !== by)
                open.clear();
            way = by;
            rows = all.slice();
            if (!present().includes(sort))
                [sort, down] = [columns[0], true];
            order();
            if (open.size)
                announceOpened();
            else
                opened([], groups);
        },
    };
})();
