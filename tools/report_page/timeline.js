// Live and reserved bytes over time: of one process, or the sum of all from the first one's start.

const timeline = (() => {
    const HEIGHT = 220, MARGIN = {top: 26, right: 24, bottom: 34, left: 70};
    const LABEL = 90; // pixels that the name of a mark takes, about
    let points = [], marks = [], spans = [], cursor = -1, drawn = null, start = 0, left = [];

    // [{ns, live, reserved}] of the processes at these positions, in the order of time.
    function summed(positions) {
        const chosen = positions.filter((position) => processes[position].timeline.length);
        start = d3.min(chosen, (position) => processes[position].start_s) || 0;
        left = positions.filter((position) => !chosen.includes(position));
        const offset = (position) => (processes[position].start_s - start) * 1e9;
        const end = d3.max(chosen, (position) => offset(position) + processes[position].now_ns);
        const events = [];
        for (const position of chosen) {
            const process = processes[position];
            for (const [ns, live, reserved] of process.timeline)
                events.push([offset(position) + ns, position, live, reserved]);
            const last = process.timeline[process.timeline.length - 1];
            const ended = offset(position) + process.now_ns;
            // Until its report its last point holds; what has ended before the others has none.
            if (ended < end && process.cause === "exit")
                events.push([ended, position, 0, 0]);
            else if (ended > offset(position) + last[0])
                events.push([ended, position, last[1], last[2]]);
        }
        events.sort((a, b) => a[0] - b[0]);
        const now = new Map(), out = [];
        let live = 0, reserved = 0;
        for (const [ns, position, itsLive, itsReserved] of events) {
            const before = now.get(position) || [0, 0];
            live += itsLive - before[0];
            reserved += itsReserved - before[1];
            now.set(position, [itsLive, itsReserved]);
            if (out.length && out[out.length - 1].ns === ns)
                out.pop();
            out.push({ns, live, reserved});
        }
        return out;
    }

    // A few points for each pixel, the extremes among them: nothing that could be seen is lost.
    function sampled(x) {
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
        for (const point of points) {
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

    // The highest point of live bytes, each report, and what a program has marked (cachealloc_mark).
    function findMarks(positions) {
        const peak = points.reduce((a, b) => b.live > a.live ? b : a, points[0]);
        marks = [{ns: peak.ns, at: peak.live, text: `peak ${size(peak.live)}`}];
        if (positions.length === 1) {
            const process = processes[positions[0]];
            marks.push({ns: process.now_ns, at: null, text: `report: ${process.cause}`});
            for (const [ns, name] of process.marks)
                marks.push({ns, at: null, text: name, own: true});
        }
    }

    function drawMarks(svg, x, y, width) {
        const bottom = HEIGHT - MARGIN.bottom;
        let labelled = -Infinity; // where the last of the program's own has its name
        for (const mark of marks) {
            const right = x(mark.ns) > width / 2;
            const g = svg.append("g").attr("class", mark.own ? "mark own" : "mark");
            if (mark.own)
                g.append("title").text(`${mark.text}, ${duration(mark.ns)}`);
            const crowded = mark.own && x(mark.ns) - labelled < LABEL;
            if (mark.own && !crowded)
                labelled = x(mark.ns);
            g.append("line").attr("x1", x(mark.ns)).attr("x2", x(mark.ns))
                .attr("y1", MARGIN.top - 6).attr("y2", bottom);
            if (mark.at !== null)
                g.append("circle").attr("cx", x(mark.ns)).attr("cy", y(mark.at)).attr("r", 4);
            g.append("text").attr("x", x(mark.ns) + (right ? -5 : 5))
                .attr("y", mark.own ? 42 : mark.at === null ? 28 : 14)
                .attr("text-anchor", right ? "end" : "start").text(crowded ? "" : mark.text);
        }
        for (const [first, last] of spans) {
            svg.append("rect").attr("class", "span").attr("x", x(first)).attr("y", bottom + 2)
                .attr("width", Math.max(3, x(last) - x(first))).attr("height", 5);
        }
    }

    function draw() {
        const box = at("time"), width = Math.max(280, box.clientWidth);
        box.textContent = "";
        drawn = null;
        if (!points.length) {
            box.append(make("p", {class: "none"}, "The reports hold no timeline."));
            return;
        }
        const x = d3.scaleLinear().domain([0, Math.max(1, points[points.length - 1].ns)])
            .range([MARGIN.left, width - MARGIN.right]);
        const most = d3.max(points, (point) => Math.max(point.live, point.reserved)) || 1;
        const y = d3.scaleLinear().domain([0, most * 1.02])
            .range([HEIGHT - MARGIN.bottom, MARGIN.top + 12]);
        const svg = d3.select(box).append("svg").attr("width", width).attr("height", HEIGHT)
            .attr("aria-hidden", "true");
        axes(svg, x, y, width);
        const shown = sampled(x), line = (key) => d3.line().curve(d3.curveStepAfter)
            .x((point) => x(point.ns)).y((point) => y(point[key]))(shown);
        svg.append("path").attr("class", "area live").attr("d", d3.area().curve(d3.curveStepAfter)
            .x((point) => x(point.ns)).y0(y(0)).y1((point) => y(point.live))(shown));
        svg.append("path").attr("class", "line reserved").attr("d", line("reserved"));
        svg.append("path").attr("class", "line live").attr("d", line("live"));
        drawMarks(svg, x, y, width);
        drawn = {x, cursor: svg.append("line").attr("class", "cursor").attr("y1", MARGIN.top)
            .attr("y2", HEIGHT - MARGIN.bottom).attr("visibility", "hidden")};
    }

    function point(to) {
        if (!drawn)
            return;
        cursor = Math.max(0, Math.min(points.length - 1, to));
        const here = points[cursor], x = drawn.x(here.ns);
        const clock = start ? ` (${moment(start + here.ns / 1e9)})` : "";
        drawn.cursor.attr("visibility", "visible").attr("x1", x).attr("x2", x);
        at("time-says").textContent = `${duration(here.ns)}${clock}: ` +
            `${exact(here.live)} live, ${exact(here.reserved)} reserved`;
    }

    function say() {
        at("time-says").textContent = !points.length ? "" :
            `${many(points.length, "point")}${start ? `, from ${moment(start)}` : ""}` +
            (left.length ? `; without ${processNames(left)}: no timeline in the report` : "");
    }

    function listen() {
        const box = at("time");
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
        // position: of one process, or "" for all.
        show(position) {
            const positions = position === "" ? d3.range(processes.length) : [Number(position)];
            points = summed(positions);
            cursor = -1;
            if (points.length)
                findMarks(positions);
            draw();
            say();
        },
        // When the groups of these parts were allocated, below the axis.
        span(groups) {
            const offset = (group) => (processes[group[GROUP.process]].start_s - start) * 1e9;
            const when = (group, end) => offset(group) + group[end];
            spans = groups.filter((group) => group[GROUP.last] > 0)
                .map((group) => [when(group, GROUP.first), when(group, GROUP.last)]);
            at("key-open").hidden = !spans.length;
            draw();
        },
    };
})();
