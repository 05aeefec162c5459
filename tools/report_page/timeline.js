// Live and reserved bytes over time: of one process, or the sum of all from the first one's start.
// Compared reports are two lines from the same start.

const timeline = (() => {
    const HEIGHT = 240, MARGIN = {top: 26, right: 24, bottom: 34, left: 70};
    const LABEL = 90; // pixels that the name of a mark takes, about
    let points = [], before = [], marks = [], spans = [], cursor = -1, drawn = null;
    let start = 0, end = 1, left = [], shown = [], held = null, way = "stack";

    const startOf = (positions) =>
        d3.min(positions, (position) => processes[position].start_s) || 0;
    const offset = (position) => (processes[position].start_s - start) * 1e9;

    // The points of a timeline are samples; from where the history begins that has what was live.
    function withHistory(own, {times, totals}) {
        const all = [...own.map(([ns, live, reserved]) => ({ns, live, reserved})),
            ...times.map((ns, index) => ({ns, live: totals[index], known: true}))]
            .sort((a, b) => a.ns - b.ns);
        let reserved = 0, known = null;
        return all.map((point) => {
            reserved = point.reserved === undefined ? reserved : point.reserved;
            known = point.known ? point.live : known;
            return [point.ns, known === null ? point.live : known, reserved];
        });
    }

    // A process's points, until its end; its peak is one of them, and none is above it.
    function pointsOf(process) {
        const peak = peakOf(process), until = endOf(process);
        let own = process.timeline.filter(([ns], index) => ns <= until || index === 0);
        if (process.areas)
            own = withHistory(own, process.areas);
        own = own.map(([ns, live, reserved]) => [ns, Math.min(live, peak.bytes), reserved]);
        if (peak.exact && peak.ns) {
            const next = d3.bisector(([ns]) => ns).left(own, peak.ns);
            const near = own.slice(Math.max(0, next - 1), next + 1);
            own.splice(next, 0, [peak.ns, peak.bytes, d3.max(near, (point) => point[2]) || 0]);
        }
        return own;
    }

    // [{ns, live, reserved}] of the processes at these positions, in the order of time.
    function summed(positions) {
        const chosen = positions.filter((position) => processes[position].timeline.length);
        const last = d3.max(chosen, (position) => offset(position) + endOf(processes[position]));
        const events = [];
        for (const position of chosen) {
            const process = processes[position], own = pointsOf(process);
            for (const [ns, live, reserved] of own)
                events.push([offset(position) + ns, position, live, reserved]);
            const [ns, live, reserved] = own[own.length - 1];
            const ended = offset(position) + endOf(process);
            // Until its end its last point holds; what has ended before the others has none.
            if (ended < last && process.cause === "exit")
                events.push([ended, position, 0, 0]);
            else if (ended > offset(position) + ns)
                events.push([ended, position, live, reserved]);
        }
        events.sort((a, b) => a[0] - b[0]);
        const now = new Map(), out = [];
        let live = 0, reserved = 0;
        for (const [ns, position, itsLive, itsReserved] of events) {
            const had = now.get(position) || [0, 0];
            live += itsLive - had[0];
            reserved += itsReserved - had[1];
            now.set(position, [itsLive, itsReserved]);
            if (out.length && out[out.length - 1].ns === ns)
                out.pop();
            out.push({ns, live, reserved});
        }
        return out;
    }

    // A few points for each pixel, the extremes among them: nothing that could be seen is lost.
    function sampled(all, x) {
        const kept = [];
        let bucket = [], column = -1;
        const flush = () => {
            if (bucket.length <= 4) {
                kept.push(...bucket);
            } else {
                const by = (value) => bucket.reduce((a, b) => value(b) > value(a) ? b : a);
                const some = new Set([bucket[0], by((p) => p.live), by((p) => -p.live),
                    by((p) => p.reserved), bucket[bucket.length - 1]]);
                kept.push(...bucket.filter((point) => some.has(point)));
            }
            bucket = [];
        };
        for (const point of all) {
            const pixel = Math.floor(x(point.ns));
            if (pixel !== column)
                flush();
            column = pixel;
            bucket.push(point);
        }
        flush();
        return kept;
    }

    function sizeTicks(most) {
        const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(most, 1)) / 10));
        return d3.ticks(0, most / unit, 4).map((tick) => tick * unit);
    }

    function axes(svg, x, y, width) {
        const grid = svg.append("g").attr("class", "grid");
        for (const tick of sizeTicks(y.domain()[1])) {
            grid.append("line").attr("x1", MARGIN.left).attr("x2", width - MARGIN.right)
                .attr("y1", y(tick)).attr("y2", y(tick));
            grid.append("text").attr("x", MARGIN.left - 8).attr("y", y(tick) + 4)
                .attr("text-anchor", "end").text(tick === 0 ? "0" : size(tick));
        }
        for (const tick of x.ticks(Math.max(2, Math.floor(width / 130)))) {
            grid.append("text").attr("x", x(tick)).attr("y", HEIGHT - 12)
                .attr("text-anchor", "middle").text(tick === 0 ? "0" : duration(tick));
        }
    }

    // The peak of each process, and what programs have marked (cachealloc_mark).
    function findMarks() {
        marks = [];
        for (const position of shown) {
            const process = processes[position], peak = peakOf(process);
            if (!process.timeline.length)
                continue;
            let {ns} = peak;
            if (!ns) // about when it was
                [ns] = process.timeline.reduce((a, b) => b[1] > a[1] ? b : a);
            marks.push({ns: offset(position) + ns, position, peak: true,
                at: shown.length === 1 ? peak.bytes : null,
                text: `peak ${peak.exact ? "" : "at most "}${size(peak.bytes)}`});
            for (const [when, name] of process.marks)
                marks.push({ns: offset(position) + when, at: null, text: name, position});
        }
    }

    // Marks that fall on one place are one: of each what ranks have it.
    function drawMarks(svg, x, y, width) {
        const bottom = HEIGHT - MARGIN.bottom, several = shown.length > 1, places = new Map();
        for (const mark of marks) {
            const name = mark.peak && several ? "peak" : mark.text;
            const key = `${Math.round(x(mark.ns) / 2)} ${name}`;
            if (!places.has(key))
                places.set(key, {...mark, name, all: []});
            places.get(key).all.push(mark);
        }
        let labelled = -Infinity; // where the last of the program's own has its name
        for (const mark of [...places.values()].sort((a, b) => a.ns - b.ns)) {
            const at = x(mark.ns), right = at > width / 2;
            const g = svg.append("g").attr("class", mark.peak ? "mark" : "mark own");
            const whose = several ? `${processNames(mark.all.map((one) => one.position))}: ` : "";
            g.append("title").text(`${whose}${mark.text}, ${duration(mark.ns)}`);
            const silent = mark.peak ? several : at - labelled < LABEL;
            if (!mark.peak && !silent)
                labelled = at;
            g.append("line").attr("x1", at).attr("x2", at).attr("y1", MARGIN.top - 6)
                .attr("y2", bottom);
            if (mark.peak) {
                g.append("circle").attr("cx", at)
                    .attr("cy", mark.at === null ? MARGIN.top - 6 : y(Math.min(mark.at, most())))
                    .attr("r", mark.at === null ? 3 : 4);
            }
            g.append("text").attr("x", at + (right ? -5 : 5)).attr("y", mark.peak ? 14 : 30)
                .attr("text-anchor", right ? "end" : "start").text(silent ? "" : mark.name);
        }
        for (const [first, last] of spans) {
            svg.append("rect").attr("class", "span").attr("x", x(first)).attr("y", bottom + 2)
                .attr("width", Math.max(3, x(last) - x(first))).attr("height", 5);
        }
    }

    const most = () => Math.max(1, d3.max([...points, ...before],
        (point) => Math.max(point.live, compared ? 0 : point.reserved)) || 1,
        held ? d3.max(held.totals) : 0);

    function drawAreas(svg, x, y) {
        const base = new Float64Array(held.times.length);
        // Until the end of the axis what is held last is.
        const at = held.times.concat(Math.max(end, held.times[held.times.length - 1]));
        held.layers.forEach((layer, index) => {
            const tops = layer.values.map((value, point) => base[point] + value);
            const until = (values) => at.map((_, point) => values[Math.min(point,
                values.length - 1)]);
            const low = until([...base]), high = until(tops);
            svg.append("path").attr("class", "held").attr("data-colour", colourOf(layer, index))
                .attr("d", d3.area().curve(d3.curveStepAfter).x((_, point) => x(at[point]))
                    .y0((_, point) => y(low[point])).y1((_, point) => y(high[point]))(at));
            tops.forEach((top, point) => { base[point] = top; });
        });
    }

    const colourOf = (layer, index) => layer.band === 0 ? "rest" : layer.band === 1 ? "earlier"
        : String(index);

    // What the areas are, and what each holds at the cursor, or at most.
    function legend() {
        const list = at("areas-key");
        list.hidden = !held;
        list.textContent = "";
        if (!held)
            return;
        const here = cursor < 0 ? -1
            : d3.bisectRight(held.times, points[cursor].ns) - 1;
        list.append(...held.layers.map((layer, index) => {
            const bytes = cursor < 0 ? d3.max(layer.values) : here < 0 ? 0 : layer.values[here];
            return make("li", {"data-colour": colourOf(layer, index), title: layer.name},
                make("span", {class: "name"}, layer.name), " ",
                make("small", {}, `${cursor < 0 ? "at most " : ""}${size(bytes)}`));
        }));
    }

    function draw() {
        const box = at("time"), width = Math.max(240, box.clientWidth);
        box.textContent = "";
        drawn = null;
        at("key-live").hidden = Boolean(held); // it is where the areas end
        if (!points.length) {
            box.append(make("p", {class: "none"}, "The reports hold no timeline."));
            legend();
            return;
        }
        const x = d3.scaleLinear().domain([0, Math.max(1, end)])
            .range([MARGIN.left, width - MARGIN.right]);
        const y = d3.scaleLinear().domain([0, most() * 1.02])
            .range([HEIGHT - MARGIN.bottom, MARGIN.top + 12]);
        const svg = d3.select(box).append("svg").attr("width", width).attr("height", HEIGHT)
            .attr("aria-hidden", "true");
        axes(svg, x, y, width);
        const few = sampled(points, x), line = (key, some) => d3.line().curve(d3.curveStepAfter)
            .x((point) => x(point.ns)).y((point) => y(point[key]))(some);
        if (held) {
            drawAreas(svg, x, y);
        } else {
            svg.append("path").attr("class", "area live").attr("d",
                d3.area().curve(d3.curveStepAfter).x((point) => x(point.ns)).y0(y(0))
                    .y1((point) => y(point.live))(few));
        }
        svg.append("path").attr("class", "line reserved")
            .attr("d", compared ? line("live", sampled(before, x)) : line("reserved", few));
        if (!held)
            svg.append("path").attr("class", "line live").attr("d", line("live", few));
        drawMarks(svg, x, y, width);
        drawn = {x, cursor: svg.append("line").attr("class", "cursor").attr("y1", MARGIN.top)
            .attr("y2", HEIGHT - MARGIN.bottom).attr("visibility", "hidden")};
        legend();
    }

    function point(to) {
        if (!drawn)
            return;
        cursor = Math.max(0, Math.min(points.length - 1, to));
        const here = points[cursor], x = drawn.x(here.ns);
        const clock = start ? ` (${moment(start + here.ns / 1e9)})` : "";
        drawn.cursor.attr("visibility", "visible").attr("x1", x).attr("x2", x);
        const was = before[d3.bisector((one) => one.ns).right(before, here.ns) - 1];
        at("time-says").textContent = `${duration(here.ns)}${compared ? "" : clock}: ` +
            `${exact(here.live)} live, ` + (compared
            ? `${exact(was ? was.live : 0)} before` : `${exact(here.reserved)} reserved`);
        legend();
    }

    function say() {
        at("time-says").textContent = !points.length ? "" : [
            `${many(points.length, "point")}${start && !compared ? `, from ${moment(start)}` : ""}`,
            left.length ? `without ${processNames(left)}: no timeline in the report` : "",
            held && held.dropped
                ? `${many(held.dropped, "event")} before the history not kept` : "",
            held && held.without.length ? `no history of ${processNames(held.without)}` : "",
        ].filter(Boolean).join("; ");
    }

    function update() {
        held = way === "" || compared ? null : areas.of(way, shown, offset);
        cursor = -1;
        draw();
        say();
    }

    function listen() {
        const box = at("time");
        const any = !compared && processes.some((process) => process.areas);
        at("areas").closest("label").hidden = !any;
        at("areas-hint").hidden = any || compared;
        at("areas").addEventListener("change", () => {
            way = at("areas").value;
            update();
        });
        box.addEventListener("pointermove", (event) => {
            if (!drawn)
                return;
            const ns = drawn.x.invert(event.clientX - box.getBoundingClientRect().left);
            point(d3.bisector((one) => one.ns).right(points, ns) - 1);
        });
        box.addEventListener("keydown", (event) => {
            const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity,
                End: Infinity}[event.key];
            if (step === undefined)
                return;
            event.preventDefault();
            point(cursor + step);
        });
    }

    return {
        listen,
        draw,
        update,
        pointsOf,
        // position: of one process, or "" for all.
        show(position) {
            const side = (which) => d3.range(processes.length)
                .filter((one) => processes[one].side === which);
            const of = (positions) => {
                const timed = positions.filter((one) => processes[one].timeline.length);
                start = startOf(timed.length ? timed : positions);
                return summed(positions);
            };
            before = compared ? of(side(0)) : [];
            shown = position !== "" ? [Number(position)]
                : compared ? side(1) : d3.range(processes.length);
            points = of(shown);
            left = shown.filter((one) => !processes[one].timeline.length);
            end = d3.max([...points, ...before], (one) => one.ns) || 1;
            findMarks();
            at("key-peaks").hidden = shown.length < 2 || !points.length;
            update();
        },
        // When the groups of these parts of a section were allocated, below the axis.
        span(parts, groups) {
            if (!parts.length && !spans.length)
                return;
            const when = (part, column) =>
                offset(groups.process[part]) + groups[column][part];
            spans = parts.filter((part) => groups.last_ns[part] > 0 &&
                shown.includes(groups.process[part]))
                .map((part) => [when(part, "first_ns"), when(part, "last_ns")]);
            at("key-open").hidden = !spans.length;
            draw();
        },
    };
})();
