// Numbers, sizes, times and elements. What a report says gets into the page as text alone.

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function number(value) {
    return value.toLocaleString("en-US");
}

function size(bytes) {
    let unit = 0, scaled = bytes;
    while (scaled >= 1024 && unit < UNITS.length - 1) {
        scaled /= 1024;
        unit++;
    }
    const whole = scaled >= 100 || Number.isInteger(scaled);
    const digits = whole ? 0 : scaled >= 10 ? 1 : 2;
    return `${scaled.toFixed(digits)} ${unit === 0 && bytes === 1 ? "byte" : UNITS[unit]}`;
}

function exact(bytes) {
    return `${number(bytes)} ${bytes === 1 ? "byte" : "bytes"}`;
}

function many(count, one, more = `${one}s`) {
    return `${number(count)} ${count === 1 ? one : more}`;
}

function share(part, whole) {
    if (whole === 0)
        return "0%";
    const percent = 100 * part / whole;
    return percent > 0 && percent < 0.1 ? "<0.1%" : `${percent.toFixed(percent < 10 ? 1 : 0)}%`;
}

function duration(ns) {
    const seconds = ns / 1e9;
    if (seconds < 1e-3)
        return `${(ns / 1e3).toFixed(0)} us`;
    if (seconds < 1)
        return `${(ns / 1e6).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
    if (seconds < 120)
        return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
    const minutes = Math.floor(seconds / 60);
    return minutes < 120 ? `${minutes} min ${Math.floor(seconds % 60)} s`
        : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Of seconds since 1970; 0 where it is not known.
function moment(seconds) {
    if (seconds === 0)
        return "";
    const date = new Date(seconds * 1000);
    return Number.isNaN(date.getTime()) ? `${seconds} s`
        : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

// [0, 1, 2, 5] is 0-2, 5.
function ranges(numbers) {
    const sorted = [...new Set(numbers)].sort((a, b) => a - b), runs = [];
    for (const one of sorted) {
        if (runs.length && one === runs[runs.length - 1][1] + 1)
            runs[runs.length - 1][1] = one;
        else
            runs.push([one, one]);
    }
    return runs.map(([first, last]) => first === last ? `${first}` : `${first}-${last}`).join(", ");
}

// 64K, 1.5 MiB, 4096: bytes; NaN where it is none.
function parseSize(text) {
    const match = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*$/i.exec(text);
    if (!match)
        return text.trim() === "" ? 0 : NaN;
    return Number(match[1]) * 1024 ** " kmgt".indexOf(match[2].toLowerCase() || " ");
}

// An element with attributes, listeners (on...) and children: elements or text.
function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (name.startsWith("on"))
            element.addEventListener(name.slice(2), value);
        else if (value === true)
            element.setAttribute(name, "");
        else if (value !== false && value !== null && value !== undefined)
            element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null).map(
        (child) => child instanceof Node ? child : String(child)));
    return element;
}

function at(id) {
    return document.getElementById(id);
}
