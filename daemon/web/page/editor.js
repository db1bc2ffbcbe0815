// The token, and the form that writes limits.

import { typed } from "./format.js";

const key = "lgpu.token";
let token = sessionStorage.getItem(key) || "";
let sight = ""; // what the daemon knows a stream of this user by

/** signed is what a request of this user has, with other headers. */
const signed = (headers = {}) => token ? { ...headers, Authorization: `Bearer ${token}` } : headers;

/** get asks the daemon for a document. */
export const get = (url) => fetch(url, { headers: signed() });

/** stream is the address of the stream. */
export const stream = () => "/api/stream" + (sight ? `?view=${sight}` : "");

/** start takes a token out of the address and says whether this page may change something: {editable, authorized}. */
export async function start() {
  const given = /[#&]token=([^&]+)/.exec(location.hash);
  if (given) {
    token = decodeURIComponent(given[1]);
    history.replaceState(null, "", location.pathname); // it belongs in no bookmark and no screenshot
  }
  let session = await check(token);
  if (session.authorized) sessionStorage.setItem(key, token);
  else if (token) { // of another daemon, or of no user any more: without it, this machine may know the user
    token = "";
    session = await check(token);
  }
  sight = session.view || "";
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
    const session = await check(candidate);
    if (!session.authorized) throw new Error("This is not a token of this daemon. lgpu page prints yours.");
    token = candidate;
    sight = session.view || "";
    sessionStorage.setItem(key, token);
    fields.token.value = "";
    done();
  });
}

/** present is what the fields of a device hold before they are edited. */
function present(d) {
  const bytes = (v) => v === null ? "" : typed(v), text = (v) => v === null ? "" : String(v), r = d.requested;
  return {
    "memory.max": bytes(r["memory.max"]),
    "memory.high": bytes(r["memory.high"]),
    "compute.max": text(r["compute.max"]),
    "compute.min": text(r["compute.min"]),
    "lgpu.weight": text(r["lgpu.weight"]),
    "lgpu.priority": text(r["lgpu.priority"]),
    "lgpu": r.lgpu === "max" ? "" : r.lgpu,
  };
}

// What a file is told where its field is empty.
const unset = { "compute.min": "0", "lgpu.weight": "100", "lgpu.priority": "default" };

/** edit shows the limits of a group or an lgpu and writes those that were changed. */
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
      headers: signed({ "Content-Type": "application/json" }),
      body: JSON.stringify({ path: node.path, files }),
    });
    if (answer.status === 401) {
      unlock(() => {});
      throw new Error("The daemon does not know this page's token any more. Give the one that it has now, and save again.");
    }
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || `The daemon answered ${answer.status}.`);
  });
}
