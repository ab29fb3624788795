// One coefficient over time with its interval, and the picture of it for a download.

import { byId, colour, moment, number, say } from "./words.js";

// Points of a line: more are not seen, and each is drawn anew with every estimate.
const MOST = 400;
// The line is drawn anew when it has come a pixel further, or after so long.
const STILL_MS = 5000;

let plot = null;
let marks = [];
let shown = null;
let drawn = -Infinity;
let newest = null;

// Dashed lines where something happened that an estimate alone does not show.
function drawMarks(chart) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.lineWidth = devicePixelRatio;
  for (const mark of marks) {
    const x = Math.round(chart.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour(mark.kind === "recovery" || mark.kind === "rebuilt" ? "--good" : "--wait");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function drawZero(chart) {
  const { ctx, bbox } = chart;
  const y = Math.round(chart.valToPos(0, "y", true));
  if (y < bbox.top || y > bbox.top + bbox.height) return;
  ctx.strokeStyle = colour("--zero");
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
}

function read(chart) {
  const [times, values, high, low] = chart.data;
  const at = chart.cursor.idx ?? times.length;
  // where nobody points at the line, what has come since it was drawn
  const [time, value, from, to] = at < times.length ? [times[at], values[at], low[at], high[at]] : newest;
  const ends = from === null ? "no interval yet" : `[${number(from)}, ${number(to)}]`;
  say(byId("readout"), `${moment(time)}: ${number(value, true)}, ${ends}`);
}

function axis(extra) {
  const ink = colour("--soft");
  return {
    stroke: ink, font: "12px system-ui, 'Open Sans', sans-serif", ticks: { show: false },
    grid: { stroke: colour("--line"), width: 1 }, ...extra,
  };
}

const PAD = (value) => String(value).padStart(2, "0");

// Of a day the hours; seconds where ticks are that close.
function times(_, splits, __, ___, step) {
  return splits.map((at) => {
    const date = new Date(1000 * at);
    if (step >= 86400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    const hours = `${PAD(date.getHours())}:${PAD(date.getMinutes())}`;
    return step < 60 ? `${hours}:${PAD(date.getSeconds())}` : hours;
  });
}

// The noise of the first estimates would flatten all that follows: a fifth of them may be cut off.
function settled(chart) {
  const [, values, high, low] = chart.data;
  const from = values.length > 30 ? Math.floor(values.length / 5) : 0;
  let least = Infinity, most = -Infinity;
  for (let at = from; at < values.length; at++) {
    least = Math.min(least, low[at] ?? values[at]);
    most = Math.max(most, high[at] ?? values[at]);
  }
  const room = 0.12 * (most - least) || 1;
  return [least - room, most + room];
}

function build(data) {
  const box = byId("chart");
  plot?.destroy();
  plot = new uPlot({
    width: box.clientWidth, height: box.clientHeight,
    scales: { x: { time: true }, y: { range: settled } },
    axes: [axis({ space: 90, size: 30, values: times }), axis({ size: 58, values: (_, splits) => splits.map((v) => (v === 0 ? "0" : `${v < 0 ? "−" : ""}${+Math.abs(v).toPrecision(6)}`)) })],
    series: [
      {},
      { stroke: colour("--accent"), width: 2.2, points: { show: false }, spanGaps: false },
      { stroke: colour("--bar"), width: 1, points: { show: false } },
      { stroke: colour("--bar"), width: 1, points: { show: false } },
    ],
    bands: [{ series: [2, 3], fill: colour("--band") }],
    cursor: { drag: { x: true, y: false }, points: { show: false } },
    legend: { show: false },
    hooks: { drawAxes: [drawZero], draw: [drawMarks], setCursor: [read] },
  }, data, box);
}

export function drawChart(points, index, seconds, happenings) {
  if (!points.length) return;
  const last = points[points.length - 1];
  const from = seconds ? last.at - seconds : -Infinity;
  newest = [last.at, last.values[index], last.low[index], last.high[index]];
  const chosen = `${index} ${seconds}`;
  if (plot && shown === chosen) {
    const pixel = (1000 * (last.at - Math.max(from, points[0].at))) / plot.width;
    // somebody who looks at a part of it keeps it
    if (plot.select.width > 0 || performance.now() - drawn < Math.min(pixel, STILL_MS)) {
      read(plot);
      return;
    }
  }
  shown = chosen;
  drawn = performance.now();
  marks = happenings.filter((one) => !["status", "letters"].includes(one.kind));
  const inside = points.filter((point) => point.at >= from);
  const step = Math.ceil(inside.length / MOST);
  const kept = inside.filter((_, at) => at % step === 0 || at === inside.length - 1);
  const data = [
    kept.map((p) => p.at), kept.map((p) => p.values[index]), kept.map((p) => p.high[index]), kept.map((p) => p.low[index]),
  ];
  if (plot) plot.setData(data);
  else build(data);
  read(plot);
}

export function rebuild() {
  if (plot) build(plot.data);
}

export function resize() {
  const box = byId("chart");
  plot?.setSize({ width: box.clientWidth, height: box.clientHeight });
}

export function picture(title, words, name) {
  if (!plot) return;
  const source = plot.ctx.canvas;
  const scale = devicePixelRatio;
  const canvas = document.createElement("canvas");
  canvas.width = source.width + 32 * scale;
  canvas.height = source.height + 92 * scale;
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = colour("--card");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(source, 16 * scale, 52 * scale);
  ctx.fillStyle = colour("--ink");
  ctx.font = `600 ${17 * scale}px system-ui, 'Open Sans', sans-serif`;
  ctx.fillText(title, 16 * scale, 34 * scale);
  ctx.fillStyle = colour("--soft");
  ctx.font = `${12 * scale}px system-ui, 'Open Sans', sans-serif`;
  ctx.fillText(words, 16 * scale, canvas.height - 16 * scale, canvas.width - 32 * scale);
  canvas.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  });
}
