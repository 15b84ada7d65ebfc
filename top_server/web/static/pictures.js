// Who trained with whom, and distances between data: pictures of the server, with words for each place in them.
import { el, json } from "./dom.js";

/** Clients whose names stand beside a picture, and the height of a line in points. */
const MOST_NAMED = 40, LINE = 18, MOST_HIGH = 480;

const named = (whole, client) => whole.names[client] ? `${client} (${whole.names[client]})` : `${client}`;

/** What is shown, and the pictures of the record as it is now. */
let shown = "", now = null;

/** Shows the pictures of a run as its record is now; keeps what a person has chosen in them. */
export function picture(place, run, whole) {
  const found = now = whole.pictures;
  if (!found.clients.length) {
    place.replaceChildren(el("p", { class: "quiet" }, "No round has begun."));
    return;
  }
  const state = [found.clients, found.distances.length, found.undrawn, found.paired].join(" ");
  const source = (name) => `pictures/${name}.png?${new URLSearchParams({ run, end: whole.end })}`;
  if (shown === state) {
    for (const image of place.querySelectorAll("img")) image.src = source(image.dataset.name);
    for (const [name, text] of Object.entries(words(found))) {
      const said = place.querySelector(`[data-says="${name}"]`);
      if (said) said.textContent = text;
    }
    for (const name of ["first", "last"]) place.querySelector(`[data-${name}]`)?.replaceChildren(`round ${found[name]}`);
    return;
  }
  shown = state;
  const said = el("p", { role: "status" });
  const rows = found.clients.length <= MOST_NAMED;
  const side = (clients) => clients.length <= MOST_NAMED
    ? el("ol", { class: "side", "aria-hidden": "true" }, clients.map((client) => el("li", {}, named(whole, client))))
    : el("span");
  const image = (name, alt, height) => el("img", { src: source(name), alt, height, "data-name": name });
  const texts = words(found);
  const high = Math.min(MOST_HIGH, Math.max(60, found.clients.length * LINE));
  const groups = image("groups", texts.groups, rows ? found.clients.length * LINE : high);
  groups.addEventListener("click", (event) => {
    const box = groups.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * now.clients.length);
    round.value = String(now.first + Math.floor((event.clientX - box.left) / box.width * (now.last - now.first + 1)));
    client.value = String(now.clients[Math.max(0, row)]);
    ask();
  });
  const client = el("input", { type: "number", id: "of-client", min: "0", value: String(found.clients[0]), inputmode: "numeric" });
  const round = el("input", { type: "number", id: "of-round", min: "1", value: String(found.last), inputmode: "numeric" });
  const ask = async () => {
    said.textContent = await who(run, whole, Number(client.value), Number(round.value)).catch((error) => error.message);
  };
  client.addEventListener("change", ask);
  round.addEventListener("change", ask);
  const parts = [
    el("p", { class: "quiet", "data-says": "groups" }, texts.groups),
    el("div", { class: "picture" }, side(found.clients), groups,
      el("div", { class: "ends" }, el("span", { "data-first": true }, `round ${found.first}`), el("span", { "data-last": true }, `round ${found.last}`))),
    el("div", { class: "row" }, el("label", { for: "of-client" }, "Who trained with client"), client,
      el("label", { for: "of-round" }, "in round"), round), said,
  ];
  const squares = [];
  if (found.paired) squares.push(square("Rounds in one group, by pairs of clients", texts.pairs, "pairs", found.pairs));
  if (found.distances.length) squares.push(square("Distances between the data of clients", texts.distances, "distances", found.distances));
  function square(title, text, name, clients) {
    return el("div", {}, el("h3", {}, title), el("p", { class: "quiet", "data-says": name }, text),
      el("div", { class: "picture square" }, side(clients), image(name, text),
        el("div", { class: "ends" }, el("span", {}, `client ${clients[0]}`), el("span", {}, `client ${clients.at(-1)}`))));
  }
  const coalitions = found.coalitions.length
    ? el("details", {}, el("summary", {}, `${found.coalitions.length} coalitions`), el("ul", {}, found.coalitions.map((group) =>
      el("li", {}, group.map((one) => named(whole, one)).join(", "))))) : null;
  const undrawn = found.undrawn ? el("p", { class: "quiet" }, found.undrawn) : null;
  place.replaceChildren(...[...parts, el("div", { class: "pair" }, squares), undrawn, coalitions].filter(Boolean));
}

function words(found) {
  const part = (some, all) => some < all ? `${some} of ${all}` : `${some}`;
  const rounds = found.last - found.first + 1;
  const from = `${part(found.clients.length, found.all_clients)} clients, from ${found.clients[0]} to ${found.clients.at(-1)}, `
    + `in rounds ${found.first} to ${found.last}${rounds < found.all_rounds ? `, the last ${rounds} of ${found.all_rounds}` : ""}`;
  return {
    groups: `A row is a client, a column is a round, a colour is a group${found.lasting ? ", named after its first member" : " of that round"}; hatched: did not train. ${from}.`,
    pairs: "The darker, the more rounds two clients trained in one group; hatched: never.",
    distances: "The darker, the further apart; darkest if unknown; a border is around each coalition.",
  };
}

async function who(run, whole, client, number) {
  const { events } = await json("round.json", { run, round: number });
  const started = events.findLast((event) => event.event === "round_started" && event.round === number);
  const place = started?.teams.findIndex((team) => team.includes(client)) ?? -1;
  if (place < 0) return `Client ${named(whole, client)} did not train in round ${number}.`;
  const others = started.teams[place].filter((one) => one !== client).map((one) => named(whole, one));
  return `Client ${named(whole, client)} was in group ${place} in round ${number}, ${others.length ? `with ${others.join(", ")}` : "alone"}.`;
}
