// The page of one run: first the whole record, then each event as it comes.
import { byId, duration, el, fill, json, short, size, soon, table } from "./dom.js";
import { chart } from "./charts.js";
import { Round, RoundView } from "./live.js";
import { picture } from "./pictures.js";

const run = new URLSearchParams(location.search).get("run");
const view = new RoundView(byId("groups"), byId("all-groups"));
/** Lines of events that stay on the page, and how soon the whole is read again after a round, in milliseconds. */
const MOST_LINES = 300, AGAIN_MS = 1500;
/** Troubles and names on the first screen. */
const MOST_TROUBLES = 3, FEW_NAMES = 6;
/** Kinds of events after which the whole says something else. */
const NEWS = new Set(["listening", "round_finished", "run_started", "run_resumed", "run_finished", "run_failed", "run_stopped",
  "node_joined", "node_left", "node_refused", "distances_found"]);
let whole = null, round = new Round(0), follows = true, source = null, end = 0, due = null, reached = true;

const showProgress = soon(() => {
  const state = round.finished ? "finished" : "training";
  byId("progress").textContent = round.begun
    ? `${state}, ${round.trained} of ${round.clients} clients trained in ${round.groups.length} ${round.groups.length === 1 ? "group" : "groups"}`
    : whole?.begun.length ? "reading" : "no round has begun";
  byId("why").textContent = round.reason;
});

function showState() {
  const { ending, lives } = whole;
  const playing = ending.kind === "open" && lives !== false;
  const state = byId("state");
  const words = { finished: "finished", failed: "failed", stopped: "stopped", open: lives ? "live" : "open" };
  state.textContent = reached ? words[ending.kind] : "connection lost";
  state.className = `state ${!reached ? "lost" : playing && lives ? "live" : ending.kind}`;
  const notice = byId("ending");
  notice.hidden = playing && !ending.reason && reached && !whole.troubles.length;
  notice.className = `notice ${ending.kind}`;
  const lines = [el("p", { class: "title" }, ending.title)];
  if (ending.reason) lines.push(el("p", {}, `Reason: ${ending.reason}`));
  if (ending.remedy) lines.push(el("p", {}, `What to do: ${ending.remedy}`));
  if (!reached) lines.push(el("p", {}, "This page has lost its server: the top server has ended or was killed, or the network is cut. The page goes on by itself when the server is back; recorded runs are shown by top-server web RUNS_DIR."));
  const worst = last(whole.troubles);
  if (worst.length) lines.push(el("ul", {}, worst.map((one) => el("li", {}, sentence(one)))),
    whole.troubles.length > 1 ? el("p", {}, el("a", { href: "#troubles" }, "All that went wrong, by client and node")) : null);
  notice.replaceChildren(...lines.filter(Boolean));
}

/** The troubles for the first screen: the same trouble of several clients is one, nodes and late rounds come first. */
function last(troubles) {
  const harmless = new Set(["got its model another way", "was taken over by another group manager"]);
  const bad = troubles.filter((one) => !harmless.has(one.what));
  const alike = Map.groupBy(bad.length ? bad : troubles, (one) => `${one.what} ${one.reason} ${one.remedy}`);
  const found = [...alike.values()].map((some) => ({ ...some[0], whos: some.map((one) => one.who), last: Math.max(...some.map((one) => one.last)),
    first: Math.min(...some.map((one) => one.first)), times: Math.max(...some.map((one) => one.times)) }));
  const rank = (one) => one.who.startsWith("node ") || one.who.startsWith("group manager ") ? 0 : 1;
  return found.sort((a, b) => rank(a) - rank(b) || b.last - a.last || b.times - a.times).slice(0, MOST_TROUBLES);
}

function sentence(one) {
  const when = one.last ? one.first === one.last ? `, round ${one.last}` : `, rounds ${one.first} to ${one.last}` : "";
  const times = one.times > 1 ? ` (${one.times} times)` : "";
  const reason = one.reason ? `: ${one.reason}` : "";
  const what = one.whos.length > 1 ? several(one.what) : one.what;
  return `${list(one.whos)}: ${what}${times}${when}${reason}${one.remedy ? `. What to do: ${one.remedy}.` : ""}`;
}

const several = (what) => what.replace(/^was /, "were ").replace(/^is /, "are ").replace(/^has /, "have ");

/** "client 0", or "clients 0, 3, 5 and 4 more". */
function list(whos) {
  const [noun] = whos[0].split(" ");
  if (whos.length === 1 || noun !== "client") return whos.slice(0, FEW_NAMES).join(", ") + more(whos);
  return `clients ${whos.slice(0, FEW_NAMES).map((who) => who.slice("client ".length)).join(", ")}${more(whos)}`;
}

const more = (whos) => whos.length > FEW_NAMES ? ` and ${whos.length - FEW_NAMES} more` : "";

function tile(label, value, more = "") {
  return el("div", {}, el("dt", {}, label), el("dd", {}, value, more ? el("small", {}, ` ${more}`) : null));
}

function showTiles() {
  const { curves, present } = whole;
  const open = whole.ending.kind === "open";
  const nodes = open ? present.nodes : whole.nodes.rows.length;
  const place = (name) => curves[name].findLastIndex((value) => value !== null);
  const evaluated = Math.max(place("score"), place("loss"));
  /** The last value of an evaluation, and the round that it is of if a later one was evaluated. */
  const newest = (label, name, unit) => place(name) < 0 ? tile(label, "-") : tile(label, short(curves[name][place(name)]),
    [unit, place(name) < evaluated ? `round ${curves.round[place(name)]}` : ""].filter(Boolean).join(", "));
  const sum = (name) => curves[name].reduce((total, value) => total + (value ?? 0), 0);
  const done = curves.round.at(-1) ?? 0;
  const recent = curves.seconds.slice(-10).filter((value) => value !== null);
  const left = recent.length && whole.lives && open
    ? duration((whole.rounds - done) * recent.reduce((a, b) => a + b) / recent.length) : "";
  const [rating, unit] = curves.rated_by.split(", ");
  byId("tiles").replaceChildren(
    tile("Rounds finished", `${done}`, `of ${whole.rounds}`),
    newest(rating, "score", unit),
    newest("Loss", "loss"),
    tile(open ? "Clients there" : "Clients", `${open ? present.clients : whole.clients.rows.length}`, `on ${nodes} ${nodes === 1 ? "node" : "nodes"}`),
    tile("Weights moved", size(sum("bytes_direct") + sum("bytes_relayed")), `${size(sum("bytes_travelled"))} travelled`),
    tile("Skipped", `${sum("clients_skipped")}`, `of ${sum("clients_skipped") + sum("clients_trained")} trainings`),
    tile("Time of rounds", duration(sum("seconds")), left ? `about ${left} left` : ""));
}

function showCurves() {
  const { curves } = whole;
  const place = byId("charts");
  if (!curves.round.length) {
    place.replaceChildren(el("p", { class: "quiet" }, "No round is finished."));
    return;
  }
  place.querySelector(":scope > p")?.remove();
  const some = (values) => values.some((value) => value !== null);
  const draw = (name, title, lines, say) => lines.some((line) => some(line.values)) &&
    chart(place, name, title, curves.round, lines.filter((line) => some(line.values)), say);
  draw("score", curves.rated_by, [{ label: curves.rated_by, values: curves.score }]);
  draw("loss", "loss", [{ label: "loss", values: curves.loss }]);
  for (const [name, values] of Object.entries(curves.metrics)) draw(`metric ${name}`, name, [{ label: name, values }]);
  draw("bytes", "weights moved in a round", [{ label: "from node to node", values: curves.bytes_direct },
    { label: "through managers and top server", values: curves.bytes_relayed },
    { label: "travelled over connections", values: curves.bytes_travelled }], size);
  draw("seconds", "time of a round", [{ label: "time", values: curves.seconds }], (value) => value === null ? "" : `${short(value)} s`);
  draw("clients", "clients", [{ label: "trained", values: curves.clients_trained },
    { label: "skipped", values: curves.clients_skipped }]);
}

function showTables() {
  const { clients, nodes, troubles } = whole;
  const waits = whole.counted ? null : el("p", { class: "quiet" }, "The numbers of trainings are still being counted.");
  fill(byId("clients"), waits, clients.rows.length ? table("Results of each client", clients.heads, clients.rows)
    : el("p", { class: "quiet" }, "No client has trained."));
  fill(byId("sites"), nodes.rows.length ? table("Nodes: their clients, versions and links", nodes.heads, nodes.rows)
    : el("p", { class: "quiet" }, "No node has joined."));
  const parts = troubles.length
    ? [table("What went wrong, by client, node, manager, group and round", ["who", "what", "times", "rounds", "last reason", "what to do"],
      troubles.map((one) => [one.who, one.what, String(one.times), one.rounds, one.reason, one.remedy]))]
    : [el("p", { class: "quiet" }, "Nothing went wrong: no client was skipped, and no node or group manager was lost.")];
  fill(byId("troubles"), parts);
  const pair = (title, rows) => rows.length ? el("div", {}, el("h3", {}, title), table(title, ["what", "value"], rows, { sorts: false })) : null;
  fill(byId("settings"), el("div", { class: "pair" }, pair("Result", whole.result), pair("Costs", whole.costs),
    pair("Settings that are not the default", whole.chosen)),
  el("details", {}, el("summary", {}, "All settings (config.toml)"), el("pre", { tabindex: "0" }, whole.settings)));
}

function showLines(lines, loud) {
  const place = byId("lines");
  const made = lines.map((line) => el("li", {}, el("time", {}, line.time), el("span", { class: line.remedy ? "trouble" : "" }, line.text),
    line.remedy ? el("span", { class: "remedy" }, `What to do: ${line.remedy}`) : null));
  place.prepend(...made.reverse());
  while (place.children.length > MOST_LINES) place.lastChild.remove();
  if (loud && lines.length) byId("announce").textContent = lines.at(-1).text;
}

async function readWhole() {
  whole = await json("run.json", { run });
  view.names = whole.names;
  byId("what").textContent = `Scheme ${whole.scheme}, task ${whole.task}`;
  byId("round").max = String(whole.round || 1);
  showState();
  showTiles();
  showCurves();
  showTables();
  picture(byId("pictures"), run, whole);
  showProgress();
  if (!whole.counted) later(AGAIN_MS);
  return whole;
}

function later(milliseconds) {
  due ??= setTimeout(() => {
    due = null;
    readWhole().catch(sorry);
  }, milliseconds);
}

async function readRound(number) {
  const found = await json("round.json", { run, round: number });
  round = new Round(number);
  for (const event of found.events) round.take(event);
  byId("round").value = String(number);
  view.show(round);
  showProgress();
  return found;
}

function take(message) {
  end = message.end;
  for (const event of message.events) {
    if (event.event === "round_started") {
      whole.begun.push(event.round);
      byId("round").max = String(event.round);
      if (follows) {
        if (round.number !== event.round) round = new Round(event.round);  // a resumed run continues the round
        byId("round").value = String(event.round);
      }
    }
    const changed = round.take(event);
    if (changed === "all") view.show(round);
    else if (changed) view.change(changed);
    if (NEWS.has(event.event)) later(event.event.startsWith("run_") ? 0 : AGAIN_MS);
  }
  showLines(message.told, true);
  showProgress();
}

function listen() {
  source?.close();
  source = new EventSource(`events?${new URLSearchParams({ run, from: end })}`);
  source.onopen = () => back(true);
  source.onmessage = (message) => take(JSON.parse(message.data));
  source.addEventListener("state", (message) => {
    const { lives, full } = JSON.parse(message.data);
    if (whole.lives !== lives || whole.full !== full) later(lives ? 0 : 300);
  });
  source.addEventListener("anew", () => { source.close(); begin().catch(sorry); });
  source.onerror = () => {
    back(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

function back(now) {
  if (reached === now) return;
  reached = now;
  if (now) later(0);
  showState();
}

function sorry(error) {
  const notice = byId("ending");
  notice.hidden = false;
  notice.className = "notice failed";
  notice.replaceChildren(el("p", { class: "title" }, error.message || String(error)));
  byId("state").textContent = "cannot be read";
  byId("state").className = "state failed";
}

async function choose(number) {
  const begun = whole.begun;
  if (!begun.length) return;
  const near = begun.reduce((best, one) => Math.abs(one - number) < Math.abs(best - number) ? one : best, begun[0]);
  follows = near === begun.at(-1) && byId("follow").getAttribute("aria-pressed") === "true";
  await readRound(near).catch(sorry);
}

function wire() {
  const step = (by) => { pressed(false); choose(Number(byId("round").value) + by); };
  const pressed = (on) => byId("follow").setAttribute("aria-pressed", String(on));
  byId("earlier").addEventListener("click", () => step(-1));
  byId("later").addEventListener("click", () => step(1));
  byId("round").addEventListener("change", () => step(0));
  byId("follow").addEventListener("click", () => {
    pressed(true);
    follows = true;
    choose(whole.begun.at(-1) ?? 0);
  });
}

async function begin() {
  await readWhole();
  end = whole.end;
  byId("lines").replaceChildren();
  showLines(whole.lines.map(([time, text]) => ({ time: time.slice(11), text, remedy: "" })), false);
  if (whole.begun.length) {
    const found = await readRound(whole.begun.at(-1));
    end = Math.max(end, found.end);
    showLines(found.told, false);
  } else showProgress();
  listen();
}

wire();
begin().catch(sorry);
