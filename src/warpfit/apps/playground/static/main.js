// The page: its controls, what it asks of the server, and what it shows of the answers.

import { Bars, Plane, drawCurves, percent } from "./charts.js";
import { Connection, base64Of, bytesOf } from "./connection.js";
import { Pad } from "./pad.js";

const DIGITS = "digits";
const POINTS = "points";
const CLASS_COLOURS = ["--class-0", "--class-1", "--class-2"];
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 2 });
const PAUSE = 120; // milliseconds without a change before a new training starts

// What the sliders offer, as far as the server's bounds allow.
const STOPS = {
  depth: [0, 1, 2, 3, 4],
  width: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512],
  lr: [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10],
  batch_size: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
  epochs: [1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000],
  noise: Array.from({ length: 21 }, (_, idx) => idx / 40),
};
const CHOICES = ["activation", "optimizer", "points"];
const OF_POINTS = ["points", "noise"];

const element = (id) => document.getElementById(id);
const main = document.querySelector("main");

let hello = null; // what the server said first
let isConnected = false;
let task = DIGITS;
let settings = null; // by task, kept while the server is away
const runs = {
  [DIGITS]: newRun(),
  [POINTS]: newRun(),
};

function newRun() {
  return { number: 0, isAsked: false, isRunning: false, started: null, reports: [], epoch: 0 };
}

// What a reload keeps, in this tab alone -------------------------------------------------------------------------------

const KEPT = "warpfit playground";
let keeping = null;

function recall() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? {};
  } catch {
    return {}; // nothing is kept where the browser forbids it
  }
}

function keep() {
  clearTimeout(keeping);
  keeping = null;
  const image = pad.isEmpty ? null : base64Of(pad.pixels(pad.canvas.width));
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ task, settings: settings ?? kept.settings, drawing: image }));
  } catch {
    // as above
  }
}

function keepSoon() {
  clearTimeout(keeping);
  keeping = setTimeout(keep, PAUSE);
}

// Return settings of a task: what was kept where the sliders and selects offer it, else the server's.
function settingsOf(which, defaults) {
  const own = kept.settings?.[which] ?? {};
  const offered = (name) => (CHOICES.includes(name) ? hello.bounds[name].names : stopsOf(name));
  return Object.fromEntries(
    Object.entries(defaults).map(([name, value]) => [name, offered(name).includes(own[name]) ? own[name] : value]),
  );
}

// Messages to the reader ------------------------------------------------------------------------------------------------

function notice(kind, text) {
  element("notice").dataset.kind = kind;
  element("notice").hidden = !text;
  element("notice-text").textContent = text;
}

function status(state, text) {
  element("status").dataset.state = state;
  element("status-text").textContent = text;
}

function showStatus() {
  const run = runs[task];
  if (!isConnected) return;
  const isBusy = run.isRunning;
  status(isBusy ? "training" : "ready", `${isBusy ? "Training" : "Ready"} · ${hello.device_label}`);
  element("stop").disabled = !isBusy;
  element("train").disabled = isBusy;
  element("reset").disabled = element("sample").disabled = false;
}

// Controls --------------------------------------------------------------------------------------------------------------

function stopsOf(name) {
  const { least, most } = hello.bounds[name];
  return STOPS[name].filter((value) => value >= least && value <= most);
}

function prepareControls() {
  for (const name of CHOICES) {
    element(name).replaceChildren(...hello.bounds[name].names.map((value) => new Option(value, value)));
  }
  for (const name of Object.keys(STOPS)) {
    const input = element(name);
    input.min = 0;
    input.max = stopsOf(name).length - 1;
    input.step = 1;
  }
}

function showControls() {
  for (const [name, value] of Object.entries(settings[task])) {
    if (CHOICES.includes(name)) {
      element(name).value = value;
    } else {
      element(name).value = stopsOf(name).indexOf(value);
      showSlider(name, value);
    }
  }
  element("width").disabled = settings[task].depth === 0;
  element("activation").disabled = settings[task].depth === 0;
}

function showSlider(name, value) {
  document.querySelector(`output[for=${name}]`).textContent = value;
  element(name).setAttribute("aria-valuetext", value);
}

let pause = null;

function changed(event) {
  const { id } = event.target;
  if (!settings) return;
  settings[task][id] = CHOICES.includes(id) ? event.target.value : stopsOf(id)[Number(event.target.value)];
  showControls();
  keepSoon();
  clearTimeout(pause);
  const asked = task;
  pause = setTimeout(() => train(asked, true), PAUSE);
}

// Requests --------------------------------------------------------------------------------------------------------------

function request(type, which, extra = {}) {
  const own = Object.entries(settings[which]);
  const message = { type, task: which, settings: Object.fromEntries(own.filter(([name]) => !OF_POINTS.includes(name))), ...extra };
  if (which === POINTS) message.points = { name: settings[which].points, noise: settings[which].noise };
  return message;
}

function train(which, afresh) {
  if (!isConnected) return;
  runs[which].isAsked = true;
  connection.send(request("train", which, { afresh }));
}

const drawing = { isWaiting: false, isStale: false, id: 0 };

// Show where the keyboard's pen is, or that it is put away.
function showPen(place) {
  const pen = element("pen");
  pen.hidden = place === null;
  if (place) [pen.style.left, pen.style.top] = place.map((share) => `${100 * share}%`);
}

// Ask what the drawing is: one question at a time, the last drawing being asked about in the end.
function predict() {
  element("pad-empty").hidden = !pad.isEmpty;
  keepSoon();
  drawing.isStale = true;
  if (drawing.isWaiting || !isConnected) return;
  drawing.isStale = false;
  drawing.id += 1;
  const pixels = base64Of(pad.pixels(hello.drawing_size));
  drawing.isWaiting = connection.send({ type: "predict", id: drawing.id, pixels });
}

// Answers ---------------------------------------------------------------------------------------------------------------

const handlers = {
  hello(message) {
    hello = message;
    isConnected = true;
    settings ??= {
      [DIGITS]: settingsOf(DIGITS, message.defaults.digits),
      [POINTS]: settingsOf(POINTS, { ...message.defaults.points, points: message.points.name, noise: message.points.noise }),
    };
    bars = new Bars(element("bars"), message.digits.classes);
    element("fact-device").textContent = message.device_label;
    prepareControls();
    showControls();
  },

  started(message) {
    const run = runs[message.task];
    if (!message.goes_on) run.reports = [];
    Object.assign(run, { number: message.run, isRunning: true, started: message, epoch: message.epoch });
    if (message.points) showPoints(message.points);
    if (element("notice").dataset.kind === "error") notice("news", "");
    showRun(message.task);
  },

  progress(message) {
    const run = runs[message.task];
    if (message.run !== run.number) return;
    run.reports.push(...message.reports);
    run.epoch = message.epoch;
    if (message.image) plane.decide(bytesOf(message.image), hello.grid);
    if (message.task === DIGITS && !pad.isEmpty) predict();
    showRun(message.task);
  },

  ended(message) {
    const run = runs[message.task];
    if (message.how === "failed") notice("error", `Training failed: ${message.reason}.`);
    if (message.run === run.number || message.how === "failed") run.isRunning = false;
    showRun(message.task);
  },

  prediction(message) {
    drawing.isWaiting = false;
    showSeen(message.seen);
    const best = bars.show(message.probabilities);
    element("guess").textContent = best < 0 ? "?" : hello.digits.classes[best];
    element("guess").toggleAttribute("data-empty", best < 0);
    element("guess-share").textContent =
      best >= 0 ? percent(message.probabilities[best]) : message.seen ? "no network yet" : "nothing drawn";
    if (drawing.isStale) predict();
  },

  sample(message) {
    pad.show(bytesOf(message.pixels));
  },

  error(message) {
    drawing.isWaiting = false;
    notice("error", `${message.message}.`);
    if (message.is_final) status("lost", "Not connected");
  },
};

function showSeen(base64) {
  const canvas = element("seen");
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (!base64) return;
  canvas.width = canvas.height = hello.digits.size;
  const image = context.createImageData(canvas.width, canvas.height);
  bytesOf(base64).forEach((byte, idx) => image.data.set([byte, byte, byte, 255], 4 * idx));
  context.putImageData(image, 0, 0);
}

function showPoints(points) {
  plane.show(points, hello.limit);
  placeBars = new Bars(element("place-bars"), points.classes, CLASS_COLOURS);
  const legend = points.classes.map((name, idx) => {
    const entry = document.createElement("span");
    const spot = document.createElement("i");
    spot.style.background = `var(${CLASS_COLOURS[idx]})`;
    entry.append(spot, `class ${name}`);
    return entry;
  });
  element("legend").replaceChildren(...legend);
}

function showPlace([x, y], shares) {
  placeBars?.show(shares);
  element("place").textContent = `at ${x.toFixed(2)}, ${y.toFixed(2)}`;
}

let isDue = false;

// Show a task's run, at most once a frame of the screen.
function showRun(which) {
  if (which !== task || isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    drawRun(runs[task]);
  });
}

function drawRun(run) {
  showStatus();
  const { started, reports } = run;
  const lastEpoch = Math.max(started?.last_epoch ?? 1, run.epoch);
  for (const [name, least, most, format] of [
    ["loss", 0, null, (value) => COMPACT.format(value)],
    ["accuracy", null, 1, (value) => `${Number((100 * value).toFixed(1))} %`],
  ]) {
    const curves = [
      { name: "training", values: reports.map((each) => [each.epoch, each[name]]), colour: "--training", isDashed: true },
      { name: "test", values: reports.map((each) => [each.epoch, each[`val_${name}`]]), colour: "--accent" },
    ];
    drawCurves(element(name), curves, { lastEpoch, least, most, format });
  }
  element("fact-epoch").textContent = started ? `${run.epoch} of ${lastEpoch}` : "–";
  element("fact-accuracy").textContent = reports.length ? percent(reports.at(-1).val_accuracy) : "–";
  element("fact-seconds").textContent = reports.length ? duration(median(reports.slice(-50).map((each) => each.seconds))) : "–";
  element("fact-data").textContent = started ? `${started.data}, ${started.rows.toLocaleString("en")} rows` : "–";
  element("fact-parameters").textContent = started ? started.num_parameters.toLocaleString("en") : "–";
  element("fact-engine").textContent = started ? `${started.engine}, ${started.precision}` : "–";
  element("fact-reason").textContent = started ? `Why this engine: ${started.reason}` : "";
}

function median(values) {
  return values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
}

function duration(seconds) {
  const [factor, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${Number((seconds * factor).toPrecision(3))} ${unit}`;
}

// Tabs ------------------------------------------------------------------------------------------------------------------

const tabs = [DIGITS, POINTS].map((name) => element(`tab-${name}`));

function choose(name) {
  task = name;
  keepSoon();
  main.dataset.task = name;
  for (const tab of tabs) {
    const isChosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
  }
  element("stage").setAttribute("aria-labelledby", `tab-${name}`);
  if (!settings) return;
  showControls();
  if (!runs[name].isAsked) train(name, true);
  drawRun(runs[name]);
  plane.draw();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => choose(tab.id.slice("tab-".length)));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = tabs.find((each) => each !== tab);
    other.focus();
    other.click();
  });
}

// Start -----------------------------------------------------------------------------------------------------------------

let bars = null;
let placeBars = null;
const pad = new Pad(element("pad"), predict, showPen);
const plane = new Plane(element("plane"), showPlace);
for (const name of ["loss", "accuracy"]) element(name).dataset.name = name === "loss" ? "Loss" : "Accuracy";

element("controls").addEventListener("input", (event) => event.target.type === "range" && changed(event));
element("controls").addEventListener("change", (event) => event.target.type !== "range" && changed(event));
element("controls").addEventListener("submit", (event) => {
  event.preventDefault();
  train(task, false);
});
element("stop").addEventListener("click", () => connection.send({ type: "stop" }));
element("reset").addEventListener("click", () => connection.send(request("reset", task)));
element("clear").addEventListener("click", () => pad.clear());
element("sample").addEventListener("click", () => connection.send({ type: "sample" }));
element("notice-close").addEventListener("click", () => notice("news", ""));

addEventListener("pagehide", () => keeping !== null && keep());

const kept = recall();
if (kept.task === POINTS) choose(POINTS);
if (typeof kept.drawing === "string") pad.show(bytesOf(kept.drawing));

const connection = new Connection({
  message: (message) => handlers[message.type]?.(message),

  open(isFirst) {
    drawing.isWaiting = false;
    for (const name of [DIGITS, POINTS]) runs[name] = newRun();
    if (!isFirst) notice("news", "Connected again. Your settings were kept; the network trains anew.");
    train(task, true);
    if (!pad.isEmpty) predict();
    showRun(task);
  },

  lost(wasOpen) {
    isConnected = false;
    for (const run of Object.values(runs)) run.isRunning = false;
    for (const id of ["stop", "train", "reset", "sample"]) element(id).disabled = true;
    status("lost", "Not connected");
    if (wasOpen) notice("error", "The server does not answer. The page tries again until it does, and keeps your settings.");
  },
});

function redraw() {
  drawRun(runs[task]);
  plane.draw();
}

new ResizeObserver(redraw).observe(main);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  pad.recolour();
  if (plane.planes) plane.paint();
  redraw();
});
