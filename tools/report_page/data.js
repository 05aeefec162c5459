// What the reports say, and the groups that the reader asks for.
//
// data.processes[i]: what report i says, less its groups; sections[title] has its totals
// data.frames[f]: [text, module, build id, offset, [[function, file, line], ...innermost first]]
// data.stacks[s]: frames, innermost first; none where no call stack was recorded
// data.groups[title]: one entry a group of a report, see GROUP

const GROUP = {process: 0, stack: 1, device: 2, kind: 3, bytes: 4, count: 5, smallest: 6,
    largest: 7, first: 8, last: 9, stream: 10, threads: 11, threadCount: 12};
const SECTIONS = {
    leaked: {name: "Leaked", title: "what was never freed"},
    peak: {name: "At the peak", title: "what was alive when the most bytes were"},
    destroyed: {name: "Destroyed", title: "what was alive when its context was destroyed"},
    suppressed: {name: "Suppressed", title: "leaks that suppressions name, not counted as leaked"},
};
const NO_STACK = "(no call stack)";

// A name that turns the direction of what is around it, or breaks its line, would lie about it.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const data = JSON.parse(at("data").textContent, (key, value) =>
    typeof value === "string" ? value.replace(UNSEEN, "\ufffd") : value);
const processes = data.processes;

function processName(process) {
    return process.rank === null ? `pid ${process.pid}` : `rank ${process.rank}`;
}

// Names of processes, by their positions; ranks that are numbers as ranges.
function processNames(positions) {
    const ranks = [], others = [];
    for (const position of positions) {
        const {rank} = processes[position];
        if (rank !== null && /^\d{1,15}$/.test(rank))
            ranks.push(Number(rank));
        else
            others.push(processName(processes[position]));
    }
    return (ranks.length ? [`${ranks.length > 1 ? "ranks" : "rank"} ${ranges(ranks)}`] : [])
        .concat(others).join(", ");
}

// Sums of one section over all processes that have it, or null where none has.
function total(title) {
    const sum = {count: 0, bytes: 0, listed: 0, beyond: 0, beyondBytes: 0, small: 0, smallBytes: 0,
        stacks: 0, atLeast: false, incomplete: [], without: []};
    let any = false;
    processes.forEach((process, position) => {
        const section = process.sections[title];
        if (!section) {
            sum.without.push(position);
            return;
        }
        any = true;
        sum.count += section.count;
        sum.bytes += section.bytes;
        sum.stacks = Math.max(sum.stacks, section.stacks);
        sum.beyond += section.omitted.leak_max.groups;
        sum.beyondBytes += section.omitted.leak_max.bytes;
        sum.small += section.omitted.leak_min.groups;
        sum.smallBytes += section.omitted.leak_min.bytes;
        if (section.incomplete)
            sum.incomplete.push(position);
    });
    // Which of the stacks that are not listed are the same is not known.
    if (processes.length > 1) {
        const listed = new Set(data.groups[title].map((group) => group[GROUP.stack]));
        sum.stacks = Math.max(sum.stacks, listed.size);
        sum.atLeast = sum.beyond + sum.small > 0;
    }
    sum.listed = d3.sum(data.groups[title], (group) => group[GROUP.bytes]);
    return any ? sum : null;
}

// The functions of a stack, outermost first; inlined ones are functions too.
const pathOf = (() => {
    const known = new Map();

    function functions(frame) { // innermost first
        const [text, module, , , places] = data.frames[frame];
        if (!places.some((place) => place[0] !== null))
            return [{name: text, file: "", line: "", module: module || ""}];
        return places.map(([name, file, line]) => ({name: name === null ? text : name,
            file: file || "", line: line || "", module: module || ""}));
    }

    return (stack) => {
        if (!known.has(stack)) {
            const path = data.stacks[stack].flatMap(functions).reverse();
            known.set(stack, path.length ? path
                : [{name: NO_STACK, file: "", line: "", module: ""}]);
        }
        return known.get(stack);
    };
})();

// The innermost frame, as reports write it.
function siteOf(stack) {
    const frames = data.stacks[stack];
    return frames.length ? data.frames[frames[0]][0] : NO_STACK;
}

// Everything that a search looks at, in lower case.
const searched = (() => {
    const known = new Map();
    return (stack) => {
        if (!known.has(stack)) {
            known.set(stack, data.stacks[stack].map((frame) => {
                const [text, module, , , places] = data.frames[frame];
                return [text, module || "", ...places.flat()].join("\n");
            }).join("\n").toLowerCase());
        }
        return known.get(stack);
    };
})();

// Groups of a section that the filters let through: the same stack and kind is one, whatever
// process or device it is of. least counts for the sum, not for the parts.
function groupsOf({section, process, device, kind, least}) {
    const merged = new Map();
    for (const group of data.groups[section]) {
        if (process !== "" && group[GROUP.process] !== Number(process) ||
            device !== "" && group[GROUP.device] !== Number(device) ||
            kind !== "" && group[GROUP.kind] !== kind)
            continue;
        const key = `${group[GROUP.stack]} ${group[GROUP.kind]}`;
        let row = merged.get(key);
        if (!row) {
            row = {key, stack: group[GROUP.stack], kind: group[GROUP.kind], bytes: 0, count: 0,
                smallest: Infinity, largest: 0, devices: new Set(), processes: new Set(),
                threads: new Set(), parts: []};
            merged.set(key, row);
        }
        row.bytes += group[GROUP.bytes];
        row.count += group[GROUP.count];
        row.smallest = Math.min(row.smallest, group[GROUP.smallest]);
        row.largest = Math.max(row.largest, group[GROUP.largest]);
        row.devices.add(group[GROUP.device]);
        row.processes.add(group[GROUP.process]);
        group[GROUP.threads].forEach((thread) => row.threads.add(thread));
        row.parts.push(group);
    }
    const rows = [...merged.values()].filter((row) => row.bytes >= least);
    rows.forEach((row) => { row.threadCount = threadCount(row); });
    return rows;
}

// Of each process the most that one of its groups names: the same thread may be in all of them.
function threadCount(row) {
    const most = new Map();
    for (const group of row.parts) {
        const process = group[GROUP.process];
        most.set(process, Math.max(most.get(process) || 0, group[GROUP.threadCount]));
    }
    return Math.max(row.threads.size, d3.sum([...most.values()]));
}

function matches(row, query) {
    return query === "" || searched(row.stack).includes(query) ||
        [...row.threads].some((thread) => thread.toLowerCase().includes(query));
}
