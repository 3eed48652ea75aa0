"use strict";
const STATS_MS = 1000, SPREAD_MS = 3000, MAX_POINTS = 120, MAX_CLIENTS = 20;
const SPREADS = {
  priority: "priorities", age: "age: inserts since an item came",
  staleness: "staleness: inserts and updates since its priority was set", draws: "draws of an item",
};
let before = null, spreads = {};
const cards = new Map();

const whole = (value) => Math.round(value).toLocaleString("en");
const lasting = (seconds) => seconds < 120 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`
  : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;

// a card a table, made once

function cardOf(name) {
  if (cards.has(name)) return cards.get(name);
  const card = { root: element("section", "", "card"), points: [], values: {}, canvases: {} };
  card.head = element("p");
  card.root.append(element("h2", name), card.head);
  const facts = element("dl");
  for (const key of ["items", "inserts/s", "samples/s", "samples an insert", "limiter", "pending"]) {
    card.values[key] = element("dd");
    facts.append(element("dt", key), card.values[key]);
  }
  card.canvases.rates = element("canvas", "", "curves");
  card.legend = element("div", "", "legend");
  for (const [text, color] of [["inserts/s", "hsl(210 70% 48%)"], ["samples/s, of the last two minutes", "hsl(30 85% 48%)"]]) {
    const label = element("span"), swatch = element("i");
    swatch.style.background = color;
    label.append(swatch, text);
    card.legend.append(label);
  }
  const bars = element("div", "", "spreads");
  for (const [key, text] of Object.entries(SPREADS)) {
    const figure = element("figure");
    card.canvases[key] = element("canvas", "", "bars");
    card.values[key] = element("small");
    figure.append(element("figcaption", text), card.canvases[key], card.values[key]);
    bars.append(figure);
  }
  card.read = element("p");
  card.root.append(facts, card.canvases.rates, card.legend, bars, card.read);
  cards.set(name, card);
  $("tables").append(card.root);
  return card;
}

function show(now) {
  const seconds = before ? Math.max(now.uptime - before.uptime, 1e-9) : 0;
  const rate = (value, old) => seconds ? Math.max(value - old, 0) / seconds : 0;
  $("name").textContent = now.address;
  $("server").textContent = `${now.store}, up ${lasting(now.uptime)}, ${whole(now.steps)} steps sent to it`;
  for (const [name, info] of Object.entries(now.tables)) {
    const card = cardOf(name), old = (before && before.tables[name] || info).counts;
    const inserts = rate(info.counts.inserts, old.inserts), samples = rate(info.counts.samples, old.samples);
    if (seconds) card.points.push([inserts, samples]);
    card.points.splice(0, card.points.length - MAX_POINTS);
    card.head.textContent = `drawn ${info.sampler}, removed ${info.remover}`;
    card.values.items.textContent = `${whole(info.size)} of ${whole(info.max_size)}`;
    card.values["inserts/s"].textContent = whole(inserts);
    card.values["samples/s"].textContent = whole(samples);
    card.values["samples an insert"].textContent = info.samples_per_insert === null ? "none yet" : round(info.samples_per_insert);
    card.values.limiter.textContent = limiterOf(info);
    card.values.pending.textContent = `${whole(info.num_pending)} items wait for the limiter`;
    drawRates(card);
  }
  for (const [name, card] of cards) if (!(name in now.tables)) { card.root.remove(); cards.delete(name); }
  const writers = Object.fromEntries((before ? before.writers : []).map((each) => [each.name, each.steps]));
  fill("writers", now.writers, (each) => [each.name, whole(each.steps), whole(rate(each.steps, writers[each.name] ?? each.steps)),
    whole(each.episodes), each.held_seconds ? `held by a limiter, ${lasting(each.held_seconds)}` : each.is_connected ? "connected" : "away"]);
  const loaders = Object.fromEntries((before ? before.loaders : []).map((each) => [each.id, each.rows]));
  fill("loaders", now.loaders, (each) => [each.peer, each.table, whole(each.rows), whole(rate(each.rows, loaders[each.id] ?? each.rows)),
    each.waits_seconds ? `waits for a limiter, ${lasting(each.waits_seconds)}` : "connected"]);
  before = now;
}

function limiterOf(info) {
  const { min_diff, max_diff, name } = info.limiter;
  if (min_diff === null && max_diff === null) return name;
  return `${name}: diff ${round(info.diff)} of ${min_diff === null ? "any" : round(min_diff)} to ${max_diff === null ? "any" : round(max_diff)}`;
}

function fill(id, found, cells) {
  $(id).hidden = found.length === 0;
  const rows = found.slice(0, MAX_CLIENTS).map((each) => {
    const row = element("tr");
    row.append(...cells(each).map((text) => element("td", text)));
    return row;
  });
  if (found.length > MAX_CLIENTS) { const row = element("tr"); row.append(element("td", `and ${found.length - MAX_CLIENTS} more`)); rows.push(row); }
  $(id).querySelector("tbody").replaceChildren(...rows);
}

function drawRates({ canvases: { rates: canvas }, points }) {
  const pen = canvas.getContext("2d"), wide = (canvas.width = canvas.clientWidth), high = (canvas.height = canvas.clientHeight);
  const top = Math.max(1e-9, ...points.flat());
  [0, 1].forEach((line) => {
    pen.strokeStyle = line ? "hsl(30 85% 48%)" : "hsl(210 70% 48%)";
    pen.lineWidth = 1.5;
    pen.beginPath();
    points.forEach((point, place) => {
      pen.lineTo(wide - (points.length - 1 - place) * (wide / (MAX_POINTS - 1)), high - 3 - (point[line] / top) * (high - 16));
    });
    pen.stroke();
  });
  pen.fillStyle = "#888";
  if (points.length) pen.fillText(`${whole(top)}/s`, 2, 10);
}

function drawSpreads() {
  for (const [name, card] of cards) {
    const found = spreads[name];
    if (!found) continue;
    for (const key of Object.keys(SPREADS)) drawBars(card.canvases[key], card.values[key], found[key]);
    card.read.textContent = found.num_read < found.num_items ? `of ${whole(found.num_read)} evenly spaced items` : "";
  }
}

function drawBars(canvas, label, { low, high, mean, counts }) {
  const pen = canvas.getContext("2d");
  canvas.width = canvas.clientWidth;
  canvas.height = canvas.clientHeight;
  const top = Math.max(...counts, 1), bar = canvas.width / counts.length;
  pen.fillStyle = "hsl(210 70% 48%)";
  counts.forEach((count, place) => {
    const size = count ? Math.max(1, (count / top) * canvas.height) : 0;
    pen.fillRect(place * bar, canvas.height - size, Math.max(bar - 1, 1), size);
  });
  label.textContent = `${round(low)} to ${round(high)}, mean ${round(mean)}`;
}

async function look() {
  if (!document.hidden) {
    try {
      show(await (await get("stats")).json());
      $("wrong").textContent = "";
    } catch (error) { $("wrong").textContent = error.message; before = null; }
  }
  setTimeout(look, STATS_MS);
}

async function spread() {
  if (!document.hidden) {
    try { spreads = await (await get("spread")).json(); drawSpreads(); } catch { /* the other look says why */ }
  }
  setTimeout(spread, SPREAD_MS);
}

window.onresize = () => { for (const card of cards.values()) drawRates(card); drawSpreads(); };
look().then(spread);
