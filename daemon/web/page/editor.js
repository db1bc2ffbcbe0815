// The token, and the form that writes limits.

import { typed } from "./format.js";

const key = "lgpu.token";
let token = sessionStorage.getItem(key) || "";

/** start takes a token out of the address and says whether this page may change something: {editable, authorized}. */
export async function start() {
  const given = /[#&]token=([^&]+)/.exec(location.hash);
  if (given) {
    token = decodeURIComponent(given[1]);
    history.replaceState(null, "", location.pathname); // it belongs in no bookmark and no screenshot
  }
  const session = await check(token);
  if (session.authorized) sessionStorage.setItem(key, token);
  return session;
}

async function check(candidate) {
  const answer = await fetch("/api/session", { headers: candidate ? { Authorization: `Bearer ${candidate}` } : {} });
  return answer.json();
}

/** modal shows a dialog whose form does something on submit. An error that it throws is shown, and the dialog stays. */
function modal(dialog, submit) {
  const form = dialog.querySelector("form"), error = dialog.querySelector(".error");
  error.hidden = true;
  form.onsubmit = async (e) => {
    e.preventDefault();
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    try {
      await submit(form.elements);
      dialog.close();
    } catch (reason) {
      error.textContent = reason.message;
      error.hidden = false;
    } finally {
      button.disabled = false;
    }
  };
  form.querySelector("[value=cancel]").onclick = () => dialog.close();
  dialog.showModal();
}

/** unlock asks for the token and calls done when it is right. */
export function unlock(done) {
  modal(document.getElementById("gate"), async (fields) => {
    const candidate = fields.token.value.trim();
    if (!(await check(candidate)).authorized) throw new Error("This is not the token of this daemon.");
    token = candidate;
    sessionStorage.setItem(key, token);
    fields.token.value = "";
    done();
  });
}

/** present is what the fields of a device hold before they are edited. */
function present(d) {
  const r = d.requested, percent = (v) => v === null ? "" : String(v / 100);
  return {
    "memory.max": r.memory_max === null ? "" : typed(r.memory_max),
    "memory.high": r.memory_high === null ? "" : typed(r.memory_high),
    "compute.max": percent(r.compute_max),
    "compute.min": percent(r.compute_min),
    "lgpu.weight": r.weight === null ? "" : String(r.weight),
    "lgpu.priority": r.priority,
    "lgpu": r.lgpu === "max" ? "" : r.lgpu,
  };
}

// What a file is told where its field is empty.
const unset = { "compute.min": "0", "lgpu.weight": "100", "lgpu.priority": "default" };

/** edit shows the limits of a node and writes those that were changed. */
export function edit(node, devices, chosen) {
  const dialog = document.getElementById("editor"), fields = dialog.querySelector("form").elements;
  document.getElementById("editor-title").textContent = `Limits of ${node.path}`;
  const select = fields.device;
  select.replaceChildren(...node.devices.map((d) => {
    const device = devices.find((o) => o.uuid === d.uuid);
    return new Option(device ? `${device.index} ${device.name} (${device.key})` : d.uuid, d.uuid);
  }));
  let before = {};
  const fill = () => {
    before = present(node.devices.find((d) => d.uuid === select.value));
    for (const [name, value] of Object.entries(before)) fields[name].value = value;
  };
  select.value = chosen;
  select.onchange = fill;
  fill();
  modal(dialog, async () => {
    const device = devices.find((d) => d.uuid === select.value);
    const files = {};
    for (const [name, value] of Object.entries(before)) {
      let now = fields[name].value.trim();
      if (now === value) continue;
      if (name === "lgpu" && /^\d+$/.test(now)) now = `count=${now}`;
      files[name] = `${device ? device.key : select.value} ${now || unset[name] || "max"}\n`;
    }
    if (Object.keys(files).length === 0) return;
    const answer = await fetch("/api/write", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: JSON.stringify({ path: node.path, files }),
    });
    if (answer.status === 401) {
      unlock(() => {});
      throw new Error("The daemon does not know this page's token any more. Give the one that it has now, and save again.");
    }
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || `The daemon answered ${answer.status}.`);
  });
}
