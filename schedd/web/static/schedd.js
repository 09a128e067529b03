// Keeps a page live: the server sends its body anew when it has changed, and only what differs is
// changed in place, so that nothing jumps, and the focus, a selection and what was typed stay.
// Without this script every page reads as well; it is loaded anew now and then instead, or by a link.
"use strict";

const body = document.getElementById("body");
const live = document.getElementById("live");

// What this tab keeps, and what all tabs do. Where a browser forbids that, nothing is kept.
const memory = (of) => {
  try {
    return window[of];
  } catch {
    return { getItem: () => null, setItem() {}, removeItem() {} };
  }
};
const mine = memory("sessionStorage");
const ours = memory("localStorage");

// -- the body, changed in place --

let drawn = ""; // what came last

const keyOf = (node) => node.id || node.dataset?.key;

function morph(old, fresh) {
  if (old.isEqualNode(fresh) || old.matches?.(ASKING)) return; // an open dialog asks what was read in it
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
  const coming = new Set([...fresh.children].map(keyOf));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const known = keyOf(next) && keyed.get(keyOf(next));
    if (known) {
      // what stands before it goes, rather than it moves: what is moved loses the focus
      while (at && at !== known && !(keyOf(at) && coming.has(keyOf(at)))) at = dropped(at);
      // in whose dialog somebody writes stays where it is: what is moved closes, so the others move
      while (at !== known && inUse(known)) at = putBehind(known, at);
      if (known === at) at = at.nextSibling;
      else old.insertBefore(known, at);
      morph(known, next);
    } else if (at && !keyOf(at) && !keyOf(next) && at.nodeName === next.nodeName) {
      const same = at;
      at = at.nextSibling;
      morph(same, next);
    } else old.insertBefore(next, at);
  }
  while (at) at = dropped(at);
}

const ASKING = "[role=dialog]:popover-open";
const inUse = (node) =>
  node.contains(document.activeElement) || node.querySelector("[popover]:popover-open");

function putBehind(node, moved) {
  const { nextSibling } = moved;
  node.after(moved);
  return nextSibling;
}

function dropped(node) {
  const { nextSibling } = node;
  const open = node.matches?.(ASKING) ? node : node.querySelector?.(ASKING);
  if (open) notice(`“${open.getAttribute("aria-label")}” was closed: what it was about is gone, or has changed.`);
  node.remove();
  return nextSibling;
}

function show(html) {
  drawn = html;
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  morphChildren(body, fresh.content);
  const trouble = document.querySelector(".verdict.bad") ? "⚠ " : "";
  document.title = trouble + document.title.replace(/^⚠ /, "");
  tick();
}

// what is asked next is asked of what is there by then
function closed(event) {
  if (event.newState === "closed" && drawn) show(drawn);
}

// -- times that pass --

function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function tick() {
  const now = Date.now();
  for (const each of document.querySelectorAll("[data-since]"))
    each.textContent = span(now - Date.parse(each.dataset.since));
  for (const each of document.querySelectorAll("[data-until]")) {
    const left = Date.parse(each.dataset.until) - now;
    each.textContent = left > 500 ? `in ${span(left)}` : "now";
  }
}

// -- the stream: one, while the page is looked at --

// As often the server says at least that it is there (streams.py: BEAT_EVERY). Of a member that is
// frozen, or cut off, a stream says nothing: it stays open, and silent.
const BEAT = 10; // seconds

let events = null;
let silent = 0; // seconds without a word, as this page counts them: while it slept it missed none
let failures = 0; // in a row
let again = 0; // the timer of the next try

function say(state) {
  live.dataset.state = state;
  live.querySelector("b").textContent = state;
}

function follow() {
  events = new EventSource(body.dataset.live);
  heard();
  events.onopen = heard;
  events.onmessage = (event) => {
    heard();
    failures = 0;
    show(event.data);
    say("live"); // no sooner: until then what stands here is of before
  };
  events.addEventListener("beat", (event) => {
    heard();
    const served = document.getElementById("served"); // a proxy may lead to another member
    if (served) served.textContent = event.data && ` Served by ${event.data}.`;
  });
  events.addEventListener("end", stop);
  events.onerror = lost;
}

function heard() {
  silent = 0;
}

// two beats were missed, and a moment
function listen() {
  if (!events || events.readyState === EventSource.CLOSED) return;
  if (++silent > 2 * BEAT + 1) lost();
}

function stop() {
  document.removeEventListener("visibilitychange", watch);
  clearTimeout(again);
  events.close();
  say("still");
}

// comes back ever later, and not at the instant at which all others do that were cut off with it
async function lost() {
  const stream = events;
  const refused = stream.readyState === EventSource.CLOSED;
  stream.close();
  say("reconnecting");
  const ended = refused && [401, 403].includes(await statusOf(stream.url));
  if (stream !== events) return; // hidden meanwhile, or looked at again
  if (ended) return tellEnd();
  const most = Math.min(30_000, 1000 * 2 ** failures++);
  again = setTimeout(watch, most * (0.5 + Math.random() / 2));
}

// an EventSource doesn't say why it was refused
async function statusOf(address) {
  const asking = new AbortController();
  try {
    return (await fetch(address, { signal: asking.signal })).status;
  } catch {
    return 0;
  } finally {
    asking.abort();
  }
}

function tellEnd() {
  stop();
  const told = document.getElementById("ended");
  const here = encodeURIComponent(location.pathname + location.search);
  told.querySelector("a").href = `/login?next=${here}`;
  told.hidden = false;
}

function watch() {
  clearTimeout(again);
  events?.close();
  events = null;
  if (document.hidden) say("still");
  else follow();
}

// -- a run's log, as it is written --

const MOST = 1 << 20; // characters that are kept on the page
const PART = 1 << 14; // characters of what is drawn, and goes, as one

// without what colours a terminal, also where that is split between two pieces
function plain(known, text) {
  const told = known.held + text;
  known.held = /\x1b(\[[0-?]{0,32}[ -/]{0,8})?$/.exec(told)?.[0] ?? "";
  return told.slice(0, told.length - known.held.length).replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, "");
}

// the oldest parts go while there is enough without them; returns those
function trim(kept, lengthOf) {
  let gone = 0;
  while (kept.size - lengthOf(kept.parts[gone]) >= MOST) kept.size -= lengthOf(kept.parts[gone++]);
  return kept.parts.splice(0, gone);
}

function readLog(log) {
  const state = document.getElementById("log-state");
  const stream = new EventSource(log.dataset.log);
  const reached = new Map(); // attempt and stream → how far it was shown, and its decoder
  let token = null;

  // Pieces come far faster than a page can be laid out: they are gathered, and drawn once a frame.
  // A tab that nobody sees draws none, so what is gathered is no more than a page would keep.
  const shown = { parts: [], size: 0 }; // nodes, oldest first, and their characters
  const gathered = { parts: [], size: 0 };
  const earlier = partOf(`${log.dataset.earlier}\n`, "about"); // stands first once something has gone
  let gone = false;
  let drawing = false;

  function partOf(text, kind) {
    const part = document.createElement("span");
    part.className = kind;
    part.append(text);
    return part;
  }

  function add(text, kind) {
    if (!text) return;
    const last = gathered.parts.at(-1);
    if (last?.kind === kind && last.text.length + text.length <= PART) last.text += text;
    else gathered.parts.push({ text, kind });
    gathered.size += text.length;
    gone = trim(gathered, (part) => part.text.length).length > 0 || gone;
    if (!drawing) requestAnimationFrame(draw);
    drawing = true;
  }

  function draw() {
    drawing = false;
    const first = !shown.parts.length; // what the page came with goes: the stream told all of it
    const low = first || log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
    if (first) log.replaceChildren();
    const fresh = document.createDocumentFragment();
    for (const { text, kind } of gathered.parts.splice(0)) {
      const part = partOf(text, kind);
      fresh.append(part);
      shown.parts.push(part);
    }
    log.append(fresh);
    shown.size += gathered.size;
    gathered.size = 0;
    for (const part of trim(shown, (part) => part.firstChild.length)) {
      part.remove();
      gone = true;
    }
    if (gone && !earlier.isConnected) log.prepend(earlier);
    if (low) log.scrollTop = log.scrollHeight;
  }

  stream.onopen = () => (state.textContent = "as it is written");
  stream.onmessage = ({ data }) => {
    const piece = JSON.parse(data);
    if (token && piece.fencingToken && piece.fencingToken !== token) add("the next attempt\n", "about");
    token = piece.fencingToken ?? token;
    if (piece.note) add(`${piece.note}\n`, "about");
    if (!piece.data) return;
    const key = `${piece.fencingToken} ${piece.stream}`;
    const known = reached.get(key) ?? { at: 0, decoder: new TextDecoder(), held: "" };
    reached.set(key, known);
    const bytes = Uint8Array.from(atob(piece.data), (sign) => sign.charCodeAt(0));
    const fresh = bytes.subarray(Math.max(0, known.at - piece.offset));
    if (piece.omitted && piece.offset > known.at) add(`${piece.omitted} bytes are left out here\n`, "about");
    known.at = Math.max(known.at, piece.offset + bytes.length);
    add(plain(known, known.decoder.decode(fresh, { stream: true })), piece.stream === "STDERR" ? "err" : "");
  };
  stream.addEventListener("end", () => {
    state.textContent = "it has ended";
    stream.close();
  });
  stream.addEventListener("error", ({ data }) => {
    if (data) state.textContent = JSON.parse(data).detail;
    else if (stream.readyState !== EventSource.CLOSED) return; // it comes back by itself
    else state.textContent = "it isn't read any more: load the page again";
    stream.close();
  });
}

// -- forms, sent once --

const TWICE = 500; // ms within which the second of two clicks is the end of a double click

// What this drawing of the page sends with each form: the same twice is done once, so it stays while
// its answer is awaited, however long. The stream draws forms without, so it is put in as one is sent.
let stamp = "";
let awaited = false; // whether something was sent with it

function restamp() {
  stamp = [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("");
  awaited = false;
}

// The second click of two may meet the page that answers the first, where the same button is again.
// The time is that of what was sent: a click that isn't takes no time from the next.
function isSecond(form) {
  const asked = wordOf(form);
  const [at, last] = JSON.parse(mine.getItem("sent") ?? "[0, null]");
  if (last === asked && Math.abs(Date.now() - at) < TWICE) return true;
  mine.setItem("sent", JSON.stringify([Date.now(), asked]));
  return false;
}

// a number for what a form asks, whatever came to what it tells of: what somebody typed isn't kept
function wordOf(form) {
  const told = new FormData(form);
  told.delete("request_id");
  told.delete("until");
  let word = 0;
  for (const sign of `${form.getAttribute("action")}?${new URLSearchParams(told)}`) {
    word = (Math.imul(word, 31) + sign.codePointAt(0)) | 0;
  }
  return word;
}

function sending(event) {
  const form = event.target;
  if (form.getAttribute("method") !== "post") return;
  if (isSecond(form)) {
    event.preventDefault();
    const then = awaited ? "its answer is on its way" : "click again to do it again";
    return notice(`That was asked for a moment ago, and is not asked for twice: ${then}.`);
  }
  const field = form.querySelector("input[name=request_id]");
  if (field) field.value = stamp;
  awaited = true;
}

// where the page tells what was done, in words of its own
function notice(words) {
  const told = document.createElement("p");
  told.className = "notice";
  told.textContent = words;
  document.getElementById("notices").replaceChildren(told);
}

// An answer may have come into a tab of its own: then the page that asked is still here, and what is
// clicked on it next is meant.
function tellAnswer() {
  const told = document.querySelector(".told[data-of]");
  if (told) ours.setItem("answered", told.dataset.of);
}

// as it was when it was left, or when it asked: what its forms ask now is meant anew
function anew() {
  mine.removeItem("sent");
  restamp();
}

// -- keys --

const typing = (where) => where.closest?.("input, textarea, select, [contenteditable]");
let going = 0; // when `g` was pressed

function step(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const { key } = event;
  const tab = Date.now() - going < 1500 && document.querySelector(`nav [data-key="${CSS.escape(key)}"]`);
  going = key === "g" ? Date.now() : 0;
  if (tab) tab.click();
  else if (key === "/") document.querySelector("input[type=search]")?.focus();
  else if (key === "j") step(1);
  else if (key === "k") step(-1);
  else if (key === "?") document.getElementById("keys").togglePopover();
  else return;
  event.preventDefault();
}

restamp();
tellAnswer();
if (performance.getEntriesByType("navigation")[0]?.type === "back_forward") anew();
document.addEventListener("submit", sending);
addEventListener("pageshow", ({ persisted }) => persisted && anew());
addEventListener("storage", ({ key, newValue }) => key === "answered" && newValue === stamp && anew());
document.addEventListener("keydown", pressed);
document.addEventListener("toggle", closed, true); // it doesn't bubble
for (const log of document.querySelectorAll("[data-log]")) readLog(log);
tick();
setInterval(tick, 1000);
setInterval(listen, 1000);
if (body.dataset.live) {
  document.addEventListener("visibilitychange", watch);
  watch();
}
