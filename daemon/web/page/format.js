// Numbers and elements, as the page writes them.

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

/** size writes bytes with one digit behind the point at most: "2.5 GiB". */
export function size(bytes) {
  let unit = 0;
  for (; bytes >= 1023.95 && unit < units.length - 1; unit++) bytes /= 1024;
  return `${Math.round(bytes * 10) / 10} ${units[unit]}`;
}

/** typed writes bytes so that they can be typed again without loss: "8GiB", "1500MiB". */
export function typed(bytes) {
  let unit = 0;
  for (; bytes >= 1024 && bytes % 1024 === 0 && unit < units.length - 1; unit++) bytes /= 1024;
  return `${bytes}${units[unit]}`;
}

/** share writes a percentage: "24.9 %". */
export function share(percent) {
  return `${percent >= 99.95 || Number.isInteger(percent) ? Math.round(percent) : percent.toFixed(1)} %`;
}

/** power writes watts: "351 W", "0.8 W"; nothing where they are not known. */
export function power(watts) {
  return watts === null ? "" : `${watts < 9.95 ? Math.round(watts * 10) / 10 : Math.round(watts)} W`;
}

/** energy writes joules: "812 J", "12.4 kJ", from a tenth of one on in kWh: "1.25 kWh"; nothing where they are not known. */
export function energy(joules) {
  if (joules === null) return "";
  if (joules >= 3.6e5) return `${(joules / 3.6e6).toFixed(2)} kWh`;
  return joules < 999.5 ? `${Math.round(joules)} J` : `${(joules / 1000).toFixed(1)} kJ`;
}

/** ago writes how long something is past, in ms: "12 s ago", "3 min ago". */
export function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s ago`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min ago` : `${Math.floor(seconds / 3600)} h ago`;
}

/** count writes a number with its noun: "1 device", "2 devices", "3 processes". */
export function count(n, noun) {
  if (n === 1) return `1 ${noun}`;
  return `${n} ${noun}${noun.endsWith("s") ? "es" : "s"}`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

/** element makes an element with properties and children; text is always text, never markup. */
export function element(name, properties = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "own") e.style.setProperty("--own", value);
    else if (key === "width") e.style.width = value;
    else if (key.includes("-")) e.setAttribute(key, value);
    else e[key] = value;
  }
  e.append(...children);
  return e;
}

/** text sets an element's text if it is another, which spares the browser a layout. */
export function text(e, value, faint) {
  if (e.textContent !== value) e.textContent = value;
  e.classList.toggle("none", Boolean(faint));
}

/** order makes the children of an element those given, in their order, moving as few as possible. */
export function order(parent, children) {
  children.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] || null);
  });
  while (parent.children.length > children.length) parent.lastChild.remove();
}

/** cell makes a cell of a table with the name of its column, which narrow screens show beside it. */
export function cell(label, kind = "") {
  const td = element("td", { className: kind });
  td.dataset.label = label;
  return td;
}

/** stack makes an empty bar of parts. */
export const stack = (kind = "") => element("div", { className: `stack ${kind}`.trim(), role: "img" });

/** fill gives a bar its parts, each with a colour or class, a part of the whole and words. */
export function fill(bar, parts, label) {
  while (bar.children.length > parts.length) bar.lastChild.remove();
  while (bar.children.length < parts.length) bar.append(document.createElement("i"));
  parts.forEach((p, i) => {
    const e = bar.children[i];
    e.className = p.kind || "";
    e.style.setProperty("--own", p.colour || "");
    e.style.width = `${Math.min(100, 100 * p.part)}%`;
    e.title = p.text;
  });
  bar.setAttribute("aria-label", `${label}: ${parts.map((p) => p.text).join(", ") || "nothing"}`);
}

/** toDevice and toNode are addresses within the page. */
export const toDevice = (uuid) => `#/device/${encodeURIComponent(uuid)}`;
export const toNode = (path) => `#/lgpu/${path.split("/").filter(Boolean).map(encodeURIComponent).join("/")}`;

const palette = 10;
const colours = new Map();

/** colour gives each lgpu one of the palette's colours and lets it keep it. Free ones are taken before any is used twice. */
export function colour(id, all) {
  if (!colours.has(id)) {
    for (const old of colours.keys()) if (!all.has(old)) colours.delete(old);
    const used = new Array(palette).fill(0);
    for (const c of colours.values()) used[c]++;
    colours.set(id, used.indexOf(Math.min(...used)));
  }
  return `var(--c${colours.get(id)})`;
}

/** resolve turns var(--x) into what a canvas understands. */
export function resolve(value) {
  const name = /^var\((--[\w-]+)\)$/.exec(value);
  return name ? getComputedStyle(document.documentElement).getPropertyValue(name[1]).trim() : value;
}
