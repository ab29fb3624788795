// What is beside the estimates: numbers at a glance, clients, happenings, warnings, the promise.

import { byId, count, lasted, make, moment, number, percent, say } from "./words.js";

const SPENT = "What all studies have spent on this client's source. If each record enters one release, a study is charged once, with its first release: later releases hold other records and cost nothing more.";
const WEIGHT = "The weight of each site in the estimate. A site that is left out differs from all others: below the coefficients you see why, and what to do.";
const DISTANCE = "How far a site is from the others; about 1 for honest sites.";

function pairs(box, entries) {
  if (box.children.length !== entries.length) {
    box.replaceChildren(...entries.map(([name]) => {
      const pair = make("div");
      pair.append(make("dt", name), make("dd"));
      return pair;
    }));
  }
  entries.forEach(([, value], at) => say(box.children[at].lastChild, value));
}

export function drawNow(now) {
  document.title = `${now.study} – ${now.state}`;
  say(byId("study"), now.study);
  say(byId("title"), now.title);
  byId("status").dataset.status = now.status;
  say(byId("status"), now.state);
  const share = now.progress ?? (now.status === "ready" ? 1 : 0);
  byId("progress").style.width = `${100 * share}%`;
  const method = now.method ? ` (${now.method})` : "";
  const done = `every coefficient has its ${Math.round(100 * now.level)} % interval${method}`;
  say(byId("missing"), [now.reason, now.missing].filter(Boolean).join(" – ") || (now.status === "ready" ? done : ""));
  pairs(byId("tiles"), [
    ["record slots", count(now.records)], ["releases", count(now.releases)], ["clients", count(now.clients)],
    ["model", count(now.model)], ["due to privacy", percent(now.privacy_share)],
    ["largest client", percent(now.largest)], ["missing", count(now.lost)], ["dead letters", count(now.letters)],
  ]);
  const list = byId("told");
  if (list.dataset.text !== now.told.join("\n")) {
    list.dataset.text = now.told.join("\n");
    list.replaceChildren(...now.told.map((line) => make("li", line)));
  }
  drawPromise(now.privacy);
}

function drawPromise(told) {
  const unit = told.unit_records ? `${told.unit}, ${told.unit_records} records at most` : told.unit;
  pairs(byId("promise"), [
    ["epsilon", number(told.epsilon)], ["delta", told.delta ? told.delta.toExponential() : number(told.delta)], ["whose", unit ?? "–"],
    ["hidden change", told.neighbours ?? "–"], ["noise", told.mechanism], ["who may look", told.adversary ?? "–"],
  ]);
  say(byId("guarantee"), told.guarantee);
}

function late(row, clock) {
  if (!row.last) return "–";
  const seconds = clock - row.last;
  if (seconds < -120) return `${lasted(-seconds)} ahead!`;
  return seconds > 2 * 86400 ? moment(row.last) : `${lasted(seconds)} ago`;
}

export function drawAround(around) {
  const warnings = byId("warnings");
  if (warnings.dataset.text !== around.warnings.join("\n")) {
    warnings.dataset.text = around.warnings.join("\n");
    warnings.replaceChildren(...around.warnings.map((line) => make("li", line)));
  }
  drawClients(around.clients, around.clock);
  const newest = around.happenings.slice().reverse();
  const list = byId("happenings");
  const text = JSON.stringify(newest);
  if (list.dataset.text === text) return;
  list.dataset.text = text;
  list.replaceChildren(...newest.map((one) => {
    const item = make("li", "", { "data-kind": one.kind });
    item.append(make("time", moment(one.at)), make("span", one.text));
    return item;
  }));
}

function weight(site) {
  if (!site) return ["–", ""];
  return site.flag ? ["0 % left out", "bad"] : [percent(site.share), ""];
}

function drawClients(clients, clock) {
  const more = clients.count > clients.rows.length ? `, the first ${clients.rows.length} of ${count(clients.count)}` : "";
  const waiting = `${count(clients.waiting)} releases not yet in an estimate${more}`;
  say(byId("clients-said"), clients.count ? waiting : "no release seen yet: it takes `veilstream produce`");
  byId("clients").hidden = !clients.count;
  if (!clients.count) return;
  const budgets = clients.rows.some((row) => row.budget);
  const head = make("tr");
  const sites = clients.rows.some((row) => row.site);
  const names = ["client", "share", "releases", "lag", "last release", "dead letters", ...(budgets ? ["ε spent"] : []), ...(sites ? ["weight", "distance"] : [])];
  const titles = { "ε spent": SPENT, weight: WEIGHT, distance: DISTANCE };
  head.append(...names.map((name) => make("th", name, titles[name] ? { title: titles[name] } : {})));
  const body = clients.rows.map((row) => {
    const line = make("tr");
    const share = make("span");
    const bar = make("span", "", { class: "share" });
    bar.append(make("i"));
    bar.firstChild.style.width = `${100 * row.share}%`;
    share.append(bar, percent(row.share));
    const letters = Object.entries(row.letters).map(([why, times]) => `${times} ${why}`).join(", ");
    const ahead = row.last && clock - row.last < -120;
    const { spent, limit } = row.budget ?? {};
    const cells = [
      [row.name, ""], [share, ""], [count(row.releases), ""], [count(row.lag), ""], [late(row, clock), ahead ? "late" : ""], [letters || "0", letters ? "bad" : ""],
      ...(budgets ? [[row.budget ? `${number(spent)} of ${limit === null ? "no limit" : number(limit)}` : "–", ""]] : []),
      ...(sites ? [weight(row.site), [number(row.site?.distance), ""]] : []),
    ];
    // on a phone each cell has its name beside it
    line.append(...cells.map(([content, kind], at) => {
      const cell = make("td", "", { class: kind, "data-name": names[at] });
      cell.append(content);
      return cell;
    }));
    line.firstChild.title = row.name;
    return line;
  });
  byId("clients").replaceChildren(head, ...body);
}
