// The first view: a line for each device, so that sixteen of them are seen at once.

import { behind, on, onDevice, strangers } from "./model.js";
import { ago, cell, colour, count, element, fill, order, power, share, size, stack, text, toDevice } from "./format.js";

const rows = new Map(); // uuid to row
const late = 5000; // ms after which a device's figures are old

function row(device) {
  const cells = {
    name: cell("Device", "device"), time: cell("Time", "bar"), memory: cell("Memory", "bar"), power: cell("Power", "num power"),
    heat: cell("Temperature", "num heat"), lgpus: cell("lgpus", "lgpus"), users: cell("Users", "users"),
  };
  const link = element("a", { href: toDevice(device.uuid) }), note = element("span", { className: "note-old" });
  cells.name.append(link, note);
  const bar = (td) => {
    const b = stack("small"), said = element("span", { className: "figure" });
    td.append(b, said);
    return [b, said];
  };
  const tr = element("tr", { className: "device-row", onclick: (e) => e.target.closest("a") || link.click() }, ...Object.values(cells));
  tr.dataset.uuid = device.uuid;
  return { tr, cells, link, note, time: bar(cells.time), memory: bar(cells.memory) };
}

/** memoryParts are what lgpus and strangers hold of a device's memory. */
export function memoryParts(view, d) {
  const total = d["memory.capacity"], strange = strangers(d).reduce((sum, p) => sum + p["memory.current"], 0);
  const parts = on(view, d.uuid).filter(([, l]) => onDevice(l) > 0).map(([n, l]) =>
    ({ part: onDevice(l) / total, colour: colour(n.id, view.ids), text: `${n.path} ${size(onDevice(l))}` }));
  if (strange > 0) parts.push({ part: strange / total, kind: "stranger", text: `without an lgpu ${size(strange)}` });
  return parts;
}

/** timeParts are what lgpus asked for or got of a device's time. */
export function timeParts(view, d, field) {
  return on(view, d.uuid).filter(([, l]) => l["compute.stat"][field] > 0).map(([n, l]) =>
    ({ part: l["compute.stat"][field] / 100, colour: colour(n.id, view.ids), text: `${n.path} ${share(l["compute.stat"][field])}` }));
}

/** got is the part of a device's time that went to lgpus, in percent: null where that is not measured. */
export function got(view, d) {
  const here = on(view, d.uuid);
  if (!here.every(([, l]) => l["compute.stat"].delivered !== null)) return null;
  return Math.min(100, here.reduce((sum, [, l]) => sum + l["compute.stat"].delivered, 0));
}

/** age is how old a device's figures are, in ms, if that is too old; else 0. */
export function age(view, d) {
  const old = d.sampled === null ? 0 : Date.parse(view.state.time) - Date.parse(d.sampled);
  return old > late ? old : 0;
}

function showRow(view, d) {
  if (!rows.has(d.uuid)) rows.set(d.uuid, row(d));
  const { tr, cells, link, note, time, memory } = rows.get(d.uuid), here = on(view, d.uuid), old = age(view, d);
  tr.classList.toggle("old", old > 0);
  tr.classList.toggle("broken", Boolean(d.fault));
  link.replaceChildren(element("span", { className: "index" }, d.index), d.name);
  link.title = [d.uuid, d.sim && `software GPU ${d.sim}`, d.fault && `out of order: ${d.fault}`].filter(Boolean).join("\n");
  text(note, d.fault ? "out of order" : old ? ago(old) : d.sim ? "software" : "");
  fill(time[0], timeParts(view, d, "delivered"), "Time");
  const used = got(view, d) ?? d.utilisation;
  text(time[1], used === null ? "–" : share(used), used === null);
  cells.time.title = got(view, d) === null ? "as the driver says" : "of the last second, to lgpus";
  fill(memory[0], memoryParts(view, d), "Memory");
  memory[1].replaceChildren(size(d["memory.current"]), element("small", {}, ` / ${size(d["memory.capacity"])}`));
  text(cells.power, power(d.power_watts));
  text(cells.heat, d.temperature === null ? "" : `${d.temperature} °C`);
  const short = here.filter(([, l]) => behind(l)).length, foreign = strangers(d).length;
  cells.lgpus.replaceChildren(element("span", { className: "figure" }, String(here.length)),
    ...(short ? [element("span", { className: "behind", title: "want more of the device than they get" }, ` ${short} behind`)] : []),
    ...(foreign ? [element("span", { className: "behind", title: `${count(foreign, "process")} without an lgpu` }, ` +${foreign}`)] : []));
  cells.lgpus.title = here.map(([n]) => n.path).join("\n");
  text(cells.users, [...new Set(here.flatMap(([n]) => n.users))].sort().join(", "));
  cells.users.title = cells.users.textContent;
  return tr;
}

/** showOverview brings the table of devices up to date. */
export function showOverview(view) {
  const shown = view.devices.filter((d) => d.wanted);
  order(document.getElementById("devices"), shown.map((d) => showRow(view, d)));
  for (const uuid of rows.keys()) if (!view.byUUID.has(uuid)) rows.delete(uuid);
  const none = document.getElementById("no-devices");
  document.getElementById("device-table").hidden = !shown.length;
  none.hidden = shown.length > 0;
  if (view.devices.length) none.replaceChildren("No device, and no lgpu on one, is as the filter says.");
  else none.replaceChildren("No devices. A software GPU comes with ", element("code", {}, "lgpu run --sim -- COMMAND"), ".");
}
