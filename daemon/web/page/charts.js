// The two pictures that are drawn rather than laid out: who had a device when, and what came of what was asked.

import { clock, resolve, share } from "./format.js";

/** surface makes a canvas as sharp as the screen and returns its context and size in CSS pixels. */
function surface(canvas) {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  return { c, width, height };
}

const span = 1e6; // µs that a timeline shows
const delay = 4e5; // µs that it is behind, so that turns are there when their time comes

/** Timeline shows the turns of one device over the last second. */
export class Timeline {
  constructor(canvas, output) {
    this.canvas = canvas;
    this.output = output;
    this.turns = []; // [start, length, id], by start
    this.alone = []; // [start, end, id]: times in which one lgpu had the device without turns
    this.names = new Map(); // id to [path, colour]
    this.pointer = null;
    canvas.addEventListener("pointermove", (e) => { this.pointer = e.offsetX; });
    canvas.addEventListener("pointerleave", () => { this.pointer = null; });
  }

  add(start, length, id) {
    this.turns.push([start, length, id]);
    this.newest = Math.max(this.newest || 0, start + length);
  }

  /** state says that at a time, in µs, an lgpu was running; null for none or several. */
  state(now, id) {
    const last = this.alone.at(-1);
    if (last && last[2] === id) last[1] = now;
    else if (id !== null) this.alone.push([last && last[1] > now - 15e5 ? last[1] : now, now, id]);
    else this.alone.push([now, now, null]);
    this.alone = this.alone.filter((a) => a[1] > now - 4 * span);
  }

  draw(now) {
    const { c, width, height } = surface(this.canvas);
    const end = now - delay, start = end - span, foot = 16, tall = height - foot;
    const x = (t) => (t - start) / span * width;
    this.turns = this.turns.filter((t) => t[0] + t[1] > start);
    c.fillStyle = resolve("var(--track)");
    c.fillRect(0, 0, width, tall);
    for (const [from, to, id] of this.alone) {
      if (id === null || to < start) continue;
      const until = Math.max(to, to > end - 15e5 ? Math.min(to + 11e5, end) : to);
      c.globalAlpha = 0.4;
      c.fillStyle = resolve(this.names.get(id)?.[1] || "var(--stranger)");
      c.fillRect(x(from), 0, x(until) - x(from), tall);
      c.globalAlpha = 1;
    }
    let hit = null;
    for (const [from, length, id] of this.turns) {
      if (from > end || from + length < start) continue;
      const left = x(from), wide = x(Math.min(from + length, end)) - left;
      c.fillStyle = resolve("var(--card)");
      c.fillRect(left, 0, wide, tall);
      c.fillStyle = resolve(this.names.get(id)?.[1] || "var(--stranger)");
      c.fillRect(left, 0, Math.max(wide - (wide > 3 ? 0.6 : 0), 0.5), tall);
      if (this.pointer !== null && this.pointer >= left && this.pointer < left + wide) hit = [length, id];
    }
    c.fillStyle = resolve("var(--faint)");
    c.textBaseline = "bottom";
    for (let t = Math.ceil(start / 1e5) * 1e5; t < end; t += 1e5) {
      c.globalAlpha = 0.5;
      c.fillRect(Math.round(x(t)), tall, 1, 4);
      c.globalAlpha = 1;
      if (t % 1e6 === 0 && x(t) < width - 50) c.fillText(clock(t / 1e3), x(t) + 4, height);
    }
    const text = hit ? `${this.names.get(hit[1])?.[0] || "gone"}: ${(hit[0] / 1e3).toFixed(hit[0] < 1e4 ? 2 : 1)} ms` : "";
    if (this.output.textContent !== text) this.output.textContent = text;
  }
}

/** Past shows what the lgpus of one device asked for (dashed) and got over the last ten minutes. */
export class Past {
  constructor(canvas, output) {
    this.canvas = canvas;
    this.output = output;
    this.pointer = null;
    canvas.addEventListener("pointermove", (e) => { this.pointer = e.offsetX; this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.pointer = null; this.draw(); });
  }

  /** show takes times in ms and rows with path, colour, asked and delivered for each time. */
  show(times, rows) {
    this.times = times;
    this.rows = rows;
    this.draw();
  }

  draw() {
    if (!this.times) return;
    const { c, width, height } = surface(this.canvas);
    const left = 40, foot = 18, top = 6, tall = height - foot - top, wide = width - left - 4;
    const end = this.times.at(-1) || Date.now(), minutes = 10, start = end - minutes * 60e3;
    let most = 0;
    for (const r of this.rows) for (const v of [...r.asked, ...r.delivered]) if (v > most) most = v;
    const full = [1000, 2500, 5000, 10000].find((f) => most <= f * 1.02) || 10000;
    const x = (t) => left + (t - start) / (end - start) * wide;
    const y = (v) => top + tall * (1 - Math.min(v, full) / full);
    c.strokeStyle = resolve("var(--line)");
    c.fillStyle = resolve("var(--faint)");
    c.lineWidth = 1;
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const part of [0, 0.5, 1]) {
      c.beginPath();
      c.moveTo(left, Math.round(y(full * part)) + 0.5);
      c.lineTo(width, Math.round(y(full * part)) + 0.5);
      c.stroke();
      c.fillText(share(full * part), left - 6, y(full * part));
    }
    c.textAlign = "center";
    c.textBaseline = "bottom";
    for (let m = 0, step = wide < 330 ? 5 : 2; m <= minutes; m += step) {
      const text = m === minutes ? "now" : `−${minutes - m} min`;
      c.textAlign = m === minutes ? "right" : m === 0 ? "left" : "center";
      c.fillText(text, x(start + m * 60e3), height);
    }
    for (const r of this.rows) {
      const line = (values) => {
        c.beginPath();
        let drawn = false;
        for (let i = 0; i < this.times.length; i++) {
          if (this.times[i] < start || values[i] === null || values[i] === undefined) { drawn = false; continue; }
          if (drawn) c.lineTo(x(this.times[i]), y(values[i]));
          else c.moveTo(x(this.times[i]), y(values[i]));
          drawn = true;
        }
        c.stroke();
      };
      c.strokeStyle = resolve(r.colour);
      c.lineJoin = "round";
      c.globalAlpha = 0.55;
      c.lineWidth = 1;
      c.setLineDash([4, 3]);
      line(r.asked);
      c.globalAlpha = 1;
      c.lineWidth = 1.8;
      c.setLineDash([]);
      line(r.delivered);
    }
    this.say(c, x, y, { left, top, tall, width });
  }

  /** say writes the values at the pointer. */
  say(c, x, y, { left, top, tall, width }) {
    if (this.pointer === null || this.times.length === 0) {
      this.output.textContent = "";
      return;
    }
    let at = 0;
    for (let i = 0; i < this.times.length; i++) {
      if (Math.abs(x(this.times[i]) - this.pointer) < Math.abs(x(this.times[at]) - this.pointer)) at = i;
    }
    c.strokeStyle = resolve("var(--soft)");
    c.globalAlpha = 0.6;
    c.beginPath();
    c.moveTo(Math.min(Math.max(x(this.times[at]), left), width), top);
    c.lineTo(Math.min(Math.max(x(this.times[at]), left), width), top + tall);
    c.stroke();
    c.globalAlpha = 1;
    const values = this.rows.filter((r) => r.delivered[at] > 0 || r.asked[at] > 0)
      .map((r) => `${r.path} ${share(r.delivered[at])}`);
    this.output.textContent = [clock(this.times[at]), ...values.slice(0, 3)].join("  ") + (values.length > 3 ? " …" : "");
  }
}
