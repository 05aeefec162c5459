// The call stacks as boxes below each other: a box is as wide as what was allocated in it. Boxes
// that would be too narrow to be seen are one, the rest, which opens like any other. What is below
// a box is worked out when it is first to be seen.

const flame = (() => {
    const ROW = 21, LETTER = 6.65, THINNEST = 3, MORE = 74, AT_ONCE = 40;
    const VALUES = {bytes: (row) => row.bytes, count: (row) => row.count,
        allocations: (row) => row.allocations, temporaries: (row) => row.temporaries,
        grown: (row) => row.bytes, shrunk: (row) => -row.bytes};
    // What is zoomed to: a box, and of those right below it some, [first, end], or all, null.
    let root = null, focus = null, range = null, current = null, within = null;
    let hits = null, weight = "bytes", order = "callers", changed = () => {};
    const boxes = new Map(); // of each node that is seen its element and where it begins

    function newNode(unit, parent) {
        return {unit, parent, depth: parent ? parent.depth + 1 : 0, value: 0, bytes: 0, count: 0,
            rows: [], below: null};
    }

    function add(node, row) {
        node.value += Math.max(0, VALUES[weight](row));
        node.bytes += row.bytes;
        node.count += row.count;
        node.rows.push(row);
    }

    // The unit of a row's stack at some depth below the root, undefined where it has ended.
    function unitAt(row, depth) {
        const path = pathOf("function", row.stack);
        if (!path.length)
            return depth === 0 ? -1 : undefined;
        return path[order === "site" ? depth : path.length - 1 - depth];
    }

    // What is right below a node, the widest first.
    function children(node) {
        if (!node.below) {
            const found = new Map();
            for (const row of node.rows) {
                const unit = unitAt(row, node.depth);
                if (unit === undefined)
                    continue;
                if (!found.has(unit))
                    found.set(unit, newNode(unit, node));
                add(found.get(unit), row);
            }
            node.below = [...found.values()].sort((a, b) => b.value - a.value);
        }
        return node.below;
    }

    const units = () => unitsBy("function");
    const nameOf = (node) => node.name || (node.unit === null ? "all"
        : node.unit < 0 ? NO_STACK : units().names[node.unit]);
    const moduleOf = (node) => node.unit === null || node.unit < 0 ? ""
        : units().modules[node.unit];
    const hit = (node) => hits !== null && node.unit !== null &&
        (node.unit < 0 ? hits.none : hits.units("function")[node.unit]);

    // Boxes that can be seen at this zoom: [node, left, width], from the top; a rest among them has
    // the number of its first, as the widest come first.
    function visible(width) {
        const above = [];
        for (let node = focus; node; node = node.parent)
            above.unshift(node);
        const seen = above.map((node) => [node, 0, width]), waiting = [];
        const sum = (nodes) => d3.sum(nodes, (node) => node.value);
        // Those of `all` from first to end, from `left` on; up to `until` what is left of them.
        const lay = (parent, first, end, left, scale, until) => {
            const all = children(parent);
            let at = left, next = first;
            for (; next < end && all[next].value * scale >= THINNEST; next++) {
                const wide = all[next].value * scale;
                seen.push([all[next], at, wide]);
                waiting.push([all[next], at, scale]);
                at += wide;
            }
            const rest = all.slice(next);
            if (rest.length && sum(rest) > 0)
                seen.push([restOf(parent, next, rest), at, until === null ? sum(rest) * scale
                    : until - at]);
        };
        const all = children(focus), [first, end] = range || [0, all.length];
        const space = range && end < all.length ? width - MORE : width;
        const whole = range ? sum(all.slice(first, end)) : focus.value;
        lay(focus, first, end, 0, space / Math.max(1e-12, whole), range ? width : null);
        while (waiting.length) {
            const [node, left, scale] = waiting.pop();
            lay(node, 0, children(node).length, left, scale, null);
        }
        return seen.filter(([, , wide]) => wide > 0);
    }

    // What is right below a box from its next-th on, as one.
    function restOf(parent, next, all) {
        const one = newNode(-1, parent);
        one.next = next;
        one.name = `${number(all.length)} more`;
        for (const node of all) {
            one.value += node.value;
            one.bytes += node.bytes;
            one.count += node.count;
            one.rows = one.rows.concat(node.rows);
        }
        return one;
    }

    function label(name, width) {
        const letters = Math.floor((width - 8) / LETTER);
        if (letters < 3)
            return "";
        return name.length <= letters ? name : `${name.slice(0, letters - 1)}\u2026`;
    }

    const COUNTED = {count: ["allocation"], allocations: ["allocation"],
        temporaries: ["temporary", "temporaries"]};
    const said = (value, sizeOf = exact) =>
        COUNTED[weight] ? many(value, ...COUNTED[weight]) : sizeOf(value);

    function hue(node) {
        if (units().python[node.unit])
            return "python";
        let hash = 0;
        for (const letter of moduleOf(node) || nameOf(node))
            hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
        return hash % 7;
    }

    function draw() {
        const area = at("flame"), width = Math.max(240, area.clientWidth);
        const held = area.contains(document.activeElement);
        area.textContent = "";
        boxes.clear();
        if (!root || root.value === 0) {
            area.append(make("p", {class: "none"}, "Nothing is listed here."));
            at("flame-says").textContent = "";
            at("out").disabled = true;
            return;
        }
        const seen = visible(width), depth = d3.max(seen, ([node]) => node.depth) + 1;
        const svg = drawn("svg", {width, height: depth * ROW, role: "tree",
            "aria-label": "Call stacks, by what they allocated"});
        for (const one of seen)
            svg.append(box(...one));
        area.append(svg);
        mark(boxes.has(current) ? current : focus, held);
        at("out").disabled = focus === root && !range;
        say();
    }

    function box(node, left, wide) {
        const isRest = node.next !== undefined, name = nameOf(node);
        const classes = ["box", isRest && "rest", !node.parent && "root",
            node.depth < focus.depth && "above", !isRest && hit(node) && "hit"];
        const g = drawn("g", {class: classes.filter(Boolean).join(" "), role: "treeitem",
            "aria-level": node.depth + 1, tabindex: -1,
            "aria-label": `${name}: ${said(node.value)}, ${share(node.value, root.value)}`,
            transform: `translate(${left.toFixed(2)},${node.depth * ROW})`});
        if (node.parent && !isRest)
            g.setAttribute("data-hue", node.unit < 0 ? 1 : hue(node));
        g.append(drawn("rect", {width: Math.max(1, wide - 1).toFixed(2), height: ROW - 1, rx: 2}));
        const text = label(name, wide);
        if (text) {
            g.append(drawn("text", {x: 4, y: 14.5}));
            g.lastChild.textContent = text;
        }
        g.node = node;
        boxes.set(node, {g, left});
        return g;
    }

    function drawn(tag, attributes) {
        const element = document.createElementNS(d3.namespaces.svg, tag);
        for (const name in attributes)
            element.setAttribute(name, attributes[name]);
        return element;
    }

    // The box that the keyboard is at.
    function mark(node, move) {
        if (boxes.has(current))
            boxes.get(current).g.setAttribute("tabindex", -1);
        current = node;
        boxes.get(node).g.setAttribute("tabindex", 0);
        if (move)
            boxes.get(node).g.focus({preventScroll: true});
    }

    function describe(node) {
        const isRest = node.next !== undefined;
        const all = isRest || node.unit === null || node.unit < 0 ? []
            : [...units().where[node.unit]];
        const where = all.slice(0, 4);
        if (where.length < all.length)
            where.push("...");
        at("flame-says").textContent = `${nameOf(node)}: ${exact(node.bytes)} in ` +
            `${many(node.count, "allocation")}, ${many(node.rows.length, "group")}, ` +
            `${share(node.value, root.value)} of all` +
            [where.join(", "), isRest ? "" : moduleOf(node)].filter(Boolean)
                .map((text) => `; ${text}`).join("");
    }

    // What is said while no box is pointed at.
    function say() {
        const out = [];
        if (hits) {
            const found = d3.sum(root.rows, (row) => hits.stacks[row.stack]
                ? Math.max(0, VALUES[weight](row)) : 0);
            out.push(`found in ${said(found, size)}, ${share(found, root.value)}`);
        }
        if (focus !== root)
            out.push(`zoomed to ${nameOf(focus)}: ${said(focus.value)}, ` +
                `${share(focus.value, root.value)} of all`);
        if (range)
            out.push(`of the ${number(children(focus).length)} below it ` +
                `those from ${number(range[0] + 1)} on`);
        at("flame-says").textContent =
            out.join("; ") || "Each box is a function: point at one for more.";
    }

    function zoom(node) {
        const isRest = node.next !== undefined;
        focus = current = isRest ? node.parent : node;
        range = isRest ? [node.next, Math.min(node.next + AT_ONCE, children(focus).length)] : null;
        within = null;
        draw();
        changed();
    }

    function back() {
        if (range || focus.parent)
            zoom(range ? focus : focus.parent);
    }

    function neighbour(node, step) {
        const level = [...boxes].filter(([one]) => one.depth === node.depth)
            .sort((a, b) => a[1].left - b[1].left).map(([one]) => one);
        return level[level.indexOf(node) + step];
    }

    // The node of an event's box.
    const nodeOf = (event) => {
        const g = event.target.closest && event.target.closest(".box");
        return g ? g.node : null;
    };

    function listen(whenChanged) {
        changed = whenChanged;
        const area = at("flame");
        area.addEventListener("pointerleave", () => root && boxes.size && say());
        area.addEventListener("focusin", () => boxes.has(current) && describe(current));
        area.addEventListener("click", (event) => nodeOf(event) && zoom(nodeOf(event)));
        area.addEventListener("pointerenter", (event) => {
            if (nodeOf(event))
                describe(nodeOf(event));
        }, true);
        at("out").addEventListener("click", back);
        area.addEventListener("keydown", (event) => {
            const keys = {
                ArrowDown: () => [...boxes.keys()].find((node) => node.parent === current),
                ArrowUp: () => current.parent,
                ArrowLeft: () => neighbour(current, -1),
                ArrowRight: () => neighbour(current, 1),
                Home: () => root,
            };
            if (!boxes.size)
                return;
            if (event.key === "Enter" || event.key === " ") {
                zoom(current);
            } else if (event.key === "Escape") {
                back();
            } else if (keys[event.key]) {
                const to = keys[event.key]();
                if (to) {
                    mark(to, true);
                    describe(to);
                }
            } else {
                return;
            }
            event.preventDefault();
        });
    }

    return {
        listen,
        draw,
        // Keeps the zoom where the same box is still there.
        show(rows, from, by) {
            const path = [];
            for (let node = focus; node && node.parent; node = node.parent)
                path.unshift(node.unit);
            weight = by;
            order = from;
            root = newNode(null, null);
            for (const row of rows) {
                if (VALUES[weight](row) > 0)
                    add(root, row);
            }
            focus = root;
            for (const unit of path) {
                const next = children(focus).find((node) => node.unit === unit);
                if (!next) {
                    focus = root;
                    break;
                }
                focus = next;
            }
            current = focus;
            range = within = null;
            draw();
        },
        // What found() returned, or null.
        search(what) {
            hits = what;
            for (const [node, {g}] of boxes)
                g.classList.toggle("hit", node.next === undefined && Boolean(hit(node)));
            if (boxes.size)
                say();
        },
        // To all; draws nothing.
        reset() {
            focus = root;
            range = within = null;
        },
        // The name of the box that is zoomed to, or null; whether a row of show() goes through it.
        zoomed: () => focus && focus !== root ? nameOf(focus) : null,
        through(row) {
            if (!focus || focus === root)
                return true;
            within = within || new Set(focus.rows);
            return within.has(row);
        },
    };
})();
