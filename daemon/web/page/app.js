// The page: takes states and turns from the daemon's stream and shows them. Elements are made once and then kept up to
// date, so that focus, selection and pointers stay where they are.

import { clock, colour, count, element, share, size } from "./format.js";
import { Past, Timeline } from "./charts.js";
import * as editor from "./editor.js";

const $ = (id) => document.getElementById(id);
const cards = new Map(); // uuid to card
const rows = new Map(); // id and uuid of a group or an lgpu on a device to its row of the table
const past = { times: [], rows: new Map() }; // what /api/history has, kept up to date
const keep = 600; // values of the past
let state = null; // docs/json.md
let directories = []; // its groups and lgpus, each with its kind, in the order of the tree
let now = 0; // its time, in ms
let offset = 0; // ms that this machine's clock is ahead of the daemon's

// --- the stream

let stream = null;

function connect() {
  stream?.close();
  stream = new EventSource(editor.stream());
  stream.addEventListener("state", (e) => {
    state = JSON.parse(e.data);
    directories = tree(state);
    now = Date.parse(state.time);
    offset = Date.now() - now;
    if ($("live").dataset.state === "lost") editor.start().then(allow).catch(() => {}); // another daemon may have another token
    live("live", "live");
    remember();
    show();
  });
  stream.addEventListener("events", (e) => showEvents(JSON.parse(e.data)));
  stream.addEventListener("turns", (e) => {
    const { devices, ids, turns } = JSON.parse(e.data);
    for (const [device, id, start, length] of turns) {
      cards.get(devices[device])?.timeline.add(start, length, ids[id]);
    }
  });
  stream.onerror = () => live("lost", `no answer since ${clock(Date.now())}, trying again`);
}

/** tree returns groups and lgpus, parents before what is in them. */
function tree({ groups, lgpus }) {
  const all = [...groups.map((g) => ({ ...g, kind: "group" })), ...lgpus.map((l) => ({ ...l, kind: "lgpu" }))];
  for (const d of all) d.names = d.path.split("/").filter(Boolean);
  return all.sort((a, b) => {
    const at = a.names.findIndex((name, i) => name !== b.names[i]);
    if (at < 0 || at >= b.names.length) return a.names.length - b.names.length;
    return a.names[at] < b.names[at] ? -1 : 1;
  });
}

function live(kind, text) {
  const e = $("live");
  if (e.dataset.state !== kind) {
    e.dataset.state = kind;
    e.textContent = text;
    document.body.classList.toggle("stale", kind === "lost");
  }
}

async function recall() {
  const { times, rows } = await (await editor.get("/api/history")).json();
  past.times = times;
  past.rows = new Map(rows.map((r) => [`${r.id} ${r.device}`, r]));
}

/** remember adds the newest state to the past. */
function remember() {
  if (past.times.at(-1) >= now) return;
  const n = past.times.push(now);
  for (const node of state.lgpus) {
    for (const d of node.devices) {
      const key = `${node.id} ${d.uuid}`;
      if (!past.rows.has(key)) past.rows.set(key, { id: node.id, device: d.uuid, path: node.path, asked: [], delivered: [] });
      const row = past.rows.get(key);
      for (const name of ["asked", "delivered"]) {
        while (row[name].length < n - 1) row[name].push(null);
        row[name].push(d["compute.stat"][name]);
      }
    }
  }
  if (n > keep) {
    past.times.shift();
    for (const [key, row] of past.rows) {
      row.asked.shift();
      row.delivered.shift();
      if (row.delivered.every((v) => v === null)) past.rows.delete(key);
    }
  }
}

// --- devices

/** on returns the lgpus of a device, as [lgpu, what it has of the device]. */
function on(uuid) {
  return state.lgpus.map((n) => [n, n.devices.find((d) => d.uuid === uuid)]).filter(([, d]) => d);
}

/** card makes the elements of a device. */
function card(device) {
  const title = element("h2"), chips = element("span"), fault = element("p", { className: "fault", hidden: true });
  const measure = (name) => {
    const value = element("output"), stack = element("div", { className: "stack", role: "img" });
    const box = element("div", { className: "measure" }, element("h3", {}, name), value, stack);
    return { box, value, stack };
  };
  const memory = measure("Memory"), time = measure("Device time, last second");
  const asked = element("div", { className: "stack thin", role: "img" });
  time.box.append(asked, element("p", { className: "scale" }, "above: got, below: asked for"));
  const legend = element("ul", { className: "legend", "aria-label": `lgpus of ${device.name}` });
  const chart = (name, kind, label) => {
    const canvas = element("canvas", { role: "img", "aria-label": label }), said = element("output", { "aria-live": "off" });
    return { canvas, said, box: element("div", { className: `chart ${kind}` },
      element("div", { className: "bar-title" }, element("h3", {}, name), said), canvas) };
  };
  const turns = chart("Slices, last second", "timeline", `Who had ${device.name} over the last second`);
  const shares = chart("Got (line) and asked (dashed), last 10 min", "past", `Shares of ${device.name} over the last ten minutes`);
  const box = element("article", { className: "card", "aria-label": `Device ${device.index}, ${device.name}` },
    element("header", {}, title, chips), fault,
    element("div", { className: "columns" },
      element("div", {}, memory.box, time.box, legend), element("div", {}, turns.box, shares.box)));
  box.dataset.uuid = device.uuid;
  return { box, title, chips, fault, memory, time, asked, legend,
    timeline: new Timeline(turns.canvas, turns.said), past: new Past(shares.canvas, shares.said) };
}

/** fill gives a stack of parts, each with a colour or class, a width and words. */
function fill(stack, parts, label) {
  while (stack.children.length > parts.length) stack.lastChild.remove();
  while (stack.children.length < parts.length) stack.append(document.createElement("i"));
  parts.forEach((p, i) => {
    const e = stack.children[i];
    e.className = p.kind || "";
    e.style.setProperty("--own", p.colour || "");
    e.style.width = `${Math.min(100, 100 * p.part)}%`;
    e.title = p.text;
  });
  stack.setAttribute("aria-label", `${label}: ${parts.map((p) => p.text).join(", ") || "nothing"}`);
}

function showDevice(d, ids) {
  if (!cards.has(d.uuid)) {
    const c = card(d);
    cards.set(d.uuid, c);
    $("devices").append(c.box);
  }
  const c = cards.get(d.uuid), here = on(d.uuid);
  c.title.replaceChildren(element("span", { className: "index" }, d.index), d.name);
  const facts = [d.key.length > 12 ? d.key.slice(0, 12) : d.key, d.mode, d.units ? count(d.units, "unit") : "", d.sim && `software GPU ${d.sim}`];
  c.chips.replaceChildren(...facts.filter(Boolean).flatMap((f) => [element("span", { className: "chip" }, f), " "]));
  c.fault.hidden = !d.fault;
  c.fault.textContent = `Out of order: ${d.fault}`;

  const total = d["memory.capacity"], used = (l) => l["memory.current"], stat = (l) => l["compute.stat"];
  const strangers = d.processes.filter((p) => p.path === null), strange = strangers.reduce((sum, p) => sum + used(p), 0);
  const held = here.filter(([, l]) => used(l) > 0)
    .map(([n, l]) => ({ part: used(l) / total, colour: colour(n.id, ids), text: `${n.path} ${size(used(l))}` }));
  if (strange > 0) held.push({ part: strange / total, kind: "stranger", text: `without an lgpu ${size(strange)}` });
  fill(c.memory.stack, held, "Memory");
  c.memory.value.replaceChildren(size(used(d)), element("small", {}, ` of ${size(total)}`));

  const part = (field) => here.filter(([, l]) => stat(l)[field] > 0)
    .map(([n, l]) => ({ part: stat(l)[field] / 100, colour: colour(n.id, ids), text: `${n.path} ${share(stat(l)[field])}` }));
  fill(c.time.stack, part("delivered"), "Got");
  fill(c.asked, part("asked"), "Asked for");
  const sum = here.reduce((all, [, l]) => all + stat(l).delivered, 0), known = here.every(([, l]) => stat(l).delivered !== null);
  c.time.value.replaceChildren(known ? share(Math.min(sum, 100)) : "–",
    element("small", {}, known ? " to lgpus" : " not measured"), element("small", { className: "aside" }, d.utilisation === null ? "" : `, driver says ${d.utilisation} %`));

  const lines = here.map(([n, l]) => {
    const { asked, delivered } = stat(l);
    const behind = (l.state === "waiting" || l.state === "running") && delivered !== null && delivered + 3 < asked;
    return element("li", {},
      element("i", { own: colour(n.id, ids) }),
      element("span", { className: "path", title: n.path }, element("bdi", {}, n.path)),
      element("span", {}, size(used(l))),
      element("span", { className: behind ? "behind" : "", title: "asked for and got of the device's time" },
        delivered === null ? "not measured" : asked || delivered ? `${share(asked)} → ${share(delivered)}` : "idle"));
  });
  if (strangers.length) {
    const who = strangers.map((p) => `${p.command} (${p.pid})`).join(", ");
    lines.push(element("li", {}, element("i", { className: "stranger" }),
      element("span", { className: "path", title: who }, element("bdi", {}, `without an lgpu: ${who}`)), element("span", {}, size(strange)), element("span")));
  }
  if (!lines.length) lines.push(element("li", {}, element("i"), element("span", { className: "none" }, "no lgpu uses it")));
  c.legend.replaceChildren(...lines);

  c.timeline.names = new Map(here.map(([n]) => [n.id, [n.path, colour(n.id, ids)]]));
  const running = here.filter(([, l]) => l.state === "running");
  const quiet = (c.timeline.newest || 0) < (now - 1000) * 1e3;
  c.timeline.state(now * 1e3, quiet && running.length === 1 ? running[0][0].id : null);
  c.past.show(past.times, [...past.rows.values()].filter((r) => r.device === d.uuid)
    .map((r) => ({ path: r.path, colour: ids.has(r.id) ? colour(r.id, ids) : "var(--faint)", asked: r.asked, delivered: r.delivered })));
}

// --- the tree

function row(node) {
  const cell = (label, kind = "") => {
    const td = element("td", { className: kind });
    td.dataset.label = label;
    return td;
  };
  const cells = {
    node: cell("Path", "node"), device: cell("Device", "dev"), state: cell("State"), memory: cell("Memory", "memory"),
    share: cell("Asked → got", "share"), max: cell("compute.max", "num"), min: cell("compute.min", "num"), weight: cell("lgpu.weight", "num"),
    processes: cell("Processes", "num"), act: cell("", "act"),
  };
  const button = element("button", { type: "button" }, "Edit");
  cells.act.append(button);
  return { tr: element("tr", { className: node.kind }, ...Object.values(cells)), cells, button };
}

/** text sets a cell's text if it is another, which spares the browser a layout. */
function text(cell, value, faint) {
  if (cell.textContent !== value) cell.textContent = value;
  cell.classList.toggle("none", Boolean(faint));
}

function showNode(n, d, ids) {
  const key = `${n.id} ${d.uuid}`;
  if (!rows.has(key)) rows.set(key, row(n));
  const { tr, cells, button } = rows.get(key);
  const device = state.devices.find((o) => o.uuid === d.uuid);
  tr.className = n.kind;
  const depth = n.names.length, name = n.names.at(-1) || "/";
  cells.node.replaceChildren(
    element("span", { className: "indent" }, "\u2003".repeat(Math.max(0, depth - 1)) + (depth ? "└ " : "")),
    ...(n.kind === "lgpu" ? [element("span", { className: "swatch", own: colour(n.id, ids) })] : []), element("b", {}, name));
  cells.node.title = n.path;
  text(cells.device, device ? device.index : "?");
  if (n.kind === "lgpu") cells.state.replaceChildren(element("span", { className: `state ${d.state}` }, d.state || "idle"));
  else text(cells.state, "group", true);
  const used = d["memory.current"], limit = d.effective["memory.max"], total = device?.["memory.capacity"] || 0;
  const whole = limit === null || device && limit > total ? total : limit;
  const filled = whole ? used / whole : 0;
  cells.memory.replaceChildren(
    element("span", {}, element("span", { className: "mini" }, element("i", {
      className: filled >= 0.97 ? "full" : filled >= 0.85 ? "near" : "", width: `${Math.min(100, filled * 100)}%`,
    })), size(used), element("span", { className: "none" }, limit === null ? "" : ` / ${size(limit)}`)));
  const { asked, delivered } = d["compute.stat"], e = d.effective;
  text(cells.share, asked || delivered ? `${share(asked)} → ${share(delivered)}` : "–", !(asked || delivered));
  cells.share.title = delivered === null ? "not measured" : "";
  const max = e["compute.max"], min = e["compute.min"], priority = e["lgpu.priority"];
  text(cells.max, max === null ? "–" : share(max), max === null);
  text(cells.min, min ? share(min) : "–", !min);
  text(cells.weight, e["lgpu.weight"] + (priority === "normal" ? "" : ` ${priority}`));
  text(cells.processes, n.kind === "lgpu" ? String(n.processes.length) : "–", n.kind !== "lgpu");
  cells.processes.title = n.processes.map((c) => `${c.command} (${c.pid})`).join("\n");
  button.setAttribute("aria-label", `Edit limits of ${n.path}${state.devices.length > 1 && device ? ` on device ${device.index}` : ""}`);
  button.onclick = () => editor.edit(n, state.devices, d.uuid);
  return [key, tr];
}

/** order makes the children of an element those given, in their order, moving as few as possible. */
function order(parent, children) {
  children.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] || null);
  });
  while (parent.children.length > children.length) parent.lastChild.remove();
}

// --- all of it

function show() {
  const ids = new Set(state.lgpus.map((n) => n.id));
  const processes = state.lgpus.reduce((sum, n) => sum + n.processes.length, 0);
  $("summary").textContent = [count(state.devices.length, "device"), count(ids.size, "lgpu"), count(processes, "process")].join(", ");
  for (const d of state.devices) showDevice(d, ids);
  for (const [uuid, c] of cards) {
    if (!state.devices.some((d) => d.uuid === uuid)) {
      c.box.remove();
      cards.delete(uuid);
    }
  }
  if (!state.devices.length) $("devices").replaceChildren(element("p", { className: "note" }, "No devices. A software GPU comes with ", element("code", {}, "lgpu run --sim -- COMMAND"), "."));
  else $("devices").querySelector(".note")?.remove();

  document.body.classList.toggle("one-device", state.devices.length < 2);
  const filter = $("filter"), wanted = ["", ...state.devices.map((d) => d.uuid)];
  $("filter-label").hidden = state.devices.length < 2;
  if ([...filter.options].map((o) => o.value).join() !== wanted.join()) {
    const chosen = filter.value;
    filter.replaceChildren(new Option("all", ""), ...state.devices.map((d) => new Option(`${d.index} ${d.name}`, d.uuid)));
    filter.value = wanted.includes(chosen) ? chosen : "";
  }
  const shown = [], seen = new Set();
  for (const n of directories) {
    for (const d of n.devices) {
      if (filter.value && filter.value !== d.uuid) continue;
      const [key, tr] = showNode(n, d, ids);
      seen.add(key);
      shown.push(tr);
    }
  }
  for (const key of rows.keys()) if (!seen.has(key)) rows.delete(key);
  order($("nodes"), shown);
  $("tree").hidden = !shown.length;

  const d = state.daemon;
  $("about").textContent = `lgpu ${d.version}, process ${d.pid}, up since ${new Date(d.started).toLocaleString()}` +
    `${d.restarts ? `, ${count(d.restarts, "restart")}` : ""}, ${d.tree ? `tree at ${d.tree}` : `in ${d.dir}`}`;
}

function showEvents(events) {
  const trouble = /^(oom|police|drain|device\.fault|client\.refused|mps\.died|mount)/;
  const first = events[0]?.seq;
  if ($("events").dataset.first !== String(first)) {
    $("events").dataset.first = first;
    $("events").replaceChildren(...events.map((e) => element("li", { className: trouble.test(e.kind) ? "trouble" : "" },
      element("time", { dateTime: new Date(e.time).toISOString() }, clock(e.time)), element("code", {}, e.kind), element("span", {}, e.text || e.path))));
  }
  $("happened").hidden = !events.length;
}

/** animate moves the timelines: with the screen, or where motion is unwelcome once a second. */
function animate() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!document.hidden) for (const c of cards.values()) c.timeline.draw((Date.now() - offset) * 1e3);
  if (calm) setTimeout(animate, 1000);
  else requestAnimationFrame(animate);
}

function theme() {
  const root = document.documentElement, themes = [undefined, "light", "dark"];
  const words = { undefined: "as the system has them", light: "light", dark: "dark" };
  const set = (t) => {
    if (t) root.dataset.theme = t;
    else delete root.dataset.theme;
    $("theme").setAttribute("aria-label", `Colours: ${words[t]}`);
    $("theme").title = `Colours: ${words[t]}`;
  };
  set(root.dataset.theme);
  $("theme").onclick = () => {
    const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    localStorage.setItem("theme", next || "");
    set(next);
    if (state) show();
  };
}

function allow(session) {
  const editable = session.editable && session.authorized;
  document.body.classList.toggle("editable", editable);
  $("unlock").hidden = !session.editable || editable;
}

theme();
$("filter").onchange = () => state && show();
$("unlock").onclick = () => editor.unlock(() => {
  allow({ editable: true, authorized: true });
  connect(); // she may see more than was shown
});
addEventListener("resize", () => { for (const c of cards.values()) c.past.draw(); });
await editor.start().then(allow).then(recall).catch((e) => live("lost", e.message));
connect();
animate();
