// The list of runs, which is read again from time to time.
import { byId, el, json, table } from "./dom.js";

const AGAIN_MS = 5000;
let runs = [], chosen = new Set(), before = "";

function shown() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((one) => {
    const text = [one.name, one.scheme, one.task, one.kind, one.title, one.score].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function draw() {
  const found = shown();
  byId("status").textContent = runs.length ? `${found.length} of ${runs.length} runs` : "There are no runs here yet.";
  const rows = found.map((one) => [
    el("span", { class: "row" },
      el("input", { type: "checkbox", name: "run", value: one.run, checked: chosen.has(one.run), "aria-label": `choose ${one.name}`,
        onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](one.run); ready(); } }),
      el("a", { href: `run?${new URLSearchParams({ run: one.run })}` }, one.name)),
    el("span", {}, el("span", { class: `state ${one.title === "The run is playing." ? "live" : one.kind}` }, one.title === "The run is playing." ? "live" : one.kind)),
    one.scheme, one.task, one.seed, `${one.round} of ${one.rounds}`, one.score, one.changed.slice(0, 19).replace("T", " "), one.title,
  ]);
  byId("runs").replaceChildren(rows.length
    ? table("Runs", ["run", "state", "scheme", "task", "seed", "rounds", "score", "last change (UTC)", "how it stands"], rows) : "");
  ready();
}

function ready() {
  byId("compare").disabled = chosen.size < 2;
}

async function read() {
  try {
    runs = await json("runs.json");
    const now = JSON.stringify(runs);
    if (now !== before && !byId("runs").contains(document.activeElement)) {
      before = now;
      draw();
    }
  } catch (error) {
    byId("status").textContent = `The list cannot be read: ${error.message}`;
  }
  setTimeout(read, AGAIN_MS);
}

byId("filter").addEventListener("input", draw);
byId("choose").addEventListener("submit", (event) => { if (chosen.size < 2) event.preventDefault(); });
ready();
read();
