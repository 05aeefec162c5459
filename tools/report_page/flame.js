// The call stacks as boxes below each other: a box is as wide as what was allocated in it. Boxes
// that would be too narrow to be seen are one, the rest, which opens like any other.

const flame = (() => {
    const ROW = 21, LETTER = 6.65, THINNEST = 3, MORE = 74, AT_ONCE = 40;
    // What is zoomed to: a box, and of those right below it some, [first, end], or all, null.
    let root = null, focus = null, range = null, current = null;
    let query = "", weight = "bytes", changed = () => {};
    const boxes = new Map();

    function newNode(name, module, key, parent) {
        return {name, module, key, parent, bytes: 0, count: 0, groups: 0, own: 0,
            children: new Map(), where: new Set()};
    }

    // Rows of the table as a tree; a node counts what went through it, `own` what ended in it.
    function tree(rows, order) {
        const top = newNode("all", "", "", null);
        for (const row of rows) {
            let node = top;
            const path = pathOf(row.stack);
            const add = () => {
                node.bytes += row.bytes;
                node.count += row.count;
                node.groups++;
            };
            add();
            for (const step of order === "site" ? path.slice().reverse() : path) {
                const key = `${step.name}\n${step.module}`;
                let child = node.children.get(key);
                if (!child) {
                    child = newNode(step.name, step.module, `${node.key}\n\n${key}`, node);
                    node.children.set(key, child);
                }
                node = child;
                if (step.file)
                    node.where.add(step.line === "" ? step.file : `${step.file}:${step.line}`);
                add();
            }
            node.own += row[weight];
            row.node = node;
        }
        return top;
    }

    function layout(top) {
        const laid = d3.hierarchy(top, (node) => [...node.children.values()])
            .sum((node) => node.own).sort((a, b) => b.value - a.value);
        laid.each((node) => { node.data.box = node; });
        return d3.partition()(laid);
    }

    const hit = (node) => query !== "" && node.parent !== null &&
        [node.name, node.module, ...node.where].some((text) => text.toLowerCase().includes(query));

    // Boxes that can be seen at this zoom: [node, left, width], from the top; a rest among them has
    // the number of its first, as the widest come first.
    function visible(width) {
        const seen = focus.ancestors().reverse().map((node) => [node, 0, width]), waiting = [focus];
        const [first, end] = range || [0, (focus.children || []).length];
        const left = range ? focus.children[first].x0 : focus.x0;
        const right = range ? focus.children[end - 1].x1 : focus.x1;
        const space = range && end < focus.children.length ? width - MORE : width;
        const scale = space / Math.max(1e-12, right - left), place = (x) => (x - left) * scale;
        while (waiting.length) {
            const node = waiting.pop(), all = node.children || [];
            const below = node === focus ? all.slice(first, end) : all;
            const wide = below.filter((child) => (child.x1 - child.x0) * scale >= THINNEST);
            for (const child of wide)
                seen.push([child, place(child.x0), (child.x1 - child.x0) * scale]);
            waiting.push(...wide);
            const next = (node === focus ? first : 0) + wide.length;
            if (next < all.length) {
                const after = wide.length ? wide[wide.length - 1].x1 : all[next].x0;
                const until = node === focus ? width : place(node.x1);
                seen.push(restOf(node, next, place(after), until));
            }
        }
        return seen;
    }

    // What is right below a box from its next-th on, as one.
    function restOf(parent, next, left, right) {
        const all = parent.children.slice(next);
        const sum = (key) => d3.sum(all, (node) => node.data[key]);
        const data = {name: `${number(all.length)} more`, bytes: sum("bytes"), count: sum("count"),
            groups: sum("groups"), module: "", where: new Set(), parent: parent.data};
        return [{parent, next, depth: parent.depth + 1, x0: all[0].x0, data}, left, right - left];
    }

    function label(name, width) {
        const letters = Math.floor((width - 8) / LETTER);
        if (letters < 3)
            return "";
        return name.length <= letters ? name : `${name.slice(0, letters - 1)}\u2026`;
    }

    const amount = (node) =>
        weight === "bytes" ? exact(node.bytes) : many(node.count, "allocation");
    const whole = () => root.data[weight];

    function hue(node) {
        let hash = 0;
        for (const letter of node.module || node.name)
            hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
        return hash % 7;
    }

    function draw() {
        const area = at("flame"), width = Math.max(280, area.clientWidth);
        const held = area.contains(document.activeElement);
        area.textContent = "";
        boxes.clear();
        if (!root || whole() === 0) {
            area.append(make("p", {class: "none"}, "Nothing is listed here."));
            at("flame-says").textContent = "";
            return;
        }
        const seen = visible(width), depth = d3.max(seen, ([node]) => node.depth) + 1;
        const svg = d3.select(area).append("svg").attr("width", width).attr("height", depth * ROW)
            .attr("role", "tree").attr("aria-label", "Call stacks, by what they allocated");
        for (const one of seen)
            drawBox(svg, ...one);
        mark(boxes.has(current) ? current : focus, held);
        at("out").disabled = focus === root && !range;
        say();
    }

    function drawBox(svg, node, left, wide) {
        const {data} = node, isRest = node.next !== undefined;
        const g = svg.append("g").attr("class", isRest ? "box rest" : "box")
            .classed("root", !data.parent).classed("above", node.depth < focus.depth)
            .classed("hit", !isRest && hit(data))
            .attr("data-hue", data.parent && !isRest ? hue(data) : null)
            .attr("role", "treeitem").attr("aria-level", node.depth + 1).attr("tabindex", -1)
            .attr("aria-label", `${data.name}: ${amount(data)}, ${share(data[weight], whole())}`)
            .attr("transform", `translate(${left},${node.depth * ROW})`);
        g.append("rect").attr("width", Math.max(1, wide - 1)).attr("height", ROW - 1).attr("rx", 2);
        const text = label(data.name, wide);
        if (text)
            g.append("text").attr("x", 4).attr("y", 14.5).text(text);
        g.node().addEventListener("click", () => zoom(node));
        g.node().addEventListener("pointerenter", () => describe(node));
        boxes.set(node, g.node());
    }

    // The box that the keyboard is at.
    function mark(node, move) {
        if (boxes.has(current))
            boxes.get(current).setAttribute("tabindex", -1);
        current = node;
        boxes.get(node).setAttribute("tabindex", 0);
        if (move)
            boxes.get(node).focus({preventScroll: true});
    }

    function describe(node) {
        const {data} = node, where = [...data.where].slice(0, 4);
        if (where.length < data.where.size)
            where.push("...");
        at("flame-says").textContent = `${data.name}: ${exact(data.bytes)} in ` +
            `${many(data.count, "allocation")}, ${many(data.groups, "group")}, ` +
            `${share(data[weight], whole())} of all` +
            (where.length ? `; ${where.join(", ")}` : "") + (data.module ? `; ${data.module}` : "");
    }

    // What is said while no box is pointed at.
    function say() {
        const said = [];
        if (query) {
            let found = 0;
            const waiting = [root];
            while (waiting.length) {
                const node = waiting.pop();
                if (hit(node.data))
                    found += node.data[weight];
                else if (node.children)
                    waiting.push(...node.children);
            }
            said.push(`found in ${weight === "bytes" ? size(found) : many(found, "allocation")}, ` +
                `${share(found, whole())}`);
        }
        if (focus !== root)
            said.push(`zoomed to ${focus.data.name}: ${amount(focus.data)}, ` +
                `${share(focus.data[weight], whole())} of all`);
        if (range)
            said.push(`of the ${number(focus.children.length)} below it ` +
                `those from ${number(range[0] + 1)} on`);
        at("flame-says").textContent =
            said.join("; ") || "Each box is a function: point at one for more.";
    }

    function zoom(node) {
        const isRest = node.next !== undefined;
        focus = current = isRest ? node.parent : node;
        range = isRest ? [node.next, Math.min(node.next + AT_ONCE, focus.children.length)] : null;
        draw();
        changed();
    }

    function back() {
        if (range || focus.parent)
            zoom(range ? focus : focus.parent);
    }

    function neighbour(node, step) {
        const level = [...boxes.keys()].filter((one) => one.depth === node.depth)
            .sort((a, b) => a.x0 - b.x0);
        return level[level.indexOf(node) + step];
    }

    function listen(whenChanged) {
        changed = whenChanged;
        at("flame").addEventListener("pointerleave", () => root && say());
        at("flame").addEventListener("focusin", () => boxes.has(current) && describe(current));
        at("out").addEventListener("click", back);
        at("flame").addEventListener("keydown", (event) => {
            const keys = {
                ArrowDown: () => [...boxes.keys()].find((node) => node.parent === current),
                ArrowUp: () => current.parent,
                ArrowLeft: () => neighbour(current, -1),
                ArrowRight: () => neighbour(current, 1),
                Home: () => root,
            };
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
        show(rows, order, by) {
            const was = focus && focus.data.key;
            weight = by;
            root = layout(tree(rows, order));
            focus = current = root;
            range = null;
            if (was)
                root.each((node) => { if (node.data.key === was) focus = current = node; });
            draw();
        },
        search(text) {
            query = text;
            draw();
        },
        reset() {
            if (focus !== root || range)
                zoom(root);
        },
        // The name of the box that is zoomed to, or null; whether a row of show() goes through it.
        zoomed: () => focus && focus !== root ? focus.data.name : null,
        through(row) {
            if (!focus || focus === root)
                return true;
            let {node} = row;
            while (node && node !== focus.data)
                node = node.parent;
            return Boolean(node);
        },
    };
})();
