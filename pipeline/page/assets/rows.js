// All coefficients: value, interval beside zero, the way they came, and how far they have drifted.

import { before, byId, make, number, say } from "./words.js";

// A small picture is drawn anew when it has come a pixel further: fifty with each estimate cost a core.
const SPARK_MS = [3000, 15000];
const SPARK_POINTS = 90;
// As the page's drawing has them. It is of paths: a canvas is a layer that each frame puts together anew.
const [WIDE, HIGH] = [280, 34];

let rows = [];
const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) visible.add(entry.target);
    else visible.delete(entry.target);
  }
  document.dispatchEvent(new Event("look"));
}, { rootMargin: "100px" });

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
    const picture = byId("drawing").content.firstElementChild.cloneNode(true);
    const drift = make("span", "", { class: "drift" });
    node.append(title, value, forest, picture, drift);
    node.addEventListener("click", () => choose(index));
    box.append(node);
    watcher.observe(node);
    return { node, name, text, ends, parts, picture, drift, due: -Infinity };
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
    if (performance.now() > row.due) {
      spark(row.picture, points, at);
      const pixel = (1000 * (now.at - points[0].at)) / WIDE;
      row.due = performance.now() + Math.min(SPARK_MS[1], Math.max(SPARK_MS[0], pixel));
    }
  });
}

export function forgetSparks() {
  for (const row of rows) row.due = -Infinity;
}

// A layout for every row and estimate is dear: less than a fifth of a percent is not seen.
function put(node, name, value) {
  const text = `${value.toFixed(1)}%`;
  if (node.style[name] !== text) node.style[name] = text;
}

// In units of its own, stretched to the row by the browser: it knows no widths and no colours.
function spark(picture, points, index) {
  const step = Math.max(1, Math.floor(points.length / SPARK_POINTS));
  const kept = points.filter((_, at) => at % step === 0 || at === points.length - 1);
  // the noise of the first estimates would flatten all that follows
  const settled = kept.slice(Math.floor(kept.length / 5)).flatMap((p) => [p.values[index], p.low[index] ?? p.values[index], p.high[index] ?? p.values[index]]);
  let low = Math.min(...settled), high = Math.max(...settled);
  if (low === high) { low -= 1; high += 1; }
  const first = kept[0].at, last = kept[kept.length - 1].at;
  const at = (p, value) => `${(last === first ? WIDE : ((p.at - first) / (last - first)) * WIDE).toFixed(1)},${height(value)}`;
  const height = (value) => (HIGH - 2 - ((value - low) / (high - low)) * (HIGH - 4)).toFixed(1);
  const line = (ends) => (ends.length ? `M${ends.join("L")}` : "");
  const banded = kept.filter((p) => p.low[index] !== null);
  const edge = [...banded.map((p) => at(p, p.high[index])), ...banded.reverse().map((p) => at(p, p.low[index]))];
  const [zero, band, way] = picture.children;
  zero.setAttribute("d", low < 0 && high > 0 ? `M0,${height(0)}H${WIDE}` : "");
  band.setAttribute("d", line(edge));
  way.setAttribute("d", line(kept.map((p) => at(p, p.values[index]))));
}
