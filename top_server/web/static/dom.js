// Elements, tables and numbers. Text always becomes a text node: nothing here reads markup.

/** An element with attributes and children; `on...` attributes are listeners, null children are left out. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Fetches JSON; an error has the reason of the server, and what to do. */
export async function json(path, parameters) {
  const query = new URLSearchParams(parameters);
  const answer = await fetch(`${path}?${query}`);
  const value = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error([value.error, value.remedy].filter(Boolean).join("; "));
  return value;
}

const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, s: 1, min: 60, h: 3600 };

/** A number: with a sign at the begin of a word; with decimals, unless it is part of a version or an address. */
const NUMBER = /((?:(?<=^|\s)-)?(?<!\d\.)(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+(?!\.?\d))?(?:e[+-]\d+)?|\d+)/;
const MEASURE = new RegExp(`^${NUMBER.source}\\s*(%|${Object.keys(UNITS).join("|")})?$`);
const number = (text) => Number(text.replaceAll(",", ""));

/** What a cell is sorted by: texts and numbers in turn. A cell that is one number with a unit counts in all units. */
function rank(text) {
  const found = MEASURE.exec(text);
  if (found) return ["", number(found[1]) * (UNITS[found[2]] ?? 1)];
  return text.split(NUMBER).map((part, place) => place % 2 ? number(part) : part);
}

/** The order of two cells; empty ones come last. */
export function compare(left, right) {
  if (left === "" || right === "") return (left === "") - (right === "");
  const [ours, theirs] = [rank(left), rank(right)];
  for (let place = 0; place < Math.min(ours.length, theirs.length); place++) {
    const order = place % 2 ? ours[place] - theirs[place] : ours[place].localeCompare(theirs[place]);
    if (order) return order;
  }
  return ours.length - theirs.length;
}

/** A table that is sorted by its heads, and that can be scrolled by keyboard. Cells are texts or elements. */
export function table(caption, heads, rows, { sorts = rows.length > 1 } = {}) {
  const body = el("tbody");
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) =>
    el("tr", {}, row.map((cell, place) => place ? el("td", {}, cell) : el("th", { scope: "row" }, cell)))));
  const cells = heads.map((head, place) => {
    if (!sorts) return el("th", { scope: "col" }, head);
    const cell = el("th", { scope: "col" });
    cell.append(el("button", { type: "button", onclick: () => {
      const down = cell.getAttribute("aria-sort") === "ascending";
      cells.forEach((one) => one.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = (row) => row[place] instanceof Node ? row[place].textContent : String(row[place]);
      const sorted = [...rows].sort((a, b) => compare(text(a), text(b)));
      fill(down ? sorted.reverse() : sorted);
    } }, head));
    return cell;
  });
  fill(rows);
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, cells)), body));
}

/** Replaces all after the heading of a section. */
export function fill(section, ...children) {
  const kept = section.querySelector("h2");
  while (kept.nextSibling) kept.nextSibling.remove();
  section.append(...children.flat().filter(Boolean));
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  let number = bytes;
  for (const unit of ["B", "kB", "MB"]) {
    if (number < 1000) return unit === "B" ? `${number} B` : `${number.toFixed(1)} ${unit}`;
    number /= 1000;
  }
  return `${number.toFixed(1)} GB`;
}

export function duration(seconds) {
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export const short = (value) => value === null || value === undefined ? "" : Number(value.toPrecision(4)).toString();

/** Calls `work` once before the next picture, however often it was asked for. */
export function soon(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; work(); });
  };
}
