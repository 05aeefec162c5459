// The reader's choices, and what each changes.

const choice = {section: "leaked", process: "", device: "", kind: "", least: 0, way: "stack"};

function tabs() {
    const sizeOf = (title) => {
        if (!compared)
            return size(sums[title].bytes);
        const [before, after] = [0, 1].map((side) => (total(title, side) || {bytes: 0}).bytes);
        const sign = after < before ? "\u2212" : after > before ? "+" : "";
        return `${sign}${size(Math.abs(after - before))}`;
    };
    at("sections").append(...Object.entries(SECTIONS).filter(([title]) => sums[title]).map(
        ([title, {name, title: says}]) => make("label", {title: says},
            make("input", {type: "radio", name: "section", value: title,
                onchange: () => chooseSection(title)}),
            make("span", {}, `${name} `, make("small", {}, sizeOf(title))))));
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
    const all = (column) => [...new Set(groups[column])];
    fill("process", "all", compared ? [] : d3.range(processes.length).map(String), (index) => {
        const process = processes[index];
        const name = processName(process);
        return process.rank === null ? name : `${name} (pid ${process.pid})`;
    });
    fill("device", "all", all("device").sort((a, b) => a - b).map(String), String);
    fill("kind", "all", all("kind").map((kind) => data.kinds[kind]).sort(), String);
}

function fillLists() {
    const counted = (column) => Object.values(data.groups).some((groups) =>
        groups[column].some((value) => value > 0));
    const weights = compared ? {grown: "what grew", shrunk: "what shrank"}
        : {bytes: "bytes", count: "allocations",
            ...counted("allocations") ? {allocations: "allocations, freed ones too"} : {},
            ...counted("temporaries") ? {temporaries: "temporaries"} : {}};
    at("weight").replaceChildren(...Object.entries(weights)
        .map(([value, name]) => make("option", {value}, name)));
    at("fold").closest("label").hidden = !anyFolded;
    at("fold").checked = folded;
}

// --- and what they change ------------------------------------------------------------------------

let rows = [], query = "", hits = null;

function updateTable() {
    const {section, way} = choice, zoomed = flame.zoomed(), groups = data.groups[section];
    const through = rows.filter((row) => flame.through(row));
    const all = way === "stack" ? through : unitRows(way, through);
    const chosen = hits ? all.filter((row) => isFound(row, way, hits, groups)) : all;
    const listed = d3.sum(chosen, (row) => row.bytes), sum = sums[section];
    const whole = compared ? d3.sum(rows, (row) => row.bytes) : sum ? sum.bytes : 0;
    table.show(chosen, section, way, whole);
    const hidden = sum ? sum.beyondBytes + sum.smallBytes : 0;
    const grown = !rows.length ? "nothing grew, nothing shrank"
        : `${listed < 0 ? "shrank" : "grew"} by ${exact(Math.abs(listed))} in all`;
    at("table-says").textContent = `${many(chosen.length, way === "stack" ? "group" : way)}, ` +
        (compared ? grown : `${exact(listed)} of ${exact(whole)} in the reports`) +
        (zoomed === null ? "" : `; through ${zoomed}`) +
        (hits ? `; with \u201c${query}\u201d` : "") +
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
        timer = setTimeout(change, 60);
    };
}

// What no regular expression is changes nothing: the reader is still at it.
function search() {
    const field = at("query"), asked = field.value.trim();
    let wrong = "";
    try {
        hits = asked === "" ? null : found(matcher(asked, at("regex").checked));
        query = asked;
    } catch (error) {
        wrong = `no regular expression: ${error.message.replace(/^.*: /, "")}`;
    }
    field.setCustomValidity(wrong);
    at("query-wrong").textContent = wrong;
    at("query-wrong").hidden = wrong === "";
    if (wrong)
        return;
    flame.search(hits);
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

function showTime() {
    timeline.show(choice.process);
    phases.show(choice.process === "" ? d3.range(processes.length) : [Number(choice.process)]);
}

function listen() {
    for (const id of ["process", "device", "kind"]) {
        at(id).addEventListener("change", () => {
            choice[id] = at(id).value;
            if (id === "process")
                showTime();
            update();
        });
    }
    at("query").addEventListener("input", soon(search));
    at("regex").addEventListener("change", search);
    at("least").addEventListener("change", chooseLeast);
    at("way").addEventListener("change", () => {
        choice.way = at("way").value;
        updateTable();
    });
    at("fold").addEventListener("change", () => {
        folded = at("fold").checked;
        flame.reset();
        search();
        timeline.update();
        update();
    });
    at("order").addEventListener("change", () => { flame.reset(); update(); });
    at("weight").addEventListener("change", update);
    at("clear").addEventListener("click", () => {
        Object.assign(choice, {process: "", device: "", kind: "", least: 0});
        at("query").value = at("least").value = "";
        fillFilters();
        flame.reset();
        search();
        showTime();
        update();
    });
    document.addEventListener("keydown", (event) => {
        if (event.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
            event.preventDefault();
            at("query").focus();
        }
    });
    let width = at("flame").clientWidth;
    new ResizeObserver(() => {
        if (at("flame").clientWidth !== width) {
            width = at("flame").clientWidth;
            flame.draw();
            timeline.draw();
            table.fit();
        }
    }).observe(at("flame"));
}

covers();
if (compared)
    changes();
else
    totals();
notes();
listProcesses();
footer();
tabs();
fillFilters();
fillLists();
timeline.listen();
flame.listen(updateTable);
table.listen(timeline.span);
listen();
showTime();
update();
document.body.dataset.ready = "yes";
