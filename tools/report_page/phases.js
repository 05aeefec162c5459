// The most that was live in each phase of a program: from one mark to the next.

const phases = (() => {
    const LISTED = 400;

    // What held most of it then, where the report has a history.
    function heldMost(process, ns) {
        if (!process.areas || ns === null)
            return "";
        const point = d3.bisectRight(process.areas.times, ns) - 1;
        let most = 0, stack = null;
        for (const [one, , , values] of process.areas.series) {
            let bytes = 0;
            for (let i = 0; i < values.length && values[i] <= point; i += 2)
                bytes = values[i + 1];
            if (bytes > most)
                [most, stack] = [bytes, one];
        }
        return stack === null ? "" : `${size(most)}: ${siteOf(stack)}`;
    }

    // [{name, from, until, bytes, about, ns}] as the report has them, or by what it has of time:
    // its points are samples, its history has everything.
    function of(process) {
        const whole = process.areas && !process.areas.dropped, peak = peakOf(process);
        const bound = process.peak_at_most !== null && process.peak_at_most !== process.peak_bytes;
        if (process.phases.length && !whole) {
            return process.phases.map(([name, from, until, bytes, ns, known]) => ({name, from,
                until, ns, bytes: Math.min(bytes, peak.bytes),
                about: bound && !known ? "at most " : ""}));
        }
        const begins = [[0, null], ...process.marks], end = endOf(process);
        const points = timeline.pointsOf(process).map(([ns, live]) => [ns, live]);
        if (process.areas)
            process.areas.times.forEach((ns, i) => points.push([ns, process.areas.totals[i]]));
        points.push(...process.marks.map(([ns, , live]) => [ns, live]));
        points.sort((a, b) => a[0] - b[0]);
        return begins.map(([from, name], index) => {
            const until = index + 1 < begins.length ? begins[index + 1][0] : end;
            let best = [from, 0];
            for (const point of points) { // what it begins with is part of it
                if (point[0] <= from)
                    best = [from, point[1]];
                else if (point[0] <= until && point[1] > best[1])
                    best = point;
            }
            return {name, from, until, bytes: best[1], ns: best[0],
                about: whole || peak.exact && best[1] === peak.bytes ? "" : "at least "};
        }).filter((phase) => phase.name !== null || phase.bytes > 0);
    }

    function show(positions) {
        const marked = positions.filter((position) => processes[position].marks.length ||
            processes[position].phases.length);
        const lines = marked.flatMap((position) =>
            of(processes[position]).map((phase) => ({...phase, position})));
        const history = marked.some((position) => processes[position].areas);
        const several = processes.length > 1;
        const columns = [
            ...several ? [["Process", (one) => processName(processes[one.position])]] : [],
            ["Phase", (one) => one.name === null ? "(before the first mark)" : one.name],
            ["From", (one) => duration(one.from)], ["To", (one) => duration(one.until)],
            ["Peak", (one) => `${one.about}${exact(one.bytes)}`],
            ["At", (one) => one.ns === null ? "" : duration(one.ns)],
            ...history ? [["Held most", (one) => heldMost(processes[one.position], one.ns)]] : [],
        ];
        at("phases").hidden = !lines.length;
        const rest = lines.length - LISTED;
        at("phases").querySelector("summary").textContent = "Peaks by phase" +
            (rest > 0 ? `, the first ${number(LISTED)} of ${number(lines.length)}` : "");
        at("phases").querySelector("table").replaceChildren(
            make("thead", {}, make("tr", {}, ...columns.map(([title]) =>
                make("th", {scope: "col"}, title)))),
            make("tbody", {}, ...lines.slice(0, LISTED).map((one) => make("tr", {},
                ...columns.map(([, cell]) => make("td", {}, cell(one)))))));
    }

    return {show};
})();
