// What the page reads out of the daemon's state (docs/json.md): the tree, who runs what, and what a filter lets through.
// There are no elements here, and nothing is kept from one state to the next.

/** names are the parts of a path. */
export const names = (path) => path.split("/").filter(Boolean);

/** inOrder returns groups and lgpus, parents before what is in them, each with its kind and the parts of its path. */
function inOrder({ groups, lgpus }) {
  const all = [...groups.map((g) => ({ ...g, kind: "group" })), ...lgpus.map((l) => ({ ...l, kind: "lgpu" }))];
  for (const d of all) d.names = names(d.path);
  return all.sort((a, b) => {
    const at = a.names.findIndex((name, i) => name !== b.names[i]);
    if (at < 0 || at >= b.names.length) return a.names.length - b.names.length;
    return a.names[at] < b.names[at] ? -1 : 1;
  });
}

/** usersOf are the names of those whose programs are in an lgpu or keep it. */
const usersOf = (node) => [...new Set([...node.processes, ...node.launchers].map((p) => p.user))].sort();

/** read makes of a state what is shown of it, where words, all in lower case, say what is to be seen. */
export function read(state, words) {
  const view = { state, devices: state.devices, nodes: inOrder(state), byUUID: new Map(), byPath: new Map(), filtered: words.length > 0 };
  const hay = new Map(); // device to the text that words are looked for in
  const foreign = (d) => strangers(d).map((p) => `\n${p.user} ${p.command} ${p.pid}`.toLowerCase()).join("");
  for (const d of state.devices) {
    view.byUUID.set(d.uuid, d);
    hay.set(d.uuid, [`device ${d.index}`, d.name, d.uuid, d.key, d.sim || ""].join("\n").toLowerCase());
  }
  const found = (text) => words.every((w) => text.includes(w));
  for (const n of view.nodes) {
    view.byPath.set(n.path, n);
    Object.assign(n, { parent: n.names.length ? `/${n.names.slice(0, -1).join("/")}` : null, users: usersOf(n), in: [], children: false });
    const own = [n.path, ...n.users, ...n.processes.map((p) => `${p.command} ${p.pid}`)].join("\n").toLowerCase();
    n.wanted = !view.filtered || found([own, ...n.devices.map((d) => hay.get(d.uuid) || "")].join("\n")) && (n.kind === "lgpu" || found(own));
  }
  for (const n of [...view.nodes].reverse()) { // a group has what is in it
    const up = view.byPath.get(n.parent);
    if (n.kind === "lgpu") n.in = [n];
    if (!up) continue;
    up.wanted ||= n.wanted;
    up.children = true;
    up.in.push(...n.in);
  }
  view.lgpus = view.nodes.filter((n) => n.kind === "lgpu");
  view.ids = new Set(view.lgpus.map((n) => n.id));
  for (const d of state.devices) {
    d.wanted = !view.filtered || found(hay.get(d.uuid) + foreign(d)) || on(view, d.uuid).some(([n]) => n.wanted);
  }
  return view;
}

/** inside sums up the lgpus at and below a node, of one device if there is one: how many, whose, with how many processes. */
export function inside(node, device = null) {
  const lgpus = device ? node.in.filter((n) => n.devices.some((d) => d.uuid === device)) : node.in;
  return { lgpus: lgpus.length, users: [...new Set(lgpus.flatMap((n) => n.users))].sort(),
    processes: lgpus.reduce((sum, n) => sum + n.processes.length, 0) };
}

/** on returns the lgpus of a device, as [lgpu, what it has of the device]. */
export function on(view, uuid) {
  return view.lgpus.map((n) => [n, n.devices.find((d) => d.uuid === uuid)]).filter(([, d]) => d);
}

/** strangers are the processes that use a device without an lgpu. */
export const strangers = (device) => device.processes.filter((p) => p.path === null);

/** behind says whether an lgpu that wants its device has clearly less of it than it is entitled to. */
export function behind({ state, "compute.stat": { asked, delivered } }) {
  return (state === "waiting" || state === "running") && delivered !== null && delivered + 3 < asked;
}

/** onDevice is how much of what is used of a device lies there. */
export const onDevice = (use) => use["memory.resident"] ?? use["memory.current"];

/** failures are the reasons why memory does not leave devices, or come back, as it should. */
export const failures = (uses) => [...new Set(uses.map((d) => d.residence_failure).filter(Boolean))];

/** total adds up what a group or an lgpu has of several devices. null is not known, and no limit. */
export function total(uses) {
  const add = (of) => uses.reduce((sum, d) => of(d) === null ? sum : (sum ?? 0) + of(d), null);
  const all = (of) => uses.some((d) => of(d) === null) ? null : add(of);
  const same = (of) => uses.every((d) => of(d) === of(uses[0])) ? { value: uses.length ? of(uses[0]) : null } : null;
  return {
    used: add((d) => d["memory.current"]) ?? 0, most: all((d) => d.effective["memory.max"]),
    asked: add((d) => d["compute.stat"].asked), delivered: add((d) => d["compute.stat"].delivered),
    evicted: add((d) => d["memory.evicted"]) ?? 0,
    state: ["running", "draining", "moving", "next", "unfit", "waiting", "suspending", "released", "suspended", "evicted"].find((s) => uses.some((d) => d.state === s)) || "idle",
    behind: uses.some(behind), power: add((d) => d["energy.stat"]?.watts ?? null),
    max: same((d) => d.effective["compute.max"]), min: same((d) => d.effective["compute.min"]),
    weight: same((d) => d.effective["lgpu.weight"] + (d.effective["lgpu.priority"] === "normal" ? "" : ` ${d.effective["lgpu.priority"]}`)),
  };
}

/** processes are those of a device or of a group or lgpu, the largest first: {pid, user, command, memory, path}. */
export function processes(view, { device, path }) {
  const all = [];
  for (const n of view.lgpus) {
    if (path !== undefined && n.path !== path && !(path === "/" || n.path.startsWith(`${path}/`))) continue;
    const at = n.devices.findIndex((d) => d.uuid === device);
    if (device && at < 0) continue;
    for (const p of n.processes) {
      const memory = device ? p["memory.current"][at] || 0 : p["memory.current"].reduce((a, b) => a + b, 0);
      all.push({ pid: p.pid, user: p.user, command: p.command, memory, path: n.path });
    }
  }
  for (const p of path === undefined && view.byUUID.has(device) ? strangers(view.byUUID.get(device)) : []) {
    all.push({ pid: p.pid, user: p.user, command: p.command, memory: p["memory.current"], path: null });
  }
  return all.sort((a, b) => b.memory - a.memory || a.pid - b.pid);
}
