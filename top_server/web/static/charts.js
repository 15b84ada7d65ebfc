// Curves by round, drawn by uPlot (MIT licence, uPlot.LICENSE.txt), with their values as a table for everybody.
import { el, short, table } from "./dom.js";

const LIGHT = ["#1d4ed8", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#be123c", "#4d7c0f", "#854d0e",
  "#4338ca", "#0f766e", "#a21caf", "#57534e"];
const DARK = ["#8ab4ff", "#fb923c", "#4ade80", "#d8b4fe", "#67e8f9", "#fda4af", "#bef264", "#fcd34d",
  "#a5b4fc", "#5eead4", "#f0abfc", "#d6d3d1"];
export const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map();

export const colour = (number) => (dark.matches ? DARK : LIGHT)[number % LIGHT.length];
export const dash = (number) => DASHES[Math.floor(number / LIGHT.length + number) % DASHES.length];

/** A short line in the colour of a curve. */
export function swatch(number) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({ x1: 0, y1: 5, x2: 24, y2: 5, "stroke-width": 3, stroke: colour(number),
    "stroke-dasharray": dash(number).join(" ") })) line.setAttribute(name, value);
  svg.setAttribute("viewBox", "0 0 24 10");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Draws curves into a place, or new values into the chart that is there.
 *
 * `lines` are {label, values}; `say` makes a text of a value.
 */
export function chart(place, name, title, rounds, lines, say = short) {
  const found = drawn.get(place)?.get(name);
  const data = [rounds, ...lines.map((line) => line.values)];
  if (found && found.plot.series.length === data.length) {
    Object.assign(found, { rounds, lines });
    found.plot.setData(data);
    found.tell();
    return found;
  }
  found?.watch();
  found?.figure.remove();
  const plotted = el("div", { class: "plot" });
  const caption = el("figcaption");
  const values = el("details", {}, el("summary", {}, `Values: ${title}`));
  const figure = el("figure", {}, caption, plotted, values);
  place.append(figure);
  const one = { figure, rounds, lines, plot: null, tell: null };
  const legend = el("p", { class: "legend" });
  if (lines.length > 1) plotted.after(legend);
  one.tell = (index = null) => {
    const at = (line) => index === null ? line.values.findLast((value) => value !== null) : line.values[index];
    const when = index === null ? "last" : `round ${one.rounds[index]}:`;
    const told = one.lines.length === 1 && (at(one.lines[0]) ?? null) !== null;
    caption.replaceChildren(title, el("span", {}, told ? `, ${when} ${say(at(one.lines[0]))}` : index === null ? "" : `, ${when}`));
    legend.replaceChildren(...one.lines.map((line, number) =>
      el("span", {}, swatch(line.number ?? number), ` ${line.label} ${say(at(line) ?? null)}`)));
    if (values.open && index === null) show();
  };
  const show = () => {
    const rows = one.rounds.map((round, place_) => [String(round), ...one.lines.map((line) => say(line.values[place_]))]);
    values.replaceChildren(values.firstChild, table(`Values: ${title}`, ["round", ...one.lines.map((line) => line.label)], rows));
  };
  values.addEventListener("toggle", () => values.open && show());
  const draw = () => {
    one.plot?.destroy();
    one.plot = new uPlot(options(plotted, one, say), [one.rounds, ...one.lines.map((line) => line.values)], plotted);
  };
  draw();
  one.tell();
  const sizes = new ResizeObserver(() => one.plot.setSize(room(plotted)));
  sizes.observe(plotted);
  dark.addEventListener("change", draw);
  one.watch = () => {
    sizes.disconnect();
    dark.removeEventListener("change", draw);
    one.plot.destroy();
  };
  if (!drawn.has(place)) drawn.set(place, new Map());
  drawn.get(place).set(name, one);
  return one;
}

/** Takes all charts out of a place. */
export function clear(place) {
  for (const { figure, watch } of drawn.get(place)?.values() ?? []) {
    watch();
    figure.remove();
  }
  drawn.delete(place);
}

const room = (place) => ({ width: Math.max(200, place.clientWidth), height: 230 });

function options(place, one, say) {
  const lines = one.lines;
  const axis = { stroke: variable("--quiet"), grid: { stroke: variable("--line"), width: 1 }, ticks: { show: false },
    font: "12px system-ui, sans-serif" };
  return {
    ...room(place),
    legend: { show: false },
    hooks: { setCursor: [(plot) => one.tell(plot.cursor.idx ?? null)] },
    cursor: { sync: { key: "rounds" }, drag: { x: true, y: false } },
    scales: { x: { time: false } },
    axes: [{ ...axis, size: 30, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
      { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => say(tick)) }],
    series: [{ label: "round" }, ...lines.map((line, number) => ({
      label: line.label, stroke: colour(line.number ?? number), dash: dash(line.number ?? number), width: 2, spanGaps: true,
      points: { show: line.values.length < 30, size: 5 },
    }))],
  };
}
