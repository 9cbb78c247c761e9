// The canvas on which a digit is drawn, with the mouse, a finger, a pen or the keyboard. What is drawn is its alpha.

import { colour } from "./charts.js";

const PEN = 0.08; // of the canvas's side
const KEY_STEP = 0.03;

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Pad {
  constructor(canvas, onChange, onPen) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.onChange = onChange;
    this.onPen = onPen;
    this.isEmpty = true;
    this.small = document.createElement("canvas");
    this.pen = null; // where the keyboard's pen is, from 0 to 1
    this.last = null; // where the mouse's was
    canvas.addEventListener("pointerdown", (event) => this.start(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (this.last = null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.onPen(null));
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  start(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.focus({ focusVisible: false });
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.place(event);
    this.line(this.last, this.last);
  }

  move(event) {
    if (!this.last) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const each of events.length ? events : [event]) {
      const place = this.place(each);
      this.line(this.last, place);
      this.last = place;
    }
  }

  key(event) {
    if (event.key === "Delete" || event.key === "Backspace") {
      this.clear();
    } else if (event.key in ARROWS) {
      const [x, y] = ARROWS[event.key];
      const from = this.pen ?? [0.5, 0.2];
      this.pen = [clamp(from[0] + x * KEY_STEP), clamp(from[1] + y * KEY_STEP)];
      if (event.shiftKey) this.line(from, this.pen);
      this.onPen(this.pen);
    } else {
      return;
    }
    event.preventDefault();
  }

  line(from, to) {
    const side = this.canvas.width;
    const { context } = this;
    context.strokeStyle = colour("--ink");
    context.lineWidth = PEN * side;
    context.lineCap = "round";
    context.lineJoin = "round";
    context.beginPath();
    context.moveTo(from[0] * side, from[1] * side);
    context.lineTo(to[0] * side, to[1] * side);
    context.stroke();
    this.isEmpty = false;
    this.onChange();
  }

  clear() {
    this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.isEmpty = true;
    this.onChange();
  }

  // Show an image of bytes, white on black.
  show(bytes) {
    const side = Math.round(Math.sqrt(bytes.length));
    const image = new ImageData(side, side);
    bytes.forEach((byte, idx) => (image.data[4 * idx + 3] = byte));
    const source = document.createElement("canvas");
    source.width = source.height = side;
    source.getContext("2d").putImageData(image, 0, 0);
    this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.context.drawImage(source, 0, 0, this.canvas.width, this.canvas.height);
    this.isEmpty = false;
    this.recolour();
    this.onChange();
  }

  // Draw what is there in the ink of the colour scheme.
  recolour() {
    const { context, canvas } = this;
    context.save();
    context.globalCompositeOperation = "source-in";
    context.fillStyle = colour("--ink");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.restore();
  }

  // Returns the drawing as bytes of size × size pixels, white on black.
  pixels(size) {
    const { small } = this;
    small.width = small.height = size;
    const context = small.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(this.canvas, 0, 0, size, size);
    const { data } = context.getImageData(0, 0, size, size);
    return Uint8Array.from({ length: size * size }, (_, idx) => data[4 * idx + 3]);
  }
}

function clamp(share) {
  return Math.min(Math.max(share, 0.04), 0.96);
}
