// Several runs over one another.
import { byId, el, short, table } from "./dom.js";
import { chart, clear, swatch } from "./charts.js";

const hidden = new Set();

function draw(found) {
  const runs = found.runs.map((one, number) => ({ ...one, number })).filter((one) => !hidden.has(one.run));
  const rounds = [...new Set(runs.flatMap((one) => one.curves.round))].sort((a, b) => a - b);
  const lines = (name, of) => of.map((one) => {
    const values = new Map(one.curves.round.map((round, place) => [round, one.curves[name][place]]));
    return { label: one.name, number: one.number, values: rounds.map((round) => values.get(round) ?? null) };
  });
  const place = byId("charts");
  clear(place);
  const rated = Map.groupBy(runs, (one) => one.curves.rated_by);
  for (const [name, of] of rated) chart(place, `score ${name}`, name, rounds, lines("score", of), short);
  if (runs.length) chart(place, "loss", "loss", rounds, lines("loss", runs), short);
}

function begin(found) {
  const number = found.runs.length;
  byId("status").textContent = number < found.chosen ? `${number} of ${found.chosen} runs: no more are compared` : `${number} runs`;
  byId("lines").replaceChildren(...found.runs.map((one, number) => el("button", { type: "button", "aria-pressed": "true",
    onclick: (event) => {
      const on = hidden.has(one.run);
      hidden[on ? "delete" : "add"](one.run);
      event.currentTarget.setAttribute("aria-pressed", String(on));
      draw(found);
    } }, swatch(number), `${one.name} (${one.kind})`)));
  byId("table").append(table("Figures of the runs", found.heads, found.rows, { sorts: false }),
    el("ul", {}, found.runs.map((one) => el("li", {}, el("a", { href: `run?${new URLSearchParams({ run: one.run })}` }, one.name), `: ${one.title}`))));
  draw(found);
}

try {
  const answer = await fetch(`compare.json${location.search}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error([found.error, found.remedy].filter(Boolean).join("; "));
  begin(found);
} catch (error) {
  byId("status").textContent = error.message;
}
