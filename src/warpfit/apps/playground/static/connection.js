// The WebSocket, opened again whenever it closes.

const FIRST_WAIT = 250; // milliseconds before another try
const LONGEST_WAIT = 2000;

export class Connection {
  // `on` has functions: open(isFirst), message(object), lost().
  constructor(on) {
    this.on = on;
    this.wait = FIRST_WAIT;
    this.wasOpen = false;
    this.isFinal = false;
    this.open();
  }

  open() {
    this.socket = new WebSocket(`ws://${location.host}/session`);
    this.socket.addEventListener("open", () => {
      this.wait = FIRST_WAIT;
    });
    this.socket.addEventListener("message", (event) => this.hear(JSON.parse(event.data)));
    this.socket.addEventListener("close", () => this.tryAgain());
  }

  hear(message) {
    if (message.is_final) this.isFinal = true;
    this.on.message(message);
    if (message.type === "hello") {
      this.on.open(!this.wasOpen);
      this.wasOpen = true;
    }
  }

  tryAgain() {
    if (this.isFinal) return;
    this.on.lost(this.wasOpen);
    setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(2 * this.wait, LONGEST_WAIT);
  }

  // Returns whether the message could be sent.
  send(message) {
    const isOpen = this.socket.readyState === WebSocket.OPEN;
    if (isOpen) this.socket.send(JSON.stringify(message));
    return isOpen;
  }
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

export function base64Of(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
