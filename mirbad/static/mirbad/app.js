// Mirbad's pages: the live line, dialogs, copying, times, the theme, and the playground's reader. Nothing inline.
"use strict";

const ready = (work) => (document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", work) : work());
const fire = (name, detail = {}) => document.body.dispatchEvent(new CustomEvent(name, { detail }));
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// ---------------------------------------------------------------- live: invalidations over one websocket
// An invalidation says only that something changed; parts of the page reload by hx-trigger.
// Connections die without a close frame, so there is a ping every 20 s. After a reconnection all live parts reload.
const live = {
  socket: null, tries: 0, answered: true, lastChange: Date.now(), dirty: false,

  show(state, text) {
    for (const place of document.querySelectorAll("[data-live-state]")) {
      if (place.dataset.state === state) continue;
      place.dataset.state = state;
      place.textContent = text;
    }
  },

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = (this.socket = new WebSocket(`${scheme}://${location.host}/live`));
    socket.addEventListener("open", () => {
      this.answered = true;
      if (this.tries > 0) this.resync();
      this.tries = 0;
      this.show("on", "Live");
    });
    socket.addEventListener("message", ({ data }) => {
      this.answered = true;
      if (data !== "pong") this.hear(JSON.parse(data));
    });
    socket.addEventListener("close", ({ code }) => this.again(code));
  },

  again(code) {
    if (code === 4401) {
      this.show("off", "Signed out");
      location.reload();
      return;
    }
    this.tries += 1;
    if (this.tries > 1) this.show("off", "Reconnecting");
    // Full jitter, so that a hundred open pages do not reconnect at the same instant.
    const ceiling = Math.min(15000, 400 * 2 ** Math.min(this.tries, 6));
    setTimeout(() => this.open(), 200 + Math.random() * ceiling);
  },

  hear({ topic, id }) {
    if (document.hidden) {
      this.dirty = true;
      return;
    }
    fire(`mirbad:${topic}`, { id });
    if (id) fire(`mirbad:${topic}:${id}`, { id });
  },

  resync() {
    if (document.hidden) this.dirty = true;
    else fire("mirbad:resync");
  },

  start() {
    this.open();
    setInterval(() => {
      if (this.socket.readyState !== WebSocket.OPEN) return;
      if (!this.answered) return this.socket.close();
      this.answered = false;
      this.socket.send("ping");
    }, 20000);
    // Without a websocket the page still updates, only slower.
    setInterval(() => { if (this.socket.readyState !== WebSocket.OPEN) this.resync(); }, 8000);
    setInterval(() => this.resync(), 60000);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden || !this.dirty) return;
      this.dirty = false;
      this.resync();
    });
  },
};

// ---------------------------------------------------------------- notices
function notify(kind, text) {
  const notice = document.getElementById(`notice-${kind}`)?.content.firstElementChild.cloneNode(true);
  if (!notice) return;
  notice.querySelector("[data-text]").textContent = text;
  const places = document.getElementById("notices");
  places.append(notice);
  while (places.children.length > 4) places.firstElementChild.remove();
  if (kind === "success") setTimeout(() => notice.remove(), 8000);
}

document.addEventListener("click", (event) => {
  event.target.closest("[data-dismiss]")?.closest(".notice").remove();
});

// ---------------------------------------------------------------- dialogs
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    const dialog = document.getElementById(opener.dataset.dialog);
    dialog.querySelectorAll(".refusal").forEach((place) => place.replaceChildren());
    dialog.showModal();
    return;
  }
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
  else if (event.target instanceof HTMLDialogElement && event.target.matches(":modal") && event.target.dataset.sticky === undefined) event.target.close();
});

document.addEventListener("htmx:confirm", (event) => {
  event.preventDefault();
  const { ctx, issueRequest, dropRequest } = event.detail;
  const dialog = document.getElementById("confirm");
  const { verb, danger } = ctx.sourceElement.dataset;
  const yes = dialog.querySelector("[data-yes]");
  dialog.querySelector("#confirm-title").textContent = verb ? `${verb}?` : "Are you sure?";
  dialog.querySelector("#confirm-text").textContent = ctx.confirm;
  yes.textContent = verb ?? "Continue";
  yes.classList.toggle("danger", danger !== undefined);
  dialog.returnValue = "";
  dialog.addEventListener("close", () => (dialog.returnValue === "yes" ? issueRequest() : dropRequest()), { once: true });
  dialog.showModal();
});

// ---------------------------------------------------------------- what comes back from an action
// A refusal is shown beside the form that was sent, or in a notice; a failed read leaves the page unchanged.
document.addEventListener("htmx:before:request", (event) => {
  const { ctx } = event.detail;
  if (ctx.request.method !== "GET" && ctx.target?.matches(".refusal")) ctx.target.replaceChildren();
  // A hidden page: a part that polls waits, and catches up with the next tick.
  if (document.hidden && ctx.sourceEvent?.type === "every") event.preventDefault();
});
document.addEventListener("htmx:before:swap", (event) => {
  const { ctx } = event.detail;
  if ((ctx.response?.status ?? 0) < 400) return;
  if (ctx.request.method !== "GET" && ctx.response.status !== 500) {
    if (ctx.target?.matches(".refusal")) return;
    const page = new DOMParser().parseFromString(ctx.text, "text/html");
    notify("error", page.querySelector(".notice .grow > div")?.textContent ?? page.querySelector("p")?.textContent ?? `The master refused this (${ctx.response.status}).`);
  }
  event.preventDefault();
});
document.addEventListener("htmx:after:request", (event) => {
  const { ctx } = event.detail;
  if (ctx.request.method === "GET") return;
  if (ctx.response.status < 400) ctx.sourceElement.closest("dialog:not([data-sticky])")?.close();
  else if (ctx.response.status === 500) notify("error", "Internal error on the master. See its log.");
});
document.addEventListener("htmx:error", (event) => {
  const { ctx, error } = event.detail;
  if (!ctx?.request || ctx.request.method === "GET") return;
  if (!ctx.sourceElement.matches("[data-reads]")) notify("error", "No answer from the master. Your change may have gone through; check before retrying.");
  else if (error.name !== "AbortError") notify("error", "No answer from the master."); // a newer question replaces the older
});
document.addEventListener("mirbad:done", (event) => {
  notify("success", event.detail.text);
  live.resync();
});
document.addEventListener("htmx:after:swap", () => {
  tick();
  follow();
});

// ---------------------------------------------------------------- copying
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  const text = (source.value ?? source.textContent).trim();
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS there is no clipboard object: select, and let the browser's own command copy.
    getSelection().selectAllChildren(source);
    copied = document.execCommand("copy");
  }
  const label = button.querySelector("[data-label]") ?? button;
  const before = label.textContent;
  label.textContent = copied ? "Copied" : "Press Ctrl+C";
  await wait(1600);
  label.textContent = before;
});

// ---------------------------------------------------------------- times
function ago(seconds) {
  const distance = Math.abs(seconds);
  if (distance < 5) return "just now";
  const [amount, unit] = distance < 60 ? [distance, "s"] : distance < 3600 ? [distance / 60, "min"] : distance < 86400 ? [distance / 3600, "h"] : [distance / 86400, "d"];
  return seconds > 0 ? `${Math.floor(amount)} ${unit} ago` : `in ${Math.floor(amount)} ${unit}`;
}
// Times are relative to the master's clock: the page's own time is compared with ours once.
let skew = 0;
function tick() {
  const now = Date.now() + skew;
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const words = ago((now - Date.parse(time.dateTime)) / 1000);
    if (time.textContent !== words) time.textContent = words;
  }
}

// ---------------------------------------------------------------- logs that are read on
const following = new WeakMap();
document.addEventListener("scroll", (event) => {
  const log = event.target;
  if (log instanceof HTMLElement && log.matches("[data-follow]")) following.set(log, log.scrollHeight - log.scrollTop - log.clientHeight < 24);
}, true);
function follow() {
  for (const log of document.querySelectorAll("[data-follow]")) if (following.get(log) ?? true) log.scrollTop = log.scrollHeight;
}

// ---------------------------------------------------------------- theme
function theme() {
  const order = ["auto", "light", "dark"];
  for (const button of document.querySelectorAll("[data-theme-switch]")) {
    button.addEventListener("click", () => {
      const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length];
      document.documentElement.dataset.theme = next;
      document.cookie = `mirbad-theme=${next}; path=/; max-age=31536000; samesite=lax`;
      button.querySelector("[data-theme-name]").textContent = `Theme: ${next}`;
      button.setAttribute("aria-label", `Theme: ${next}. Switch theme`);
    });
  }
}

// ---------------------------------------------------------------- playground
class Talk {
  constructor(form) {
    this.form = form;
    this.place = document.getElementById("talk");
    this.turns = [];
    this.stopper = null;
    form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    form.elements.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    document.getElementById("talk-stop").addEventListener("click", () => this.stopper?.abort());
    document.getElementById("talk-clear").addEventListener("click", () => { this.stopper?.abort(); this.turns = []; this.place.querySelectorAll(".turn").forEach((turn) => turn.remove()); });
  }

  add(who, text) {
    const turn = document.getElementById("turn").content.firstElementChild.cloneNode(true);
    turn.classList.add(who === "user" ? "you" : "model");
    turn.querySelector(".who").textContent = who === "user" ? "You" : this.setting("model");
    turn.querySelector(".said").textContent = text;
    this.place.append(turn);
    this.place.scrollTop = this.place.scrollHeight;
    return turn;
  }

  setting(name) { return document.querySelector(`[form="${this.form.id}"][name="${name}"], #${this.form.id} [name="${name}"]`)?.value ?? ""; }

  body() {
    const system = this.setting("system").trim();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.turns];
    const body = { model: this.setting("model"), messages, stream: true, stream_options: { include_usage: true } };
    if (this.setting("temperature") !== "") body.temperature = Number(this.setting("temperature"));
    if (this.setting("max_tokens") !== "") body.max_tokens = Number(this.setting("max_tokens"));
    return body;
  }

  async send() {
    const text = this.form.elements.text.value.trim();
    if (!text || this.stopper || !this.setting("model")) return;
    this.turns.push({ role: "user", content: text });
    this.add("user", text);
    this.form.elements.text.value = "";
    const turn = this.add("assistant", "");
    const said = turn.querySelector(".said");
    const figures = turn.querySelector(".figures");
    this.stopper = new AbortController();
    this.busy(true);
    const begun = performance.now();
    const seen = { first: null, pieces: 0, usage: null, text: "" };
    figures.textContent = "Waiting for the first token";
    try {
      const response = await fetch(this.form.action, {
        method: "POST", signal: this.stopper.signal, body: JSON.stringify(this.body()),
        headers: { "Content-Type": "application/json", "X-CSRFToken": this.form.elements.csrfmiddlewaretoken.value },
      });
      if (!response.ok) throw new Error(await this.reason(response));
      await this.read(response, seen, () => {
        said.textContent = seen.text;
        if (seen.first !== null) figures.textContent = this.figures(seen, begun);
        this.place.scrollTop = this.place.scrollHeight;
      });
      figures.textContent = this.figures(seen, begun);
    } catch (error) {
      if (error.name === "AbortError") figures.textContent = `Stopped. ${this.figures(seen, begun)}`;
      else {
        turn.classList.add("wrong");
        said.textContent = seen.text ? `${seen.text}\n\n${error.message}` : error.message;
        figures.textContent = "";
      }
    } finally {
      if (seen.text) this.turns.push({ role: "assistant", content: seen.text });
      else this.turns.pop();
      this.stopper = null;
      this.busy(false);
      this.form.elements.text.focus();
    }
  }

  async reason(response) {
    const text = await response.text();
    try {
      const body = JSON.parse(text);
      return body.error?.message ?? body.detail ?? `The master responded with ${response.status}.`;
    } catch {
      return response.status === 401 || response.status === 403 ? "You are no longer signed in. Reload the page." : `The master responded with ${response.status}.`;
    }
  }

  async read(response, seen, show) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:") && line.slice(5).trim() !== "[DONE]") this.take(JSON.parse(line.slice(5)), seen);
      show();
    }
  }

  take(event, seen) {
    if (event.error) throw new Error(event.error.message ?? "The engine stopped with an error.");
    if (event.usage) seen.usage = event.usage;
    const delta = event.choices?.[0]?.delta ?? {};
    const piece = (delta.reasoning_content ?? "") + (delta.content ?? "");
    if (!piece) return;
    seen.first ??= performance.now();
    seen.last = performance.now();
    seen.pieces += 1;
    seen.text += piece;
  }

  figures(seen, begun) {
    if (seen.first === null) return "No text received.";
    const tokens = seen.usage?.completion_tokens;
    const count = tokens ?? seen.pieces;
    const seconds = (seen.last - seen.first) / 1000;
    const rate = count > 1 && seconds > 0 ? `${((count - 1) / seconds).toFixed(1)} ${tokens ? "tokens" : "chunks"}/s` : "";
    return [`first token after ${((seen.first - begun) / 1000).toFixed(2)} s`, rate, `${count} ${tokens ? "tokens" : "chunks"}`].filter(Boolean).join(" · ");
  }

  busy(on) {
    document.getElementById("talk-stop").hidden = !on;
    document.getElementById("talk-send").hidden = on;
  }
}

ready(() => {
  const made = Date.parse(document.querySelector("main")?.dataset.now ?? "");
  if (made) skew = made - Date.now();
  theme();
  follow();
  const talk = document.getElementById("talk-form");
  if (talk) new Talk(talk);
  if (document.querySelector("[data-live-state]")) live.start();
  setInterval(() => { if (!document.hidden) tick(); }, 5000);
  setTimeout(() => document.querySelectorAll("#notices .notice.success").forEach((notice) => notice.remove()), 8000);
});
