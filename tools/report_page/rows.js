// The groups that the reader asks for, as rows: one for each call stack and kind of memory, or for
// each function, line or file.

const SIZES = ["bytes", "count", "allocations", "temporaries"];

function newRow(key) {
    return {key, bytes: 0, count: 0, allocations: 0, temporaries: 0, smallest: Infinity, largest: 0,
        before: 0, after: 0, through: 0, throughCount: 0, parts: []};
}

// Groups of a section that the filters let through: the same stack and kind is one, whatever
// process or device it is of. least counts for the sum, not for the parts. Compared reports: what
// came is more, what went is less, and what is as it was is left out.
function groupsOf({section, process, device, kind, least}) {
    const merged = new Map(), groups = data.groups[section], kinds = data.kinds.length;
    for (let i = 0; i < groups.bytes.length; i++) {
        if (process !== "" && groups.process[i] !== Number(process) ||
            device !== "" && groups.device[i] !== Number(device) ||
            kind !== "" && data.kinds[groups.kind[i]] !== kind)
            continue;
        const key = groups.stack[i] * kinds + groups.kind[i];
        let row = merged.get(key);
        if (!row) {
            row = newRow(key);
            row.stack = groups.stack[i];
            merged.set(key, row);
        }
        const side = processes[groups.process[i]].side, sign = compared && side === 0 ? -1 : 1;
        for (const column of SIZES)
            row[column] += sign * groups[column][i];
        row[SIDES[side]] += groups.bytes[i];
        row.smallest = Math.min(row.smallest, groups.smallest[i]);
        row.largest = Math.max(row.largest, groups.largest[i]);
        row.parts.push(i);
    }
    const rows = [...merged.values()].filter((row) => Math.abs(row.bytes) >= least &&
        !(compared && row.bytes === 0 && row.count === 0));
    for (const row of rows) {
        row.through = row.bytes;
        row.throughCount = row.count;
    }
    return rows;
}

// The same memory by function, line or file: bytes is what was allocated right there, through what
// was allocated there or in what it called.
function unitRows(way, rows) {
    const merged = new Map(), {names} = unitsBy(way);
    const rowOf = (unit) => {
        let one = merged.get(unit);
        if (!one) {
            one = newRow(`${way} ${unit}`);
            Object.assign(one, {unit, name: unit < 0 ? NO_STACK : names[unit], rows: []});
            merged.set(unit, one);
        }
        return one;
    };
    for (const row of rows) {
        const path = pathOf(way, row.stack);
        for (const unit of path.length ? new Set(path) : [-1]) {
            const one = rowOf(unit);
            one.through += row.bytes;
            one.throughCount += row.count;
            one.rows.push(row);
        }
        const site = rowOf(path.length ? siteUnit(way, row.stack) : -1);
        for (const column of [...SIZES, "before", "after"])
            site[column] += row[column];
        site.smallest = Math.min(site.smallest, row.smallest);
        site.largest = Math.max(site.largest, row.largest);
        site.parts.push(...row.parts);
    }
    return [...merged.values()];
}

// What is asked of a few rows alone, those that are seen or opened. `groups` are the section's.

// A unit's own parts, or where nothing was allocated right there those of what it called.
function partsOf(row) {
    if (row.parts.length || !row.rows)
        return row.parts;
    row.below = row.below || row.rows.flatMap((one) => one.parts);
    return row.below;
}

function distinct(row, column, groups) {
    row.distinct = row.distinct || {};
    row.distinct[column] = row.distinct[column] ||
        new Set(partsOf(row).map((part) => groups[column][part]));
    return row.distinct[column];
}

function threadsOf(row, groups) {
    row.threads = row.threads || new Set([...distinct(row, "threads", groups)].flatMap(
        (list) => data.threads[list]));
    return row.threads;
}

// Of each process the most that one of its groups names: the same thread may be in all of them.
function threadCount(row, groups) {
    if (row.threadCount === undefined) {
        const most = new Map();
        for (const part of partsOf(row)) {
            const process = groups.process[part];
            most.set(process, Math.max(most.get(process) || 0, groups.thread_count[part]));
        }
        row.threadCount = Math.max(threadsOf(row, groups).size, d3.sum([...most.values()]));
    }
    return row.threadCount;
}

// Whether a search has found a row; `hits` are those of found().
function isFound(row, way, hits, groups) {
    const itself = row.unit === undefined ? hits.stacks[row.stack]
        : row.unit >= 0 && hits.units(way)[row.unit];
    return itself || row.parts.some((part) => hits.threads[groups.threads[part]]);
}
