// The tree of groups and lgpus as a table, for all devices together or for one. Groups are closed until somebody opens
// them, and show the sum of what is in them.

import { failures, inside, total } from "./model.js";
import { cell, colour, count, element, order, power, share, size, text, toNode } from "./format.js";
import * as editor from "./editor.js";

const most = 400; // rows: what is more takes a filter to be found

/** Tree keeps one table up to date. */
export class Tree {
  constructor(table) {
    this.body = table.querySelector("tbody");
    this.more = table.parentElement.querySelector(".more");
    this.rows = new Map(); // id to row
    this.open = new Set(["/"]); // paths of the groups that are open
  }

  /** show shows what is below a path, and of one device if there is one; what a filter has found is open. */
  show(view, { device = null, root = "/" } = {}) {
    this.last = [view, { device, root }];
    const shown = [], seen = new Set();
    let left = 0;
    for (const n of view.nodes) {
      const below = n.path === root || root === "/" || n.path.startsWith(`${root}/`);
      const uses = n.devices.filter((d) => !device || d.uuid === device);
      if (!below || !n.wanted || device && (!uses.length || !inside(n, device).lgpus) || !this.visible(view, n, root)) continue;
      if (shown.length >= most) {
        left++;
        continue;
      }
      seen.add(n.id);
      shown.push(this.row(view, n, uses, device, root));
    }
    for (const id of this.rows.keys()) if (!seen.has(id)) this.rows.delete(id);
    order(this.body, shown);
    this.more.hidden = !left;
    text(this.more, `${left} more; a filter finds them.`);
    return shown.length;
  }

  /** visible says whether all groups above a node, from the root that is shown, are open. */
  visible(view, n, root) {
    for (let up = n; up.path !== root; ) {
      up = view.byPath.get(up.parent);
      if (!up) return true; // what is above is not for this user
      if (up.path !== root && !view.filtered && !this.open.has(up.path)) return false;
    }
    return true;
  }

  make(n) {
    const cells = {
      node: cell("Name", "node"), users: cell("Users", "users"), device: cell("Devices", "dev"), state: cell("State"),
      memory: cell("Memory", "memory"), share: cell("Asked → got", "share"), max: cell("compute.max", "num"), min: cell("compute.min", "num"),
      weight: cell("lgpu.weight", "num"), power: cell("Power", "num drawn"), processes: cell("Processes", "num"), act: cell("", "act"),
    };
    const edit = element("button", { type: "button" }, "Edit"), toggle = element("button", { type: "button", className: "toggle" });
    const link = element("a"), indent = element("span", { className: "indent" }), swatch = element("span", { className: "swatch" });
    toggle.onclick = () => {
      if (!this.open.delete(toggle.dataset.path)) this.open.add(toggle.dataset.path);
      this.show(...this.last);
    };
    cells.act.append(edit);
    cells.node.append(indent, n.kind === "group" ? toggle : swatch, link);
    return { tr: element("tr", {}, ...Object.values(cells)), cells, edit, toggle, link, indent, swatch, kind: n.kind };
  }

  row(view, n, uses, device, root) {
    if (this.rows.get(n.id)?.kind !== n.kind) this.rows.set(n.id, this.make(n));
    const { tr, cells, edit, toggle, link, indent, swatch } = this.rows.get(n.id), sum = total(uses), has = inside(n, device);
    tr.className = n.kind;
    tr.dataset.path = n.path;
    text(indent, "\u2003".repeat(Math.max(0, n.names.length - (root === "/" ? 0 : root.split("/").length - 1))));
    text(link, n.names.at(-1) || "/");
    link.href = toNode(n.path);
    link.title = n.path;
    if (n.kind === "group") {
      const open = view.filtered || n.path === root || this.open.has(n.path);
      toggle.hidden = n.path === root || !n.children;
      toggle.dataset.path = n.path;
      toggle.setAttribute("aria-expanded", open);
      toggle.setAttribute("aria-label", `${open ? "Close" : "Open"} ${n.path}`);
      text(cells.state, has.lgpus ? count(has.lgpus, "lgpu") : "empty", true);
    } else {
      swatch.style.setProperty("--own", colour(n.id, view.ids));
      cells.state.replaceChildren(element("span", { className: `state ${sum.state}` }, sum.state));
      cells.state.title = failures(uses).join("\n");
    }
    text(cells.users, has.users.join(", "));
    cells.users.title = has.users.join(", ");
    text(cells.processes, String(has.processes), !has.processes);
    const indexes = uses.map((d) => view.byUUID.get(d.uuid)?.index ?? "?");
    text(cells.device, uses.length > 4 && uses.length === view.devices.length ? "all" : indexes.join(", "));
    this.figures(cells, sum, n, view, uses);
    const one = device && view.devices.length > 1 ? ` on device ${view.byUUID.get(device)?.index}` : "";
    edit.setAttribute("aria-label", `Edit limits of ${n.path}${one}`);
    edit.hidden = !n.devices.length;
    edit.onclick = () => editor.edit(n, view.devices, device || n.devices[0].uuid);
    return tr;
  }

  /** figures shows what is used and what the limits are. */
  figures(cells, sum, n, view, uses) {
    const capacity = uses.reduce((all, d) => all + (view.byUUID.get(d.uuid)?.["memory.capacity"] || 0), 0);
    const whole = sum.most === null ? capacity : Math.min(sum.most, capacity || sum.most), filled = whole ? sum.used / whole : 0;
    const shown = Math.min(100, filled * 100), off = sum.used ? shown * sum.evicted / sum.used : 0;
    cells.memory.title = sum.evicted ? `${size(sum.used - sum.evicted)} on the device, ${size(sum.evicted)} evicted` : "";
    cells.memory.replaceChildren(element("span", {}, element("span", { className: "mini" }, element("i", {
      className: filled >= 0.97 ? "full" : filled >= 0.85 ? "near" : "", width: `${shown - off}%`,
    }), element("i", { className: "evicted", width: `${off}%` })), element("span", { className: "figure" }, size(sum.used)), element("span", { className: "none" }, sum.most === null ? "" : ` / ${size(sum.most)}`)));
    const idle = !sum.asked && !sum.delivered;
    text(cells.share, sum.delivered === null && uses.length ? "not measured" : idle ? "–" : `${share(sum.asked || 0)} → ${share(sum.delivered)}`, idle);
    cells.share.classList.toggle("behind", sum.behind);
    cells.share.title = uses.length > 1 ? "of one device's time; 200 % are two devices" : "of the device's time";
    const limit = (td, all, write) => text(td, all === null ? "varies" : write(all.value), all === null || write(all.value) === "–");
    limit(cells.max, sum.max, (v) => v === null ? "–" : share(v));
    limit(cells.min, sum.min, (v) => v ? share(v) : "–");
    limit(cells.weight, sum.weight, (v) => v === null ? "–" : v);
    text(cells.power, power(sum.power));
    cells.processes.title = n.processes.map((c) => `${c.user}: ${c.command} (${c.pid})`).join("\n");
  }
}
