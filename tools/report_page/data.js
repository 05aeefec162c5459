// What the reports say: numbers into lists that all processes share.
//
// data.processes[i]: what report i says, less its groups; sections[title] has its totals
// data.frames[f]: [text, module, build id, offset, [[function, file, line], ...innermost first],
//     language, how near it is to the reader's own: 0 inside a framework, 1 native, 2 Python of a
//     library, 3 Python of the program]
// data.stacks[s]: frames, innermost first; none where no call stack was recorded
// data.groups[title]: columns, one value for each group of a report
// data.kinds, data.threads, data.streams: what numbers in the columns of these names stand for
// data.compared: processes of side 0 ran before what was changed, those of side 1 after

const SECTIONS = {
    leaked: {name: "Leaked", title: "what was never freed"},
    peak: {name: "At the peak", title: "what was alive when the most bytes were"},
    allocated: {name: "Allocated in all", title: "all that was ever allocated, freed or not"},
    destroyed: {name: "Destroyed", title: "what was alive when its context was destroyed"},
    suppressed: {name: "Suppressed", title: "leaks that suppressions name, not counted as leaked"},
};
const NO_STACK = "(no call stack)";

const data = JSON.parse(at("data").textContent);
const processes = data.processes, compared = data.compared;
const SIDES = ["before", "after"];

function processName(process) {
    const name = process.rank === null ? `pid ${process.pid}` : `rank ${process.rank}`;
    return compared ? `${name} ${SIDES[process.side]}` : name;
}

// Names of processes, by their positions; ranks that are numbers as ranges.
function processNames(positions) {
    const ranks = [], others = [];
    for (const position of positions) {
        const {rank} = processes[position];
        if (!compared && rank !== null && /^\d{1,15}$/.test(rank))
            ranks.push(Number(rank));
        else
            others.push(processName(processes[position]));
    }
    return (ranks.length ? [`${ranks.length > 1 ? "ranks" : "rank"} ${ranges(ranks)}`] : [])
        .concat(others).join(", ");
}

// The most that was live in a process at a time: of all that reports say of it the one figure that
// is exact, where they have it.
function peakOf(process) {
    const {peak} = process.sections;
    return peak && !peak.incomplete && peak.bytes > 0
        ? {bytes: peak.bytes, ns: process.peak_ns, exact: true}
        : {bytes: process.peak_bytes, ns: null, exact: false};
}

// When the program ended, or was asked for a report: names are looked up and reports are written
// after the last point.
function endOf({ended_ns: ended, now_ns: now, timeline: points, areas: held}) {
    const last = Math.max(points.length ? points[points.length - 1][0] : 0,
        held ? held.times[held.times.length - 1] : 0);
    return ended !== null ? ended : last || now;
}

// Sums of one section over all processes (of one side) that have it, or null where none has.
function total(title, side) {
    const sum = {count: 0, bytes: 0, beyond: 0, beyondBytes: 0, small: 0, smallBytes: 0, stacks: 0,
        atLeast: false, incomplete: [], without: []};
    let any = 0;
    processes.forEach((process, position) => {
        if (side !== undefined && process.side !== side)
            return;
        const section = process.sections[title];
        if (!section) {
            sum.without.push(position);
            return;
        }
        any++;
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
    if (any > 1) {
        sum.stacks = Math.max(sum.stacks, new Set(data.groups[title].stack).size);
        sum.atLeast = sum.beyond + sum.small > 0;
    }
    return any ? sum : null;
}

// --- what frames are ----------------------------------------------------------------------------

// A unit is what a frame counts as: its function, its line or its file; inlined functions are
// frames too. Those of frameworks are all the same, their library, where they are folded.
const WAYS = ["function", "line", "file"];
let folded = true;
const anyFolded = data.frames.some((frame) => frame[6] !== 1);
const isInner = (frame) => folded && data.frames[frame][6] === 0;

const base = (path) => path.slice(path.lastIndexOf("/") + 1);

const unitsBy = (() => {
    const known = new Map();

    function parts(way, frame) { // innermost first: [name, file, line]
        const [text, module, , , places] = frame;
        const bare = way === "file" ? module || "(no file)" : text;
        if (!places.some((place) => place[0] !== null))
            return [[bare, "", ""]];
        return places.map(([name, file, line]) => {
            const said = name === null ? text : name, place = file || "";
            if (way === "function")
                return [said, place, line];
            if (way === "file")
                return [place || bare, place, ""];
            return [place && line ? `${said} at ${base(place)}:${line}` : said, place, line];
        });
    }

    function make(way) {
        // Of each unit its name, module and language, and the lines that it comes from.
        const units = {names: [], modules: [], python: [], where: [], folded: [], ofFrame: []};
        const numbers = new Map();
        const number = (name, module, python, isFolded) => {
            const key = `${isFolded ? "+" : ""}${name}\n${module}`;
            let unit = numbers.get(key);
            if (unit === undefined) {
                unit = units.names.push(name) - 1;
                numbers.set(key, unit);
                units.modules.push(module);
                units.python.push(python);
                units.folded.push(isFolded);
                units.where.push(new Set());
            }
            return unit;
        };
        data.frames.forEach((frame, index) => {
            const module = frame[1] || "", python = frame[5] === "python";
            if (isInner(index)) {
                const library = number(`inside ${base(module) || "a framework"}`, module, false,
                    true);
                for (const [name] of parts("function", frame))
                    units.where[library].add(name);
                units.ofFrame.push([library]);
                return;
            }
            units.ofFrame.push(parts(way, frame).map(([name, file, line]) => {
                const unit = number(name, way === "file" ? "" : module, python, false);
                if (file)
                    units.where[unit].add(line ? `${file}:${line}` : file);
                return unit;
            }));
        });
        return units;
    }

    return (way) => {
        const key = `${way} ${folded}`;
        if (!known.has(key))
            known.set(key, make(way));
        return known.get(key);
    };
})();

// The units of a stack, innermost first, a run of the same as one; [] without a call stack.
const pathOf = (() => {
    const known = new Map();
    return (way, stack) => {
        const key = `${way} ${folded}`;
        let paths = known.get(key);
        if (!paths) {
            paths = new Array(data.stacks.length);
            known.set(key, paths);
        }
        if (!paths[stack]) {
            const path = [], {ofFrame, folded: inner} = unitsBy(way);
            for (const frame of data.stacks[stack]) {
                for (const unit of ofFrame[frame]) {
                    if (!inner[unit] || path[path.length - 1] !== unit)
                        path.push(unit);
                }
            }
            paths[stack] = path;
        }
        return paths[stack];
    };
})();

// Where memory is allocated: the innermost frame of those that are nearest to the reader's own. A
// Python program's is the line that asked for it, not what of the framework served that.
function siteFrame(stack) {
    const frames = data.stacks[stack];
    return !folded ? frames[0] : frames.reduce((best, frame) => best === undefined ||
        data.frames[frame][6] > data.frames[best][6] ? frame : best, undefined);
}

function siteOf(stack) {
    const frame = siteFrame(stack);
    return frame === undefined ? NO_STACK : data.frames[frame][0];
}

// What served it, where that is another: the innermost native frame.
function servedBy(stack) {
    const site = siteFrame(stack), frame = data.stacks[stack].find((one) => !isInner(one));
    if (frame === site || site === undefined || data.frames[site][5] !== "python")
        return "";
    const [text, , , , places] = data.frames[frame];
    const name = places.length && places[0][0] !== null ? places[0][0] : text;
    return name.replace(/([^(:])\(.*$/, "$1"); // without its parameters
}

const siteUnit = (way, stack) => unitsBy(way).ofFrame[siteFrame(stack)][0];

// --- searching ----------------------------------------------------------------------------------

// What a text must have in it: words, or a regular expression, for which a SyntaxError may be
// thrown.
function matcher(query, isRegex) {
    if (isRegex) {
        const regex = new RegExp(query, "im"); // of several lines any
        return (text) => regex.test(text);
    }
    const words = query.toLowerCase();
    return (text) => text.toLowerCase().includes(words);
}

const frameTexts = (() => {
    let texts = null;
    return () => {
        texts = texts || data.frames.map(([text, module, , , places, language]) =>
            [text, module || "", ...places.flat(), language || ""].join("\n"));
        return texts;
    };
})();

// What is found: of stacks, of lists of threads, of units; each is looked at once for a query.
function found(test) {
    const frames = frameTexts().map(test);
    const stacks = data.stacks.map((stack) => stack.length
        ? stack.some((frame) => frames[frame]) : test(NO_STACK));
    const threads = data.threads.map((names) => names.some(test));
    const ways = new Map();
    const units = (way) => {
        const all = unitsBy(way);
        if (!ways.has(all)) {
            ways.set(all, all.names.map((name, unit) => test(name) || test(all.modules[unit]) ||
                [...all.where[unit]].some(test)));
        }
        return ways.get(all);
    };
    return {stacks, threads, units, none: test(NO_STACK)};
}
