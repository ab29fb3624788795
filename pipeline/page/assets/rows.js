// All coefficients: value, interval beside zero, the way they came, and how far they have drifted.

import { before, byId, colour, make, number, say } from "./words.js";

// Small pictures change little from one estimate to the next, and fifty of them cost a core.
const SPARK_MS = 3000;
const SPARK_POINTS = 90;

let rows = [];
const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) visible.add(entry.target);
    else visible.delete(entry.target);
  }
  document.dispatchEvent(new Event("look"));
}, { rootMargin: "300px" });

export function buildRows(names, choose) {
  watcher.disconnect();
  visible.clear();
  const box = byId("rows");
  box.replaceChildren();
  rows = names.map((name, index) => {
    const node = make("button", "", { type: "button", class: "row", "aria-pressed": "false" });
    const title = make("b", name, { title: name });
    const value = make("span", "", { class: "value" });
    const text = make("span");
    const ends = make("small");
    value.append(text, ends);
    const forest = make("span", "", { class: "forest", "aria-hidden": "true" });
    const parts = ["zero", "bar", "then", "dot"].map((kind) => make("i", "", { class: kind }));
    forest.append(...parts);
    const canvas = make("canvas", "", { "aria-hidden": "true" });
    const drift = make("span", "", { class: "drift" });
    node.append(title, value, forest, canvas, drift);
    node.addEventListener("click", () => choose(index));
    box.append(node);
    watcher.observe(node);
    return { node, name, text, ends, parts, canvas, drift, drawn: -Infinity };
  });
}

export function filterRows(words) {
  for (const row of rows) row.node.hidden = !row.name.toLowerCase().includes(words.toLowerCase());
}

export function markRow(index) {
  rows.forEach((row, at) => row.node.setAttribute("aria-pressed", String(at === index)));
}

// The intercept may be far from all others: it alone may be cut off at the edge.
function range(point) {
  const first = point.values.length > 1 ? 1 : 0;
  let low = 0, high = 0;
  for (let at = first; at < point.values.length; at++) {
    low = Math.min(low, point.low[at] ?? point.values[at]);
    high = Math.max(high, point.high[at] ?? point.values[at]);
  }
  const room = 0.06 * (high - low || 1);
  return [low - room, high + room];
}

export function drawRows(points, seconds) {
  if (!points.length || !rows.length) return;
  const now = points[points.length - 1];
  const then = before(points, seconds);
  const [from, to] = range(now);
  const place = (value) => Math.min(100, Math.max(0, (100 * (value - from)) / (to - from)));
  const inks = { line: colour("--accent"), band: colour("--band"), zero: colour("--zero") };
  rows.forEach((row, at) => {
    if (!visible.has(row.node)) return;
    const value = now.values[at], low = now.low[at], high = now.high[at];
    say(row.text, number(value, true));
    say(row.ends, low === null ? "no interval yet" : `${number(low)} … ${number(high)}`);
    row.node.classList.toggle("clear", low !== null && (low > 0 || high < 0));
    const [zero, bar, ghost, dot] = row.parts;
    put(zero, "left", place(0));
    put(dot, "left", place(value));
    put(ghost, "left", place(then.values[at]));
    if (bar.hidden !== (low === null)) bar.hidden = low === null;
    if (low !== null) {
      put(bar, "left", place(low));
      put(bar, "width", place(high) - place(low));
    }
    const change = value - then.values[at];
    say(row.drift, then === now ? "" : `Δ ${number(change, true)}`);
    row.drift.classList.toggle("far", low !== null && then.low[at] !== null && (then.high[at] < low || then.low[at] > high));
    if (performance.now() - row.drawn > SPARK_MS) {
      row.drawn = performance.now();
      spark(row.canvas, points, at, inks);
    }
  });
}

export function forgetSparks() {
  for (const row of rows) row.drawn = -Infinity;
}

// A layout for every row and estimate is dear: less than a fifth of a percent is not seen.
function put(node, name, value) {
  const text = `${value.toFixed(1)}%`;
  if (node.style[name] !== text) node.style[name] = text;
}

function spark(canvas, points, index, inks) {
  const width = canvas.clientWidth * devicePixelRatio;
  const height = canvas.clientHeight * devicePixelRatio;
  if (!width) return;
  if (canvas.width !== Math.round(width)) canvas.width = width;
  if (canvas.height !== Math.round(height)) canvas.height = height;
  const ctx = canvas.getContext("2d");
  ctx.clearRect(0, 0, width, height);
  const step = Math.max(1, Math.floor(points.length / SPARK_POINTS));
  const kept = points.filter((_, at) => at % step === 0 || at === points.length - 1);
  // the noise of the first estimates would flatten all that follows
  const settled = kept.slice(Math.floor(kept.length / 5)).flatMap((p) => [p.values[index], p.low[index] ?? p.values[index], p.high[index] ?? p.values[index]]);
  let low = Math.min(...settled), high = Math.max(...settled);
  if (low === high) { low -= 1; high += 1; }
  const first = kept[0].at, last = kept[kept.length - 1].at;
  const x = (p) => (last === first ? width : ((p.at - first) / (last - first)) * width);
  const y = (value) => height - 2 - ((value - low) / (high - low)) * (height - 4);
  if (low < 0 && high > 0) {
    ctx.fillStyle = inks.zero;
    ctx.fillRect(0, Math.round(y(0)), width, devicePixelRatio);
  }
  const banded = kept.filter((p) => p.low[index] !== null);
  if (banded.length > 1) {
    ctx.fillStyle = inks.band;
    ctx.beginPath();
    banded.forEach((p) => ctx.lineTo(x(p), y(p.high[index])));
    banded.reverse().forEach((p) => ctx.lineTo(x(p), y(p.low[index])));
    ctx.fill();
  }
  ctx.strokeStyle = inks.line;
  ctx.lineWidth = 1.6 * devicePixelRatio;
  ctx.lineJoin = "round";
  ctx.beginPath();
  kept.forEach((p) => ctx.lineTo(x(p), y(p.values[index])));
  ctx.stroke();
}
