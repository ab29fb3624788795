// Numbers and times in words; and the one way in which text gets into the page: as text.

export const byId = (id) => document.getElementById(id);

export function make(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Leaves what is equal alone: the browser lays nothing out anew.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function number(value, sign = false) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e6 || size < 1e-4) text = size.toExponential(2);
  else if (size >= 1000) text = Math.round(size).toLocaleString("en");
  else text = size.toPrecision(3);
  return (value < 0 ? "−" : sign ? "+" : "") + text;
}

export const count = (value) => (value ?? 0).toLocaleString("en");

export const percent = (share) =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function lasted(seconds) {
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  const [unit, length] = UNITS.find(([, size]) => seconds >= 2 * size) ?? UNITS[3];
  return `${Math.floor(seconds / length)} ${unit}`;
}

export function moment(seconds) {
  const date = new Date(1000 * seconds);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString("en-GB") : date.toLocaleDateString("en-GB");
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The newest point that is at least so old; the oldest where none is, or no age is given.
export function before(points, seconds) {
  if (!seconds) return points[0];
  const limit = points[points.length - 1].at - seconds;
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle].at <= limit) low = middle;
    else high = middle - 1;
  }
  return points[low];
}
