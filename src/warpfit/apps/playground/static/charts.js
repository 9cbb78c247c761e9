// What is drawn on canvases besides the drawing: curves and decisions; and bars of probabilities.

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function rgb(name) {
  const hex = colour(name).slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// Give a canvas as many pixels as it takes on the screen; returns its context, in which a unit is a CSS pixel.
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [context, width, height];
}

const MARGIN = { left: 44, right: 14, top: 8, bottom: 20 };
const MOST_DOTS = 30;

// Draw curves over the epochs. `curves` are {values: [[epoch, value]], name, colour, isDashed}.
export function drawCurves(canvas, curves, { lastEpoch, least = 0, most = null, format }) {
  const [context, width, height] = prepared(canvas);
  if (!width || !height) return;
  const values = curves.flatMap((curve) => curve.values.map(([, value]) => value)).filter(Number.isFinite);
  const [low, high] = rangeOf(values, least, most);
  const right = Math.max(lastEpoch, 1);
  const x = (epoch) => MARGIN.left + ((width - MARGIN.left - MARGIN.right) * epoch) / right;
  const y = (value) => height - MARGIN.bottom - ((height - MARGIN.top - MARGIN.bottom) * (value - low)) / (high - low);

  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const value of ticks(low, high, 4)) {
    context.strokeStyle = colour("--grid");
    line(context, [[MARGIN.left, Math.round(y(value)) + 0.5], [width - MARGIN.right, Math.round(y(value)) + 0.5]]);
    context.fillStyle = colour("--quiet");
    context.fillText(format(value), MARGIN.left - 6, y(value));
  }
  context.textBaseline = "bottom";
  context.textAlign = "center";
  for (const epoch of ticks(0, right, 6).filter(Number.isInteger)) {
    context.fillText(String(epoch), x(epoch), height - 2);
  }
  for (const curve of curves) drawCurve(context, curve, x, y, lastEpoch <= MOST_DOTS);
  const ends = curves.map(({ name, values: all }) => [name, all.at(-1)?.[1]]).filter(([, value]) => Number.isFinite(value));
  const words = ends.map(([name, value]) => `${name} ${format(value)}`).join(", ");
  canvas.setAttribute("aria-label", `${canvas.dataset.name}: ${words || "nothing yet"}`);
}

function drawCurve(context, curve, x, y, hasDots) {
  const places = curve.values.filter(([, value]) => Number.isFinite(value)).map(([epoch, value]) => [x(epoch), y(value)]);
  context.save();
  context.strokeStyle = context.fillStyle = colour(curve.colour);
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.setLineDash(curve.isDashed ? [5, 3] : []);
  line(context, places);
  for (const place of hasDots ? places : places.slice(-1)) dot(context, place, 2.4);
  context.restore();
}

// The range that an axis shows: from `least` (or below the values, if null) to `most` (or above them).
function rangeOf(values, least, most) {
  const high = most ?? (values.length ? Math.max(...values) * 1.05 : 1);
  let low = least ?? (values.length ? Math.min(...values) : 0);
  if (least === null) low = Math.max(0, low - 0.1 * (high - low) - 1e-3);
  return high > low ? [low, high] : [low, low + 1];
}

function ticks(low, high, about) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let idx = Math.ceil(low / step - 1e-9); idx * step <= high * (1 + 1e-9); idx += 1) found.push(Number((idx * step).toPrecision(12)));
  return found;
}

function line(context, places) {
  context.beginPath();
  places.forEach(([x, y], idx) => (idx ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
}

function dot(context, [x, y], radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

// Bars of probabilities, by the names of the classes.
export class Bars {
  constructor(element, names, colours = null) {
    this.rows = names.map((name, idx) => {
      const row = document.createElement("div");
      row.className = "bar";
      row.setAttribute("role", "listitem");
      const [label, track, value] = ["label", "track", "value"].map((kind) => {
        const part = document.createElement("span");
        part.className = kind;
        row.append(part);
        return part;
      });
      label.textContent = name;
      track.style.display = "block";
      const fill = document.createElement("span");
      fill.className = "fill";
      fill.style.display = "block";
      if (colours) fill.style.background = `var(${colours[idx]})`;
      track.append(fill);
      return { row, fill, value };
    });
    element.replaceChildren(...this.rows.map(({ row }) => row));
    this.show(null);
  }

  // Show shares from 0 to 1, or nothing; returns the index of the largest.
  show(shares) {
    const best = shares ? shares.indexOf(Math.max(...shares)) : -1;
    this.rows.forEach(({ row, fill, value }, idx) => {
      fill.style.transform = `scaleX(${shares ? shares[idx] : 0})`;
      value.textContent = shares ? percent(shares[idx]) : "–";
      row.toggleAttribute("data-best", idx === best);
    });
    return best;
  }
}

export function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

// The decisions of a network over the plane, with the points it learns from.
export class Plane {
  constructor(canvas, onPlace) {
    this.canvas = canvas;
    this.onPlace = onPlace;
    this.image = document.createElement("canvas");
    this.place = [0.5, 0.5]; // that is read, from 0 to 1 from the upper left
    this.isPointed = false;
    this.points = null;
    this.planes = null;
    canvas.addEventListener("pointermove", (event) => this.pointAt(event));
    canvas.addEventListener("pointerleave", () => this.pointAt(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  pointAt(event) {
    const box = this.canvas.getBoundingClientRect();
    this.isPointed = event !== null;
    if (event) this.place = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map(inside);
    this.draw();
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    this.isPointed = true;
    this.place = this.place.map((at, idx) => inside(at + 0.02 * step[idx]));
    this.draw();
  }

  // Take over new points {classes, train, test}, each [x, y, label], within ±limit.
  show(points, limit) {
    this.points = points;
    this.limit = limit;
    this.draw();
  }

  // Take over probabilities: a plane of size² bytes for each class.
  decide(bytes, size) {
    this.planes = bytes;
    this.size = size;
    this.paint();
    this.draw();
  }

  paint() {
    const { planes, size } = this;
    const pixels = size * size;
    const count = planes.length / pixels;
    const paper = rgb("--paper");
    const inks = Array.from({ length: count }, (_, idx) => rgb(`--class-${idx}`));
    this.image.width = this.image.height = size;
    const context = this.image.getContext("2d");
    const image = context.createImageData(size, size);
    for (let at = 0; at < pixels; at += 1) {
      let largest = 0;
      for (let each = 0; each < count; each += 1) largest = Math.max(largest, planes[each * pixels + at]);
      const sureness = Math.max(0, (largest / 255 - 1 / count) / (1 - 1 / count));
      const strength = 0.08 + 0.5 * sureness;
      for (let channel = 0; channel < 3; channel += 1) {
        let mixed = 0;
        for (let each = 0; each < count; each += 1) mixed += (inks[each][channel] * planes[each * pixels + at]) / 255;
        image.data[4 * at + channel] = paper[channel] * (1 - strength) + mixed * strength;
      }
      image.data[4 * at + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  }

  draw() {
    const [context, width, height] = prepared(this.canvas);
    if (!width) return;
    if (this.planes) {
      context.imageSmoothingQuality = "high";
      context.drawImage(this.image, 0, 0, width, height);
    }
    for (const point of this.points?.test ?? []) this.drawPoint(context, point, width, height, false);
    for (const point of this.points?.train ?? []) this.drawPoint(context, point, width, height, true);
    if (this.isPointed) this.drawCross(context, width, height);
    this.onPlace(...this.reading());
  }

  drawPoint(context, [x, y, label], width, height, isFilled) {
    const middle = [(width * (x / this.limit + 1)) / 2, (height * (1 - y / this.limit)) / 2];
    context.beginPath();
    context.arc(...middle, isFilled ? 3 : 2.6, 0, 2 * Math.PI);
    context.lineWidth = isFilled ? 1 : 1.3;
    context.strokeStyle = isFilled ? colour("--panel") : colour(`--class-${label}`);
    context.fillStyle = colour(`--class-${label}`);
    if (isFilled) context.fill();
    context.stroke();
  }

  drawCross(context, width, height) {
    const [x, y] = [this.place[0] * width, this.place[1] * height];
    context.strokeStyle = colour("--ink");
    context.lineWidth = 1.5;
    context.beginPath();
    context.arc(x, y, 6, 0, 2 * Math.PI);
    context.stroke();
  }

  // Returns coordinates and probabilities (or null) of the place that is read.
  reading() {
    const place = [2 * this.place[0] - 1, 1 - 2 * this.place[1]].map((at) => at * (this.limit ?? 1));
    if (!this.planes) return [place, null];
    const [column, row] = this.place.map((at) => Math.min(this.size - 1, Math.floor(at * this.size)));
    const pixels = this.size * this.size;
    const shares = [];
    for (let at = row * this.size + column; at < this.planes.length; at += pixels) shares.push(this.planes[at] / 255);
    return [place, shares];
  }
}

function inside(share) {
  return Math.min(Math.max(share, 0), 0.999);
}
