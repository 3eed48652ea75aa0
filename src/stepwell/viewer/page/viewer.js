"use strict";
const COUNT = 100, REFRESH_MS = 3000;
const isNarrow = matchMedia("(max-width: 800px)");
// figures whose step the browser decoded itself
let painted = new Map();
let isEditable = false, first = 0, shown = null, isPlaying = false, listed = "", asked = 0;

const chosen = () => Object.fromEntries(new FormData($("filter")));

// metadata as the filter takes them
const told = (json) => Object.entries(JSON.parse(json))
  .map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");

// the list

async function list() {
  const mine = ++asked;
  const text = await (await get("episodes", { ...chosen(), first, count: COUNT })).text();
  if (mine !== asked) return;
  $("wrong").textContent = "";
  if (text === listed) return;
  listed = text;
  const page = JSON.parse(text);
  $("name").textContent = page.name;
  $("total").textContent = `${page.total} episodes, from ${first}`;
  $("lost").textContent = page.lost_marks ? `marks of episodes that are not here, deleted or left out by options: ${page.lost_marks}` : "";
  $("back").disabled = first === 0;
  $("on").disabled = first + COUNT >= page.total;
  $("rows").replaceChildren(...page.episodes.map((each) => rowOf(each, page.camera)));
  highlight();
  isEditable = page.edit;
  $("marking").hidden = !isEditable || shown === null;
  if (shown !== null && $("spread").checked) spread();
  if ($("selection").open) select().catch(fail);
}

function rowOf(each, camera) {
  const row = element("tr"), thumbnail = element("td");
  row.dataset.index = each.index;
  row.tabIndex = 0;
  if (camera !== null && each.length > 0) {
    const image = element("img");
    image.loading = "lazy";
    image.alt = "";
    image.src = address(`episodes/${each.index}/frame`, { name: camera, step: 0, thumbnail: 1 });
    thumbnail.append(image);
  }
  const end = element("td", `${each.end} `);
  end.append(element("span", each.mark, `mark ${each.mark}`));
  row.append(thumbnail, element("td", each.index), element("td", each.length), end, element("td", told(each.metadata)));
  // where the list is above the episode and not beside it, the episode would come out of sight
  row.onclick = () => open(each.index).then(() => { if (isNarrow.matches) $("episode").scrollIntoView(); }).catch(fail);
  row.onkeydown = (event) => { if (event.key === "Enter") row.onclick(); };
  return row;
}

function highlight() {
  for (const row of $("rows").children) {
    row.classList.toggle("shown", shown !== null && Number(row.dataset.index) === shown.index);
  }
}

// an episode

async function open(index, step = 0) {
  stop();
  const about = await (await get(`episodes/${index}`)).json();
  shown = { index, features: [], plots: [] };
  describe(about);
  highlight();
  $("episode").hidden = false;
  $("fault").textContent = "";
  $("step").max = Math.max(about.length - 1, 0);
  $("step").value = step;
  $("cameras").replaceChildren(...(about.length ? about.cameras : []).map(cameraOf));
  $("plots").replaceChildren();
  const mine = shown;
  for (const [name, axes] of Object.entries(about.numbers)) {
    try {
      const values = new Float32Array(await (await get(`episodes/${index}/numbers`, { name })).arrayBuffer());
      if (shown !== mine) return;
      mine.features.push({ name, values, width: about.widths[name], axes });
    } catch (error) { fail(error); }
  }
  arrange();
  show();
}

function describe(about) {
  Object.assign(shown, about);
  const colon = about.end || about.mark ? ":" : "";
  $("title").replaceChildren(`episode ${shown.index}${colon} ${about.end} `, element("span", about.mark, `mark ${about.mark}`));
  $("facts").textContent = [about.note, told(about.metadata)].filter(Boolean).join(" \u00b7 ");
  $("marking").hidden = !isEditable;
  if (document.activeElement !== $("note")) $("note").value = about.note;
  for (const button of $("marking").querySelectorAll("[value]")) {
    button.setAttribute("aria-pressed", about.mark === button.value);
  }
}

// marks, and what is done with the episodes that a filter lets through

async function mark(change) {
  if (!isEditable || shown === null) return;
  const mine = shown;
  const about = await send(`episodes/${mine.index}/mark`, {}, { id: mine.id, ...change });
  if (shown === mine) describe(about);
  await list();
}

const toggle = (value) => mark({ mark: shown.mark === value ? "" : value }).catch(fail);

async function select() {
  const found = await (await get("selection", chosen())).json();
  $("saving").hidden = !found.can_save;
  $("commands").replaceChildren(element("p", `${found.num} episodes`), ...Object.entries(found.commands).flatMap(([what, text]) => {
    const copy = element("button", "copy"), line = element("pre", text);
    copy.onclick = () => navigator.clipboard?.writeText(text).then(() => { copy.textContent = "copied"; });
    const head = element("p", `${what} `);
    head.append(copy);
    return [head, line];
  }));
}

function cameraOf(name) {
  const figure = element("figure"), image = element("img");
  image.alt = name;
  const canvas = element("canvas");
  canvas.hidden = true;
  image.onload = () => { figure.classList.remove("damaged"); canvas.hidden = true; };
  image.onerror = () => {
    figure.classList.add("damaged");
    canvas.hidden = true;
    const mine = shown, step = $("step").value;
    get(`episodes/${mine.index}/frame`, { name, step }).catch((error) => {
      if (shown === mine && $("step").value === step) fail(error);
    });
  };
  figure.append(image, canvas, element("figcaption", name));
  return figure;
}

function arrange() {
  const isPaired = (each) => $("overlaid").checked && /state|action/.test(each.name);
  const groups = shown.features.filter((each) => !isPaired(each)).map((each) => [each]);
  const paired = shown.features.filter(isPaired);
  if (paired.length) groups.unshift(paired);
  shown.plots = groups.map((features) => ({ features, canvas: element("canvas", "", "curves"), bars: element("div", "", "spreadings") }));
  $("plots").replaceChildren(...shown.plots.flatMap((plot) => {
    plot.canvas.onpointerdown = plot.canvas.onpointermove = (event) => {
      if (event.buttons !== 1) return;
      const place = event.offsetX / plot.canvas.clientWidth;
      $("step").value = Math.round(place * (shown.length - 1));
      seek();
    };
    plot.legend = element("div", "", "legend");
    plot.labels = plot.features.flatMap((feature, number) => Array.from({ length: feature.width }, (_, axis) => {
      const label = element("span"), swatch = element("i"), value = element("b");
      swatch.style.background = color(axis, number);
      label.append(swatch, `${plot.features.length > 1 ? `${feature.name} ` : ""}${nameOf(feature, axis)} `, value);
      plot.legend.append(label);
      return { feature, axis, value };
    }));
    return [element("h3", plot.features.map((each) => each.name).join(" and ")), plot.canvas, plot.legend, plot.bars];
  }));
  if ($("spread").checked) spread();
}

const color = (axis, number) => `hsl(${(axis * 137 + 210) % 360} 70% ${number % 2 ? 68 : 48}%)`;

function draw({ canvas, features, labels }) {
  const pen = canvas.getContext("2d");
  const wide = (canvas.width = canvas.clientWidth), high = (canvas.height = canvas.clientHeight);
  let low = Infinity, top = -Infinity;
  for (const { values } of features) {
    for (const value of values) if (Number.isFinite(value)) { low = Math.min(low, value); top = Math.max(top, value); }
  }
  features.forEach(({ values, width }, number) => {
    const places = values.length / width;
    pen.setLineDash(number ? [5, 3] : []);
    for (let axis = 0; axis < width; axis++) {
      pen.strokeStyle = color(axis, number);
      pen.beginPath();
      for (let place = 0; place < places; place++) {
        const height = (values[place * width + axis] - low) / (top - low || 1);
        pen.lineTo((place / Math.max(places - 1, 1)) * wide, high - 4 - height * (high - 8));
      }
      pen.stroke();
    }
  });
  pen.fillStyle = "#888";
  pen.fillText(top === -Infinity ? "" : round(top), 2, 10);
  pen.fillText(low === Infinity ? "" : round(low), 2, high - 2);
  pen.fillRect(($("step").value / Math.max(shown.length - 1, 1)) * wide, 0, 1, high);
  for (const { feature, axis, value } of labels) value.textContent = round(valueAt(feature, axis));
}

// of long episodes the least and largest of spans are drawn, and the least of the step's span is told
function valueAt({ values, width }, axis) {
  const places = values.length / width;
  if (places === shown.length) return values[$("step").value * width + axis];
  const place = Math.floor(($("step").value / shown.length) * (places / 2)) * 2;
  return values[place * width + axis];
}

function show() {
  const step = $("step").value;
  $("at").textContent = `step ${step} of ${shown.length}`;
  for (const image of document.querySelectorAll("#cameras img")) {
    const figure = image.parentElement;
    if (painted.has(figure) && paint(figure, painted.get(figure))) continue;
    const where = address(`episodes/${shown.index}/frame`, { name: image.alt, step });
    image.src = where.error ? "data:," : where;
  }
  shown.plots.forEach(draw);
  sample().catch(fail);
}

function seek() { $("fault").textContent = ""; show(); }

function move(by) {
  const before = $("step").value;
  $("step").value = Number(before) + by;
  if ($("step").value === before) stop(); else seek();
}

// the next row of the list, or the one before
function neighbour(by) {
  const rows = [...$("rows").children], place = rows.findIndex((row) => row.classList.contains("shown"));
  const row = rows[place + by];
  if (row) { row.scrollIntoView({ block: "nearest" }); row.onclick(); }
}

// video as it lies, while it plays: the browser decodes packets, some steps at a time; a step that stands still is the
// server's frame, whose pixels are those that a loader gives

const CHUNK = 32;

class Player {
  constructor(index, name) { Object.assign(this, { index, name, chunks: new Map(), isBroken: !("VideoDecoder" in window) }); }

  // the image of a step; null where the browser cannot decode it
  async frame(step) {
    if (this.isBroken) return null;
    const number = Math.floor(step / CHUNK);
    for (const [each, chunk] of this.chunks) {
      if (each !== number && each !== number + 1) { this.chunks.delete(each); chunk.then(close, () => {}); }
    }
    for (const each of [number, number + 1]) {
      if (!this.chunks.has(each) && each * CHUNK < shown.length) this.chunks.set(each, this.decode(each * CHUNK));
    }
    try {
      const image = (await this.chunks.get(number)).get(step);
      if (!image) throw new Error("no frame");
      return image;
    } catch { this.isBroken = true; return null; }
  }

  async decode(first) {
    const given = { name: this.name, step: first, count: CHUNK }, images = new Map(), made = [];
    const { codec, runs } = await (await get(`episodes/${this.index}/packets`, given)).json();
    const config = { codec, optimizeForLatency: true };
    if (codec === null || !(await VideoDecoder.isConfigSupported(config)).supported) throw new Error("not decoded here");
    // the time of a packet is its number: that of the run, and its own within it
    const wanted = new Map(), time = (run, packet) => run * 1e6 + packet;
    runs.forEach(({ rows }, run) => rows.forEach(([step, frame]) => { if (step >= first) wanted.set(step, time(run, frame)); }));
    const times = new Set(wanted.values());
    await new Promise((done, failed) => {
      const decoder = new VideoDecoder({
        output: (frame) => {
          const { timestamp } = frame;
          if (!times.has(timestamp)) return frame.close();
          made.push(createImageBitmap(frame).then((image) => images.set(timestamp, image)).finally(() => frame.close()));
        },
        error: failed,
      });
      decoder.configure(config);
      runs.forEach(({ packets }, run) => packets.forEach((text, packet) => {
        const data = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        decoder.decode(new EncodedVideoChunk({ type: packet ? "delta" : "key", timestamp: time(run, packet), data }));
      }));
      decoder.flush().then(() => { decoder.close(); done(); }, failed);
    });
    await Promise.all(made);
    return new Map([...wanted].map(([step, timestamp]) => [step, images.get(timestamp)]));
  }

  close() { for (const chunk of this.chunks.values()) chunk.then(close, () => {}); this.chunks.clear(); }
}

function close(images) { for (const image of images.values()) image?.close(); }

// draw a step over the server's frame, of the size that it has
function paint(figure, image) {
  const canvas = figure.querySelector("canvas"), { naturalWidth, naturalHeight } = figure.querySelector("img");
  // sides that are odd are coded as even
  if (!naturalWidth || Math.abs(image.width - naturalWidth) > 1 || Math.abs(image.height - naturalHeight) > 1) return false;
  if (canvas.width !== naturalWidth || canvas.height !== naturalHeight) [canvas.width, canvas.height] = [naturalWidth, naturalHeight];
  canvas.getContext("2d").drawImage(image, 0, 0);
  canvas.hidden = false;
  return true;
}

// playing: the next step is not before its time, and not before every camera shows this one

function stop() {
  painted = new Map();
  if (isPlaying) { isPlaying = false; show(); }
  $("play").textContent = "play";
}

async function play() {
  if (isPlaying) return stop();
  const mine = shown, figures = [...document.querySelectorAll("#cameras figure")];
  const players = figures.map((figure) => embedded ? null : new Player(mine.index, figure.querySelector("img").alt));
  isPlaying = true;
  $("play").textContent = "pause";
  while (isPlaying && shown === mine) {
    const until = performance.now() + 1000 / ((shown.fps || 10) * Number($("speed").value));
    const next = Math.min(Number($("step").value) + 1, mine.length - 1);
    const images = await Promise.all(players.map((player) => player && player.frame(next)));
    await Promise.all(figures.map((figure) => figure.querySelector("img").decode().catch(() => {})));
    await new Promise((done) => setTimeout(done, Math.max(until - performance.now(), 0)));
    if (!isPlaying || shown !== mine) break;
    painted = new Map(figures.map((figure, place) => [figure, images[place]]).filter(([, image]) => image));
    move(1);
    painted = new Map();
  }
  for (const player of players) player?.close();
}

// how values are spread

async function spread() {
  const mine = shown;
  for (const plot of mine.plots) {
    const made = [];
    for (const feature of $("spread").checked ? plot.features : []) {
      try {
        const found = await (await get("histograms", { ...chosen(), name: feature.name })).json();
        made.push(...found.axes.map((axis, number) => barsOf(axis, number, `${plot.features.length > 1 ? `${feature.name} ` : ""}${nameOf(feature, number)}`)));
        if (found.num_read < found.num_all) made.push(element("span", `of ${found.num_read} evenly spaced episodes`));
      } catch (error) { fail(error); }
    }
    if (shown === mine) plot.bars.replaceChildren(...made);
  }
}

const nameOf = (feature, axis) => feature.axes ? feature.axes[axis] : feature.width > 1 ? String(axis) : "";

function barsOf(axis, number, name) {
  const figure = element("figure", "", "spread"), canvas = element("canvas", "", "bars"), pen = canvas.getContext("2d");
  const told = (what, found) => `${what} ${found ? `${round(found.mean)} \u00b1 ${round(found.std)}, ${round(found.min)} to ${round(found.max)}` : "none"}`;
  figure.append(element("b", name), canvas, element("small", told("all", axis.statistics.all)), element("small", told("list", axis.statistics.chosen)));
  [canvas.width, canvas.height] = [120, 48];
  const top = Math.max(...axis.all, ...axis.chosen, 1e-9), bar = canvas.width / axis.all.length;
  axis.all.forEach((part, place) => {
    pen.fillStyle = "#8888";
    pen.fillRect(place * bar, 48 - (part / top) * 46, bar, (part / top) * 46);
    pen.fillStyle = color(number, 0);
    pen.fillRect(place * bar, 47 - (axis.chosen[place] / top) * 46, bar, 2);
  });
  return figure;
}

// the window around the step as a training sample

async function sample() {
  const fields = $("fields").value.trim(), mine = shown, step = $("step").value;
  if (!fields) return $("sample").replaceChildren();
  const found = await (await get(`episodes/${mine.index}/sample`, { fields, step })).json();
  if (shown !== mine || $("step").value !== step) return;
  $("sample").replaceChildren(...found.map(({ name, offsets, values, is_pad }) => {
    const table = element("table"), head = element("tr"), pads = element("tr");
    head.append(element("th", name), ...offsets.map((each, place) => cell("th", each, is_pad[place])));
    pads.append(element("td", "padding"), ...is_pad.map((each) => cell("td", each ? "pad" : "", each)));
    const axes = values[0].map((_, axis) => {
      const row = element("tr"), names = mine.numbers[name];
      row.append(element("td", names ? names[axis] : axis),
        ...values.map((each, place) => cell("td", typeof each[axis] === "number" ? round(each[axis]) : each[axis], is_pad[place])));
      return row;
    });
    table.append(head, ...axes, pads);
    return table;
  }));
}

const cell = (tag, text, isPad) => element(tag, text, isPad ? "pad" : "");

// a list that follows a live store

async function follow() {
  if (document.hidden) return;
  try {
    await list();
    if (shown === null || shown.end !== "open" || isPlaying) return;
    const about = await (await get(`episodes/${shown.index}`)).json();
    if (about.length !== shown.length) await open(shown.index, Number($("step").value));
  } catch (error) { $("wrong").textContent = error.message; }
}

function fail(error) { $("fault").textContent = error.message; $("episode").hidden = false; }
function turn(to) {
  first = Math.max(to, 0);
  list().catch((error) => { $("wrong").textContent = error.message; });
}

$("filter").onchange = () => turn(0);
$("filter").onsubmit = (event) => { event.preventDefault(); turn(0); };
$("back").onclick = () => turn(first - COUNT);
$("on").onclick = () => turn(first + COUNT);
$("step").oninput = seek;
$("play").onclick = play;
$("sampling").onsubmit = (event) => { event.preventDefault(); $("fault").textContent = ""; sample().catch(fail); };
$("selection").ontoggle = () => { if ($("selection").open) select().catch(fail); };
$("saving").onsubmit = (event) => {
  event.preventDefault();
  send("selection", chosen(), { name: $("newname").value.trim() })
    .then((made) => { $("saved").textContent = made.path; })
    .catch((error) => { $("saved").textContent = error.message; });
};
$("marking").onsubmit = (event) => { event.preventDefault(); mark({ note: $("note").value.trim() }).catch(fail); };
for (const button of $("marking").querySelectorAll("[value]")) button.onclick = () => toggle(button.value);
$("overlaid").onchange = () => { arrange(); show(); };
$("spread").onchange = spread;
window.onresize = () => { if (shown !== null) shown.plots.forEach(draw); };
document.onkeydown = (event) => {
  if (shown === null || /INPUT|SELECT|BUTTON/.test(event.target.tagName)) return;
  if (event.key === "ArrowRight") move(event.shiftKey ? 10 : 1);
  if (event.key === "ArrowLeft") move(event.shiftKey ? -10 : -1);
  if (isEditable && event.key === "g") toggle("good");
  if (isEditable && event.key === "b") toggle("bad");
  if (event.key === "n") neighbour(1);
  if (event.key === "p") neighbour(-1);
  if (event.key === "Home") move(-shown.length);
  if (event.key === "End") move(shown.length);
  if (event.key === " ") { event.preventDefault(); play(); }
};
if (embedded) {
  document.body.className = "exported";
  $("name").textContent = document.title = embedded.title;
  open(embedded.index).catch(fail);
} else {
  setInterval(follow, REFRESH_MS);
  turn(0);
}
