// The page: takes states and turns from the daemon's stream and shows them. Elements are made once and then kept up to
// date, so that focus, selection and pointers stay where they are. What is looked at is in the address: #/ is all,
// #/device/UUID one device (its index will do), #/lgpu/PATH one group or lgpu.

import { ago, clock, count, element, text } from "./format.js";
import { read } from "./model.js";
import { showOverview } from "./overview.js";
import { DeviceDetail, NodeDetail } from "./detail.js";
import { Tree } from "./tree.js";
import * as editor from "./editor.js";

const $ = (id) => document.getElementById(id);
const past = { times: [], rows: new Map() }; // what /api/history has, kept up to date
const keep = 600; // values of the past
const patience = 3000; // ms without news after which what is shown is old
const tree = new Tree($("nodes").closest("table"));
let state = null; // docs/json.md
let view = null; // what model.js reads out of it
let detail = null; // the device, group or lgpu that is looked at
let now = 0; // the state's time, in ms
let offset = 0; // ms that this machine's clock is ahead of the daemon's
let heard = performance.now(); // when the last state came
let lost = false; // whether the stream is broken

// --- the stream

let stream = null;

function connect() {
  stream?.close();
  stream = new EventSource(editor.stream());
  stream.addEventListener("state", (e) => {
    state = JSON.parse(e.data);
    now = Date.parse(state.time);
    offset = Date.now() - now;
    heard = performance.now();
    if (lost) editor.start().then(allow).catch(() => {}); // another daemon may have another token
    lost = false;
    remember();
    show();
    age();
  });
  stream.addEventListener("events", (e) => showEvents(JSON.parse(e.data)));
  stream.addEventListener("turns", (e) => {
    const { devices, ids, turns } = JSON.parse(e.data);
    if (!(detail instanceof DeviceDetail)) return;
    for (const [device, id, start, length] of turns) {
      if (devices[device] === detail.uuid) detail.timeline.add(start, length, ids[id]);
    }
  });
  stream.onerror = () => {
    lost = true;
    age();
  };
}

/** age says how old what is shown is, and dims it once nothing has come for a while. */
function age() {
  const silent = performance.now() - heard, old = silent > patience;
  $("live").dataset.state = lost || old ? "lost" : state ? "live" : "connecting";
  text($("live"), old ? `no news, ${ago(silent)}` : lost ? "trying again" : state ? "live" : "connecting");
  document.body.classList.toggle("stale", old);
  $("banner").hidden = !old;
  if (old) text($("banner-text"), state ? `The daemon does not answer. What is shown is of ${clock(now + offset)}, ` : "The daemon has not answered since ");
  if (old) text($("banner-ago"), ago(silent));
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

// --- what is looked at

/** route reads the address: {device} or {path}, or neither for all. What cannot be read is all. */
function route() {
  const [, kind, ...rest] = location.hash.split("/");
  try {
    const parts = rest.map(decodeURIComponent);
    if (kind === "device" && parts.length) return { device: parts.join("/") };
    if (kind === "lgpu") return { path: `/${parts.filter(Boolean).join("/")}` };
  } catch {
    // no text in UTF-8
  }
  return {};
}

/** look makes detail that of the address. It returns what is missing, in words. */
function look() {
  const { device, path } = route();
  const d = device === undefined ? undefined : view.byUUID.get(device) || view.devices.find((o) => o.index === device);
  const n = path === undefined ? undefined : view.byPath.get(path);
  if (d && detail?.uuid !== d.uuid) detail = new DeviceDetail(d);
  else if (n && detail?.path !== path) detail = new NodeDetail(n);
  else if (!d && !n) detail = null;
  const box = $("detail");
  if (box.firstElementChild !== (detail?.box || null)) box.replaceChildren(...(detail ? [detail.box] : []));
  return (device !== undefined && !d && `There is no device ${device}.`) || (path !== undefined && !n && `There is no group or lgpu ${path}.`) || "";
}

const words = () => $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);

function show() {
  view = read(state, words());
  const missing = look();
  text($("missing"), missing);
  $("missing").hidden = !missing;
  $("trail").hidden = !detail && !missing;
  $("overview").hidden = $("detail").hidden = true;
  (detail ? $("detail") : $("overview")).hidden = false;
  document.body.classList.toggle("one-device", state.devices.length < 2 || detail instanceof DeviceDetail);
  const known = (name) => state.devices.some((d) => d[name] !== null);
  document.body.classList.toggle("no-power", !known("power_watts"));
  document.body.classList.toggle("no-heat", !known("temperature"));
  document.body.classList.toggle("no-drawn", !view.nodes.some((n) => n.devices.some((d) => d["energy.stat"] !== null)));
  if (!detail) showOverview(view);
  else detail.show(view, past, now);
  const root = detail instanceof NodeDetail ? detail.path : "/", device = detail instanceof DeviceDetail ? detail.uuid : null;
  $("tree").hidden = !tree.show(view, { device, root }) && !view.filtered;
  $("happened").hidden = Boolean(detail) || !$("events").children.length;
  const processes = state.lgpus.reduce((sum, n) => sum + n.processes.length, 0);
  text($("summary"), [count(state.devices.length, "device"), count(view.ids.size, "lgpu"), count(processes, "process")].join(", "));
  const d = state.daemon;
  text($("about"), `lgpu ${d.version}, process ${d.pid}, up since ${new Date(d.started).toLocaleString()}` +
    `${d.restarts ? `, ${count(d.restarts, "restart")}` : ""}, ${d.tree ? `tree at ${d.tree}` : `in ${d.dir}`}`);
}

function showEvents(events) {
  const trouble = /^(oom|police|drain|device\.fault|client\.refused|mps\.died|mount)/;
  const first = events[0]?.seq;
  if ($("events").dataset.first !== String(first)) {
    $("events").dataset.first = first;
    $("events").replaceChildren(...events.map((e) => element("li", { className: trouble.test(e.kind) ? "trouble" : "" },
      element("time", { dateTime: new Date(e.time).toISOString() }, clock(e.time)), element("code", {}, e.kind), element("span", {}, e.text || e.path))));
  }
  $("happened").hidden = !events.length || Boolean(detail);
}

/** animate moves the timeline: with the screen, or where motion is unwelcome once a second. */
function animate() {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!document.hidden && detail instanceof DeviceDetail) detail.timeline.draw((Date.now() - offset) * 1e3);
  if (calm) setTimeout(animate, 1000);
  else requestAnimationFrame(animate);
}

// --- keys and buttons

/** step moves the focus to the next or the previous line of a table. */
function step(by) {
  const lines = [...document.querySelectorAll("main tbody tr")].map((tr) => tr.querySelector("a[href]")).filter((a) => a?.offsetParent);
  const at = lines.findIndex((a) => a.closest("tr").contains(document.activeElement));
  lines[at < 0 ? 0 : Math.min(Math.max(at + by, 0), lines.length - 1)]?.focus();
}

/** turn opens or closes the group of the line that has the focus. */
function turn(open) {
  const toggle = document.activeElement.closest("tr")?.querySelector(".toggle:not([hidden])");
  if (toggle && toggle.getAttribute("aria-expanded") !== String(open)) toggle.click();
}

function key(e) {
  if (e.ctrlKey || e.altKey || e.metaKey || e.target.closest("dialog")) return;
  if (e.key === "Escape" && e.target === $("filter")) {
    $("filter").value = "";
    $("filter").oninput();
    $("filter").blur();
    return;
  }
  if (e.target.closest("input, select, textarea")) return;
  const keys = { "/": () => $("filter").focus(), Escape: () => { if (detail) location.hash = "#/"; }, ArrowDown: () => step(1),
    ArrowUp: () => step(-1), ArrowRight: () => turn(true), ArrowLeft: () => turn(false) };
  const line = document.activeElement.closest("tbody tr");
  if (!keys[e.key] || e.key.startsWith("Arrow") && !line && document.activeElement !== document.body) return;
  e.preventDefault();
  keys[e.key]();
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
$("filter").oninput = () => state && show();
$("unlock").onclick = () => editor.unlock(() => {
  allow({ editable: true, authorized: true });
  connect(); // she may see more than was shown
});
addEventListener("keydown", key);
addEventListener("hashchange", () => {
  if (!state) return;
  show();
  scrollTo(0, 0);
  detail?.title.focus({ preventScroll: true });
});
addEventListener("resize", () => detail?.draw());
setInterval(age, 500);
await editor.start().then(allow).then(recall).catch(() => { lost = true; });
connect();
animate();
