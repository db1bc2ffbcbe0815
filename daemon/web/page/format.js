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

/** share writes hundredths of a percent: "24.9 %". */
export function share(hundredths) {
  return `${hundredths >= 9995 || hundredths % 100 === 0 ? Math.round(hundredths / 100) : (hundredths / 100).toFixed(1)} %`;
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
