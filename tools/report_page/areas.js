// What held live memory over time, where reports have a history: areas on top of each other, one
// for each of the few that ever held most, and the rest.
//
// process.areas: times (ns), totals (live bytes), earlier (those of them from before the history),
// series: [[stack, device, kind, [point, bytes from it on, point, bytes, ...]], ...]

const areas = (() => {
    const MOST = 8, COLUMNS = 600;

    // What a series counts as: [key, name].
    function whatOf(way, [stack, device, kind]) {
        if (way === "kind")
            return [`${kind}`, `${data.kinds[kind]} memory`];
        if (way === "device")
            return [`${device}`, `device ${device}`];
        if (way === "stack")
            return [`${stack} ${kind}`,
                [siteOf(stack), servedBy(stack)].filter(Boolean).join(", ")];
        const path = pathOf(way, stack);
        const unit = path.length ? siteUnit(way, stack) : -1;
        return [`${unit}`, unit < 0 ? NO_STACK : unitsBy(way).names[unit]];
    }

    // All changes of all series in the order of time: [ns, band, bytes more or less]; band 0 is the
    // rest, band 1 what is from before the history.
    function changesOf(way, positions, offset) {
        const bands = new Map(), names = ["everything else", "from before the history"];
        const changes = [];
        const end = d3.max(positions, (position) => offset(position) + endOf(processes[position]));
        for (const position of positions) {
            const from = changes.length;
            const {times, totals, earlier, series} = processes[position].areas;
            const at = times.map((ns) => offset(position) + ns);
            const rest = totals.map((bytes, point) => bytes - earlier[point]);
            for (const one of series) {
                const [key, name] = whatOf(way, one), points = one[3];
                if (!bands.has(key))
                    bands.set(key, names.push(name) - 1);
                for (let i = 0, had = 0; i < points.length; i += 2) {
                    changes.push([at[points[i]], bands.get(key), points[i + 1] - had]);
                    const until = i + 2 < points.length ? points[i + 2] : times.length;
                    for (let point = points[i]; point < until; point++)
                        rest[point] -= points[i + 1];
                    had = points[i + 1];
                }
            }
            for (const [band, values] of [[0, rest], [1, earlier]]) {
                values.forEach((bytes, point) => {
                    const more = bytes - (point ? values[point - 1] : 0);
                    if (more)
                        changes.push([at[point], band, more]);
                });
            }
            // What has ended before the others holds nothing.
            const ended = offset(position) + endOf(processes[position]);
            if (ended < end) {
                const left = new Map();
                for (const [, band, more] of changes.slice(from))
                    left.set(band, (left.get(band) || 0) + more);
                for (const [band, bytes] of left)
                    changes.push([Math.max(ended, at[at.length - 1]), band, -bytes]);
            }
        }
        return {changes: changes.sort((a, b) => a[0] - b[0]), names};
    }

    // {times, layers: [{name, values}], ...}: at each time what each holds, the largest first; null
    // without a history. Of all that happens in a column of the picture the highest moment is kept.
    function of(way, positions, offset) {
        const having = positions.filter((position) => processes[position].areas);
        if (!having.length)
            return null;
        const {changes, names} = changesOf(way, having, offset);
        const last = changes.length ? changes[changes.length - 1][0] : 1;
        const columnOf = (ns) => Math.floor(ns * COLUMNS / (last + 1));
        const now = new Float64Array(names.length), most = new Float64Array(names.length);
        const best = new Map();
        let total = 0;
        changes.forEach(([ns, band, more], position) => {
            now[band] += more;
            total += more;
            most[band] = Math.max(most[band], now[band]);
            // Only between moments is the sum right.
            if (position + 1 < changes.length && changes[position + 1][0] === ns)
                return;
            const kept = best.get(columnOf(ns));
            if (!kept || total > kept[0])
                best.set(columnOf(ns), [total, position]);
        });
        const chosen = new Set([...best.values()].map(([, position]) => position));
        chosen.add(changes.length - 1);
        const shown = d3.range(2, names.length).sort((a, b) => most[b] - most[a]).slice(0, MOST);
        const layers = [...shown, 1, 0].map((band) => ({band, name: names[band], values: []}));
        const times = [], totals = [];
        now.fill(0);
        total = 0;
        changes.forEach(([ns, band, more], position) => {
            now[band] += more;
            total += more;
            if (!chosen.has(position))
                return;
            times.push(ns);
            totals.push(total);
            let sum = 0;
            for (const layer of layers) {
                const value = layer.band === 0 ? Math.max(0, total - sum) : now[layer.band];
                layer.values.push(value);
                sum += value;
            }
        });
        // What is held all the time lies below what comes and goes.
        const order = (layer) => layer.band < 2 ? layer.band - 2 : d3.mean(layer.values);
        return {times, totals,
            layers: layers.filter((layer) => layer.values.some((value) => value > 0))
                .sort((a, b) => order(b) - order(a)),
            dropped: d3.sum(having, (position) => processes[position].areas.dropped),
            without: positions.filter((position) => !having.includes(position))};
    }

    return {of};
})();
