"use strict";
const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const COUNT = 100;
let first = 0, shown = null, timer = null;

function address(path, given = {}) {
  const query = new URLSearchParams(given);
  if (token !== null) query.set("token", token);
  return `api/${path}?${query}`;
}

async function get(path, given) {
  const answer = await fetch(address(path, given));
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

function element(tag, text = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

async function list() {
  const page = await (await get("episodes", { ...Object.fromEntries(new FormData($("filter"))), first, count: COUNT })).json();
  $("name").textContent = page.name;
  $("total").textContent = `${page.total} episodes, from ${first}`;
  $("back").disabled = first === 0;
  $("on").disabled = first + COUNT >= page.total;
  $("rows").replaceChildren(...page.episodes.map((each) => {
    const row = element("tr");
    row.append(element("td", each.index), element("td", each.length), element("td", each.end),
      element("td", each.metadata));
    row.onclick = () => open(each.index).catch(fail);
    return row;
  }));
}

async function open(index) {
  stop();
  const about = await (await get(`episodes/${index}`)).json();
  shown = { index, ...about, plots: [] };
  $("episode").hidden = false;
  $("title").textContent = `episode ${index}`;
  $("fault").textContent = "";
  $("step").max = Math.max(about.length - 1, 0);
  $("step").value = 0;
  $("cameras").replaceChildren(...about.cameras.map((name) => {
    const image = element("img");
    image.alt = name;
    image.onerror = () => get(`episodes/${index}/frame`, { name, step: $("step").value }).catch(fail);
    return image;
  }));
  $("plots").replaceChildren();
  const mine = shown;
  for (const [name, axes] of Object.entries(about.numbers)) {
    try {
      const values = new Float32Array(await (await get(`episodes/${index}/numbers`, { name })).arrayBuffer());
      if (shown !== mine) return;
      const canvas = element("canvas");
      $("plots").append(element("h3", axes ? `${name}: ${axes.join(", ")}` : name), canvas);
      const plot = { canvas, values, width: about.widths[name] };
      mine.plots.push(plot);
    } catch (error) { fail(error); }
  }
  show();
}

function draw({ canvas, values, width }) {
  const pen = canvas.getContext("2d"), places = values.length / width;
  const wide = (canvas.width = canvas.clientWidth), high = (canvas.height = canvas.clientHeight);
  let low = Infinity, top = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { low = Math.min(low, value); top = Math.max(top, value); }
  const x = (place) => (place / Math.max(places - 1, 1)) * wide;
  for (let axis = 0; axis < width; axis++) {
    pen.strokeStyle = `hsl(${(axis * 137) % 360} 70% 50%)`;
    pen.beginPath();
    for (let place = 0; place < places; place++) {
      pen.lineTo(x(place), high - 4 - ((values[place * width + axis] - low) / (top - low || 1)) * (high - 8));
    }
    pen.stroke();
  }
  const at = ($("step").value / Math.max(shown.length - 1, 1)) * wide;
  pen.fillStyle = "#888";
  pen.fillRect(at, 0, 1, high);
}

function show() {
  const step = $("step").value;
  $("at").textContent = `step ${step} of ${shown.length}`;
  for (const image of $("cameras").children) {
    image.src = address(`episodes/${shown.index}/frame`, { name: image.alt, step });
  }
  shown.plots.forEach(draw);
}

function seek() { $("fault").textContent = ""; show(); }

function move(by) {
  const before = $("step").value;
  $("step").value = Number(before) + by;
  if ($("step").value === before) stop(); else seek();
}

function stop() { clearInterval(timer); timer = null; $("play").textContent = "play"; }
function play() {
  if (timer !== null) return stop();
  timer = setInterval(() => move(1), 1000 / (shown.fps || 10));
  $("play").textContent = "pause";
}
function fail(error) { $("fault").textContent = error.message; $("episode").hidden = false; }
function turn(to) { first = Math.max(to, 0); list().catch(fail); }

$("filter").onchange = () => turn(0);
$("filter").onsubmit = (event) => event.preventDefault();
$("back").onclick = () => turn(first - COUNT);
$("on").onclick = () => turn(first + COUNT);
$("step").oninput = seek;
$("play").onclick = play;
document.onkeydown = (event) => {
  if (shown === null || /INPUT|SELECT|BUTTON/.test(event.target.tagName)) return;
  if (event.key === "ArrowRight") move(1);
  if (event.key === "ArrowLeft") move(-1);
  if (event.key === " ") { event.preventDefault(); play(); }
};
turn(0);
