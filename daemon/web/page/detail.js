// What is shown of one device, or of one group or lgpu: figures, charts and processes.

import { behind, failures, inside, on, processes, strangers, total } from "./model.js";
import { age, got, memoryParts, timeParts } from "./overview.js";
import { ago, cell, colour, count, element, energy, fill, order, power, share, size, stack, text, toDevice, toNode } from "./format.js";
import { Past, Timeline } from "./charts.js";

const most = 200; // processes in a table

/** processTable makes a table of processes and the function that fills it. */
function processTable() {
  const body = element("tbody"), none = element("p", { className: "none" }), title = element("h3");
  const names = ["Process", "User", "Command", "Memory", "lgpu"];
  const table = element("table", { className: "processes" }, element("thead", {}, element("tr", {},
    ...names.map((name, i) => element("th", { scope: "col", className: i === 3 ? "num" : "" }, name)))), body);
  const box = element("div", { className: "process-box" }, title, table, none);
  const rows = new Map(); // pid to cells
  const show = (all) => {
    const shown = all.slice(0, most).map((p) => {
      if (!rows.has(p.pid)) {
        const cells = names.map((name, i) => cell(name, i === 3 ? "num" : i === 4 ? "node" : ""));
        const link = element("a");
        cells[4].append(link);
        rows.set(p.pid, { tr: element("tr", {}, ...cells), cells, link });
      }
      const { tr, cells, link } = rows.get(p.pid);
      [String(p.pid), p.user, p.command, size(p.memory)].forEach((value, i) => text(cells[i], value));
      text(link, p.path ?? "without an lgpu");
      if (p.path === null) link.removeAttribute("href");
      else link.href = toNode(p.path);
      tr.classList.toggle("stranger", p.path === null);
      return tr;
    });
    const pids = new Set(all.map((p) => p.pid));
    for (const pid of rows.keys()) if (!pids.has(pid)) rows.delete(pid);
    order(body, shown);
    text(title, all.length ? count(all.length, "process") : "Processes");
    table.hidden = !all.length;
    none.hidden = all.length > 0 && all.length <= most;
    text(none, all.length ? `The ${most} with the most memory are shown.` : "None.");
  };
  return { box, show };
}

/** chart makes a canvas with a title and a place for what is at the pointer. */
function chart(name, kind, label) {
  const canvas = element("canvas", { role: "img", "aria-label": label }), said = element("output", { "aria-live": "off" });
  return { canvas, said, box: element("div", { className: `chart ${kind}` },
    element("div", { className: "bar-title" }, element("h3", {}, name), said), canvas) };
}

/** held is what is used of a device's memory, and what of that has left the device. */
const held = (use) => size(use["memory.current"]) + (use["memory.evicted"] ? ` (${size(use["memory.evicted"])} evicted)` : "");

const chips = (facts) => facts.filter(Boolean).flatMap((f) => [element("span", { className: "chip" }, f), " "]);

/** DeviceDetail is the view of one device. */
export class DeviceDetail {
  constructor(device) {
    this.uuid = device.uuid;
    this.title = element("h2", { tabIndex: -1 });
    this.chips = element("span");
    this.fault = element("p", { className: "fault", hidden: true });
    this.old = element("p", { className: "fault", hidden: true });
    const measure = (name) => {
      const value = element("output", { "aria-live": "off" }), bar = stack();
      return { box: element("div", { className: "measure" }, element("h3", {}, name), value, bar), value, bar };
    };
    this.memory = measure("Memory");
    this.time = measure("Device time, last second");
    this.asked = stack("thin");
    this.time.box.append(this.asked, element("p", { className: "scale" }, "above: got, below: asked for"));
    this.legend = element("ul", { className: "legend", "aria-label": `lgpus of ${device.name}` });
    const turns = chart("Slices, last second", "timeline", `Who had ${device.name} over the last second`);
    const shares = chart("Got (line) and asked (dashed), last 10 min", "past", `Shares of ${device.name} over the last ten minutes`);
    this.processes = processTable();
    this.timeline = new Timeline(turns.canvas, turns.said);
    this.past = new Past(shares.canvas, shares.said);
    this.box = element("article", { className: "card", "aria-label": `Device ${device.index}, ${device.name}` },
      element("div", { className: "card-title" }, this.title, this.chips), this.fault, this.old,
      element("div", { className: "columns" },
        element("div", {}, this.memory.box, this.time.box, this.legend), element("div", {}, turns.box, shares.box)),
      this.processes.box);
    this.box.dataset.uuid = device.uuid;
  }

  show(view, past, now) {
    const d = view.byUUID.get(this.uuid), here = on(view, d.uuid);
    this.title.replaceChildren(element("span", { className: "index" }, d.index), d.name);
    this.chips.replaceChildren(...chips([d.key.length > 12 ? d.key.slice(0, 12) : d.key, d.mode, d.units ? count(d.units, "unit") : "",
      d.sim && `software GPU ${d.sim}`, power(d.power_watts), d.energy_joules !== null && `${energy(d.energy_joules)} so far`,
      d.temperature !== null && `${d.temperature} °C`]));
    this.fault.hidden = !d.fault;
    text(this.fault, d.fault ? `Out of order: ${d.fault}` : "");
    const old = age(view, d);
    this.old.hidden = !old;
    text(this.old, old ? `The driver last answered ${ago(old)}: these figures are old.` : "");
    this.box.classList.toggle("old", old > 0);
    fill(this.memory.bar, memoryParts(view, d), "Memory");
    this.memory.value.replaceChildren(size(d["memory.current"]), element("small", {}, ` of ${size(d["memory.capacity"])}`));
    fill(this.time.bar, timeParts(view, d, "delivered"), "Got");
    fill(this.asked, timeParts(view, d, "asked"), "Asked for");
    const known = got(view, d);
    this.time.value.replaceChildren(known === null ? "–" : share(known), element("small", {}, known === null ? " not measured" : " to lgpus"),
      element("small", { className: "aside" }, d.utilisation === null ? "" : `, driver says ${d.utilisation} %`));
    this.legend.replaceChildren(...this.lines(view, d, here));
    this.timeline.names = new Map(here.map(([n]) => [n.id, [n.path, colour(n.id, view.ids)]]));
    const running = here.filter(([, l]) => l.state === "running");
    const quiet = (this.timeline.newest || 0) < (now - 1000) * 1e3;
    this.timeline.state(now * 1e3, quiet && running.length === 1 ? running[0][0].id : null);
    this.past.show(past.times, [...past.rows.values()].filter((r) => r.device === d.uuid)
      .map((r) => ({ path: r.path, colour: view.ids.has(r.id) ? colour(r.id, view.ids) : "var(--faint)", asked: r.asked, delivered: r.delivered })));
    this.processes.show(processes(view, { device: d.uuid }));
  }

  /** lines are the legend: each lgpu with its colour and figures, and those without an lgpu. */
  lines(view, d, here) {
    const line = (own, path, words, memory, says, kind = "") => element("li", {}, own,
      element("span", { className: "path", title: words }, path), element("span", { className: "figure" }, memory),
      element("span", { className: `figure ${kind}`, title: "asked for and got of the device's time" }, says));
    const lines = here.map(([n, l]) => {
      const { asked, delivered } = l["compute.stat"];
      return line(element("i", { own: colour(n.id, view.ids) }), element("a", { href: toNode(n.path) }, element("bdi", {}, n.path)), n.path,
        held(l), l.state.startsWith("suspend") || ["released", "evicted", "unfit", "next", "moving"].includes(l.state) ? l.state : delivered === null ? "not measured" : asked || delivered ? `${share(asked)} → ${share(delivered)}` : "idle",
        behind(l) ? "behind" : "");
    });
    const foreign = strangers(d);
    if (foreign.length) {
      const who = foreign.map((p) => `${p.command} (${p.pid}) of ${p.user}`).join(", ");
      lines.push(line(element("i", { className: "stranger" }), element("bdi", {}, `without an lgpu: ${who}`), who,
        size(foreign.reduce((sum, p) => sum + p["memory.current"], 0)), ""));
    }
    if (!lines.length) lines.push(element("li", {}, element("i"), element("span", { className: "none" }, "no lgpu uses it")));
    return lines;
  }

  draw() { this.past.draw(); }
}

/** NodeDetail is the view of one group or lgpu. */
export class NodeDetail {
  constructor(node) {
    this.path = node.path;
    this.title = element("h2", { tabIndex: -1 });
    this.chips = element("span");
    this.failure = element("p", { className: "fault", hidden: true });
    this.names = ["Device", "State", "Memory", "Most", "Asked → got", "compute.max", "compute.min", "lgpu.weight", "Units", "Time used", "Energy"];
    this.body = element("tbody");
    const table = element("table", { className: "uses" }, element("thead", {}, element("tr", {},
      ...this.names.map((name, i) => element("th", { scope: "col", className: (i > 4 ? "num" : "") + (i === 10 ? " drawn" : "") }, name)))), this.body);
    const shares = chart("Got (line) and asked (dashed), last 10 min", "past", `Shares of ${node.path} over the last ten minutes`);
    this.past = new Past(shares.canvas, shares.said);
    this.chart = shares.box;
    this.processes = processTable();
    this.box = element("article", { className: "card", "aria-label": node.path },
      element("div", { className: "card-title" }, this.title, this.chips), this.failure, table, this.chart, this.processes.box);
    this.box.dataset.path = node.path;
  }

  show(view, past) {
    const n = view.byPath.get(this.path), sum = total(n.devices), has = inside(n);
    text(this.title, n.path);
    this.chips.replaceChildren(...chips([n.kind === "group" ? `group of ${count(has.lgpus, "lgpu")}` : sum.state, has.users.join(", "),
      n.persistent ? "stays" : "", n.gang && `gang ${n.gang}`, n["memory.overcommit"] && "overcommit", n["memory.suspend"] && "memory.suspend", n.created && `since ${new Date(n.created).toLocaleString()}`,
      n["host.max"] !== null && `host.max ${size(n["host.max"])}`, n["host.current"] ? `${size(n["host.current"])} page-locked` : ""]));
    const why = failures(n.devices);
    this.failure.hidden = !why.length;
    text(this.failure, why.length ? `Memory is not where it should be: ${why.join("; ")}` : "");
    while (this.body.children.length > n.devices.length) this.body.lastChild.remove();
    while (this.body.children.length < n.devices.length) {
      this.body.append(element("tr", {}, ...this.names.map((name, i) => cell(name, (i > 4 ? "num" : "") + (i === 10 ? " drawn" : "")))));
      this.body.lastChild.firstChild.append(element("a"));
    }
    n.devices.forEach((d, i) => this.use(view, this.body.children[i].children, d));
    const drawn = [...past.rows.values()].filter((r) => r.id === n.id);
    this.chart.hidden = n.kind === "group";
    if (n.kind === "lgpu") {
      this.past.show(past.times, drawn.map((r, i) => ({ path: `device ${view.byUUID.get(r.device)?.index ?? "?"}`,
        colour: drawn.length > 1 ? `var(--c${i % 10})` : colour(n.id, view.ids), asked: r.asked, delivered: r.delivered })));
    }
    this.processes.show(processes(view, { path: n.path }));
  }

  /** use fills a line: what it has of a device. */
  use(view, cells, d) {
    const device = view.byUUID.get(d.uuid), { asked, delivered, busy_usec: busy } = d["compute.stat"], e = d.effective;
    const link = cells[0].firstChild;
    text(link, device ? `${device.index} ${device.name}` : d.uuid);
    link.href = toDevice(d.uuid);
    const most = e["memory.max"], priority = e["lgpu.priority"];
    [d.state, held(d) + (most === null ? "" : ` / ${size(most)}`), size(d["memory.peak"]),
      delivered === null ? "not measured" : `${share(asked)} → ${share(delivered)}`, e["compute.max"] === null ? "–" : share(e["compute.max"]),
      e["compute.min"] ? share(e["compute.min"]) : "–", e["lgpu.weight"] + (priority === "normal" ? "" : ` ${priority}`),
      String(e["lgpu.effective"].count), `${(busy / 1e6).toFixed(busy < 1e8 ? 1 : 0)} s`,
      energy(d["energy.stat"]?.joules ?? null) || "–"].forEach((value, i) => text(cells[i + 1], value, value === "–"));
    cells[4].classList.toggle("behind", behind(d));
  }

  draw() { this.past.draw(); }
}
