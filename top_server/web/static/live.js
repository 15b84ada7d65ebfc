// One round: what its events say of each group and client, and how that is shown.
import { el, soon } from "./dom.js";

/** Groups that are shown at first: more are hard to follow. */
const FEW_GROUPS = 12, MOST_NOTES = 8;
/** In rounds of more clients their names do not stand in the picture: they would make it long. */
const FEW_CLIENTS = 60;
const STATES = { done: ["\u2713", "trained"], skipped: ["\u2717", "skipped"], waiting: ["", "has not trained yet"] };
const WAYS = { node: "directly from the node before", manager: "through the group manager", top_server: "from the top server",
  local: "on the same node", own: "its own" };

/** What the events of a round come to. */
export class Round {
  constructor(number) {
    this.number = number;
    this.groups = [];
    this.reason = "";
    this.resumed = null;
    this.begun = this.finished = false;
  }

  /** Takes an event of this round; returns the group that it changed, "all", or nothing. */
  take(event) {
    if (event.round !== this.number) return null;
    if (event.event === "round_resumed") {
      this.resumed = event;
      return null;
    }
    if (event.event === "round_started") {
      this.begun = true;
      this.finished = false;
      this.reason = event.reason;
      const before = this.resumed ? this.groups : [];
      this.groups = event.teams.map((team, number) => ({ number, program: "", state: "training", notes: [], last: null,
        members: new Map(team.map((client) => [client, { client, state: "waiting", order: Infinity }])) }));
      for (const group of before) this.#keep(group);
      this.resumed = null;
      return "all";
    }
    if (event.event === "round_finished") {
      this.finished = true;
      return "all";
    }
    const group = this.groups[event.group];
    const change = group && CHANGES[event.event];
    // Groups are asked questions before and after their training, with the same numbers.
    if (!change || this.finished || (group.state !== "training" && event.event !== "rerouted")) return null;
    if (event.client !== undefined && !group.members.has(event.client)) return null;
    change(group, event, group.members.get(event.client));
    return group;
  }

  /** Takes over what a resumed run has kept of a group; old records do not say of whom: it is what a relay has done. */
  #keep(before) {
    const { hops, kept } = this.resumed;
    const group = this.groups[before.number];
    const members = [...before.members.values()];
    const done = members.filter((one) => one.state === "done"
      && (kept ? kept.includes(one.client) : hops && before.program === "relay"));
    if (!group || !done.length) return;
    for (const one of [...done, ...members.filter((one) => one.state === "skipped")]) group.members.set(one.client, one);
    Object.assign(group, { program: before.program, notes: before.notes,
      last: done.reduce((last, one) => one.order > last.order ? one : last) });
  }

  get trained() {
    return this.groups.reduce((sum, group) => sum + [...group.members.values()].filter((one) => one.state === "done").length, 0);
  }

  get clients() {
    return this.groups.reduce((sum, group) => sum + group.members.size, 0);
  }
}

const CHANGES = {
  hop_finished(group, event, member) {
    group.program = event.program;
    Object.assign(member, { state: "done", order: event.position, loss: event.loss, seconds: event.seconds, via: event.via,
      node: event.node, bytes: event.bytes });
    group.last = member;
  },
  client_skipped(group, event, member) {
    if (member.state !== "done") Object.assign(member, { state: "skipped", order: group.members.size + (group.last?.order ?? 0) });
    group.notes.push({ client: event.client, text: `was skipped: ${event.reason}` });
  },
  rerouted(group, event) {
    group.notes.push({ client: event.client, text: `the way to it changed: ${event.reason}` });
  },
  group_resumed(group, event) {
    group.notes.push({ text: `group manager ${event.manager} took over` });
  },
  group_finished(group) {
    group.state = "finished";
  },
  group_failed(group, event) {
    group.state = "failed";
    group.notes.push({ text: `the group failed: ${event.reason}` });
  },
};

/** Shows rounds in a place, and changes only the groups that have changed. */
export class RoundView {
  constructor(place, more) {
    this.place = place;
    this.more = more;
    this.names = {};
    this.alone = [];
    this.changed = new Set();
    this.cards = new Map();
    this.draw = soon(() => this.#draw());
    more.addEventListener("click", () => { this.all = true; this.show(this.round); });
  }

  show(round) {
    this.round = round;
    this.cards.clear();
    const several = round.groups.filter((group) => group.members.size > 1);
    this.alone = round.groups.filter((group) => group.members.size === 1);
    const shown = this.all ? several : several.slice(0, FEW_GROUPS);
    this.more.hidden = shown.length === several.length;
    this.more.textContent = `Show all ${several.length} groups`;
    for (const group of shown) this.cards.set(group, this.#card(group));
    if (this.alone.length) this.cards.set(this.alone, this.#alone());
    this.place.replaceChildren(...this.cards.values());
    this.changed.clear();
  }

  change(group) {
    const card = group.members.size === 1 ? this.alone : group;
    if (!this.cards.has(card)) return;
    this.changed.add(card);
    this.draw();
  }

  #draw() {
    for (const group of this.changed) {
      const before = this.cards.get(group);
      if (!before) continue;
      const card = group === this.alone ? this.#alone() : this.#card(group);
      before.replaceWith(card);
      this.cards.set(group, card);
    }
    this.changed.clear();
  }

  #named(client) {
    return this.names[client] ? `${client} (${this.names[client]})` : `${client}`;
  }

  /** All clients that train in groups of their own, on one card. */
  #alone() {
    const members = this.alone.flatMap((group) => [...group.members.values()].map((member) => [group, member]));
    const done = members.filter(([, member]) => member.state === "done").length;
    const notes = this.alone.flatMap((group) => group.notes).slice(-MOST_NOTES);
    return el("article", { class: "group alone", "aria-label": "Clients that train alone" },
      el("header", {}, el("h3", {}, "Clients that train alone"), el("span", {}, `${done} of ${members.length}`)),
      el("ol", { class: "chain" }, members.map(([group, member]) => this.#hop(group, member, false))), this.#notes(notes));
  }

  #notes(notes) {
    return notes.length ? el("ul", { class: "notes" }, notes.map((note) =>
      el("li", {}, note.client === undefined ? note.text : `client ${this.#named(note.client)}: ${note.text}`))) : null;
  }

  #card(group) {
    const members = [...group.members.values()].sort((a, b) => a.order - b.order);
    const done = members.filter((one) => one.state === "done").length;
    const relay = group.program === "relay" && members.length > 1;
    const chain = el("ol", { class: relay ? "chain relay" : "chain" }, members.map((one) => this.#hop(group, one, relay)));
    const how = relay ? "relay" : members.length > 1 && group.program ? group.program : "";
    return el("article", { class: `group ${group.state}`, "aria-label": `Group ${group.number}` },
      el("header", {}, el("h3", {}, `Group ${group.number}`),
        el("span", {}, `${how ? `${how}, ` : ""}${done} of ${members.length}${group.state === "training" ? "" : `, ${group.state}`}`)),
      chain, this.#notes(group.notes.slice(-MOST_NOTES)));
  }

  #hop(group, member, relay) {
    const [sign, word] = STATES[member.state];
    const here = relay && group.last === member && group.state === "training" && !this.round.finished;
    const facts = [word];
    if (here) facts.push("the model is here");
    if (member.loss !== undefined && member.loss !== null) facts.push(`loss ${member.loss.toPrecision(3)}`);
    if (member.seconds !== undefined) facts.push(`${member.seconds.toFixed(1)} s`);
    if (member.node) facts.push(`on ${member.node}`);
    if (WAYS[member.via]) facts.push(`start ${WAYS[member.via]}`);
    const short = this.round.clients > FEW_CLIENTS;
    if (short && this.names[member.client]) facts.unshift(this.names[member.client]);
    const classes = [member.state, here ? "here" : "", member.via === "manager" ? "managed" : ""].join(" ").trim();
    return el("li", { class: classes },
      el("span", { class: "hop", title: facts.join(", ") },
        sign ? el("i", { "aria-hidden": "true" }, sign) : null,
        el("b", {}, short ? `${member.client}` : this.#named(member.client)),
        el("span", { class: "unseen" }, `, ${facts.join(", ")}`)));
  }
}
