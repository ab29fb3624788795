// The page's life: what comes from the server, what is drawn of it and how often, what is clicked.

import { drawAround, drawNow } from "./around.js";
import { drawChart, picture, rebuild, resize } from "./chart.js";
import { buildRows, drawRows, filterRows, forgetSparks, markRow } from "./rows.js";
import { before, byId, lasted, say } from "./words.js";

// More points than twice what the server keeps are thinned here, too.
const MOST = 2400;
// The server sends what comes often up to three times a second; most of a page's cost is painting.
const PAUSE_MS = 200;

// What is beside the coefficients is drawn as often as the server tells it. Each frame paints all
// between the first and the last thing that changed, and the counts are far above the rows.
const BESIDE_MS = 1000;

const stream = { points: [], names: [], now: null, around: null, happenings: [], came: performance.now(), count: 0 };
const view = { chosen: 0, seconds: null, beside: 3600 };

function age() {
  if (stream.now) say(byId("age"), `newest estimate ${lasted((performance.now() - stream.came) / 1000)} ago`);
}

function draw() {
  const { points, now } = stream;
  if (!now) return;
  if (stream.around || byId("status").dataset.status !== now.status) drawBeside();
  const name = stream.names[view.chosen];
  say(byId("chosen"), `${name} over time`);
  drawChart(points, view.chosen, view.seconds, stream.happenings);
  drawRows(points, view.beside);
  const old = points[points.length - 1].at - before(points, view.beside).at;
  const oldest = view.beside && old < view.beside ? ", the oldest kept" : "";
  say(byId("legend"), `● estimate, ━ ${Math.round(100 * now.level)} % interval (filled where it leaves 0 out), ┃ ${lasted(old)} before${oldest}; Δ since then, marked where the interval of then and that of now do not overlap`);
  document.body.dataset.points = String(stream.count);
}

function drawBeside() {
  age();
  if (stream.now) drawNow(stream.now);
  if (stream.around) drawAround(stream.around);
  stream.around = null;
}

let due = false;
let last = 0;
function soon() {
  if (due) return;
  due = true;
  // a page in the background draws when it is looked at again: browsers stop its frames
  setTimeout(() => requestAnimationFrame(() => { due = false; last = performance.now(); draw(); }), Math.max(0, last + PAUSE_MS - performance.now()));
}

function take(data, whole) {
  if (whole) {
    stream.points = [];
    forgetSparks();
  }
  if (data.now && data.now.names.join("\n") !== stream.names.join("\n")) {
    stream.names = data.now.names;
    if (!whole) stream.points = [];
    // the intercept says least: the first slope is what people came for
    view.chosen = stream.names.length > 1 ? 1 : 0;
    buildRows(stream.names, choose);
    filterRows(byId("filter").value);
    markRow(view.chosen);
  }
  stream.points.push(...data.points);
  stream.count += data.points.length;
  if (stream.points.length > MOST) {
    const end = stream.points.length - 1;
    stream.points = stream.points.filter((_, at) => at % 2 === 0 || at === end);
  }
  if (!data.now) {
    byId("status").dataset.status = "";
    say(byId("status"), "no estimate yet");
  }
  document.body.classList.toggle("empty", !data.now);
  if (data.now) {
    stream.now = data.now;
    if (data.points.length && !whole) stream.came = performance.now();
  }
  soon();
}

function choose(index) {
  view.chosen = index;
  markRow(index);
  soon();
}

function connect() {
  const events = new EventSource("events");
  events.addEventListener("history", (event) => take(JSON.parse(event.data), true));
  events.addEventListener("estimate", (event) => take(JSON.parse(event.data), false));
  events.addEventListener("around", (event) => {
    const around = JSON.parse(event.data);
    const more = around.happenings.length !== stream.happenings.length;
    stream.happenings = around.happenings;
    // by the server's count: clocks of this browser and of workers may be anything
    if (around.age !== null) stream.came = performance.now() - 1000 * around.age;
    // a stream that has ended says so without another estimate
    if (stream.now) stream.now.missing = around.missing;
    stream.around = around;
    if (more) soon();
    // where estimates come often, in the frame of the next one
    if (performance.now() - last >= BESIDE_MS) drawBeside();
  });
  events.addEventListener("error", () => {
    byId("status").dataset.status = "away";
    say(byId("status"), "page server away");
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
}

// Ages grow without estimates; where some come, drawing them has done it.
setInterval(() => {
  if (performance.now() - last >= BESIDE_MS) age();
}, BESIDE_MS);

byId("spans").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  view.seconds = Number(button.dataset.seconds) || null;
  for (const one of byId("spans").children) one.setAttribute("aria-pressed", String(one === button));
  soon();
});
byId("beside").addEventListener("change", (event) => {
  view.beside = Number(event.target.value) || null;
  soon();
});
byId("filter").addEventListener("input", (event) => {
  filterRows(event.target.value);
  soon();
});
byId("png").addEventListener("click", () => {
  const { now, names } = stream;
  if (now) picture(`${now.study}: ${names[view.chosen]}`, `${now.status}, ${now.records} record slots; ${now.privacy.guarantee}`, `${now.study}-${view.chosen}.png`);
});
addEventListener("resize", () => { resize(); soon(); });
document.addEventListener("look", soon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { rebuild(); soon(); });
connect();
