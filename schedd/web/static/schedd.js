// Keep an open page up to date. The server sends the page's body after each change. This script applies only the
// differences, so that the page doesn't jump, and focus, selection and input are kept.
// Every page also works without this script. The page then reloads at intervals, or by a link.
"use strict";

const body = document.getElementById("body");
const live = document.getElementById("live");

// Return the storage of this tab or of all tabs. If the browser forbids storage, nothing is stored.
const memory = (of) => {
  try {
    return window[of];
  } catch {
    return { getItem: () => null, setItem() {}, removeItem() {} };
  }
};
const mine = memory("sessionStorage");
const ours = memory("localStorage");

// -- update the body in place --

let drawn = ""; // the HTML of the last body that the server sent

const keyOf = (node) => node.id || node.dataset?.key;

function morph(old, fresh) {
  if (old.isEqualNode(fresh) || old.matches?.(ASKING)) return; // an open dialog keeps its text
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
      // remove the nodes before `known` instead of moving `known`: a moved node loses the focus
      while (at && at !== known && !(keyOf(at) && coming.has(keyOf(at)))) at = dropped(at);
      // move other nodes instead of a node with an open dialog, because moving the node closes the dialog
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
  if (open) notice(`“${open.getAttribute("aria-label")}” was closed: its object was removed, or has changed.`);
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

// after a dialog has closed, show the current body
function closed(event) {
  if (event.newState === "closed" && drawn) show(drawn);
}

// -- elapsed and remaining times --

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

// -- one event stream, while the page is visible --

// The server sends at least one `beat` event in this time (streams.py: BEAT_EVERY). The stream of a frozen or
// partitioned member stays open, but sends nothing.
const BEAT = 10; // seconds

let events = null;
let silent = 0; // seconds without an event; this page counts them, so that the computer's sleep doesn't count
let failures = 0; // consecutive failed connections
let again = 0; // the timer of the next connection attempt

function say(state) {
  live.dataset.state = state;
  live.querySelector("b").textContent = state;
}

function follow() {
  events = new EventSource(body.dataset.live);
  received();
  events.onopen = received;
  events.onmessage = (event) => {
    received();
    failures = 0;
    show(event.data);
    say("live"); // not earlier, because the page shows the old body until the first message
  };
  events.addEventListener("beat", (event) => {
    received();
    const served = document.getElementById("served"); // a proxy may choose another member
    if (served) served.textContent = event.data && ` Served by ${event.data}.`;
  });
  events.addEventListener("end", stop);
  events.onerror = lost;
}

function received() {
  silent = 0;
}

// treat the stream as lost after two missed beats and one second
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

// reconnect with exponential backoff and jitter
async function lost() {
  const stream = events;
  const refused = stream.readyState === EventSource.CLOSED;
  stream.close();
  say("reconnecting");
  const ended = refused && [401, 403].includes(await statusOf(stream.url));
  if (stream !== events) return; // the page was hidden or has reconnected meanwhile
  if (ended) return showEnd();
  const most = Math.min(30_000, 1000 * 2 ** failures++);
  again = setTimeout(watch, most * (0.5 + Math.random() / 2));
}

// request the status code, because an EventSource doesn't report the status of a rejected request
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

function showEnd() {
  stop();
  const ended = document.getElementById("ended");
  const here = encodeURIComponent(location.pathname + location.search);
  ended.querySelector("a").href = `/login?next=${here}`;
  ended.hidden = false;
}

function watch() {
  clearTimeout(again);
  events?.close();
  events = null;
  if (document.hidden) say("still");
  else follow();
}

// -- show a run's log while the run writes it --

const MOST = 1 << 20; // characters of the log that the page keeps
const PART = 1 << 14; // characters of a part of the log; a part is drawn and removed as a whole

// remove color sequences, including sequences that are split between two pieces
function plain(known, text) {
  const whole = known.held + text;
  known.held = /\x1b(\[[0-?]{0,32}[ -/]{0,8})?$/.exec(whole)?.[0] ?? "";
  return whole.slice(0, whole.length - known.held.length).replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, "");
}

// remove the oldest parts that exceed the limit MOST; return the removed parts
function trim(kept, lengthOf) {
  let gone = 0;
  while (kept.size - lengthOf(kept.parts[gone]) >= MOST) kept.size -= lengthOf(kept.parts[gone++]);
  return kept.parts.splice(0, gone);
}

function readLog(log) {
  const state = document.getElementById("log-state");
  const stream = new EventSource(log.dataset.log);
  const reached = new Map(); // attempt and stream → offset that is shown, and decoder
  let token = null;

  // Pieces can arrive faster than the browser lays out the page, so pieces are batched and drawn once per frame.
  // A hidden tab draws no pieces, so the batch has the same limit as the page.
  const shown = { parts: [], size: 0 }; // nodes, oldest first, and their number of characters
  const gathered = { parts: [], size: 0 };
  const earlier = partOf(`${log.dataset.earlier}\n`, "about"); // shown as the first part after parts were removed
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
    const first = !shown.parts.length; // replace the log in the page, because the stream sends the whole log
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

  stream.onopen = () => (state.textContent = "live");
  stream.onmessage = ({ data }) => {
    const piece = JSON.parse(data);
    if (token && piece.fencingToken && piece.fencingToken !== token) add("next attempt\n", "about");
    token = piece.fencingToken ?? token;
    if (piece.note) add(`${piece.note}\n`, "about");
    if (!piece.data) return;
    const key = `${piece.fencingToken} ${piece.stream}`;
    const known = reached.get(key) ?? { at: 0, decoder: new TextDecoder(), held: "" };
    reached.set(key, known);
    const bytes = Uint8Array.from(atob(piece.data), (sign) => sign.charCodeAt(0));
    const fresh = bytes.subarray(Math.max(0, known.at - piece.offset));
    if (piece.omitted && piece.offset > known.at) add(`${piece.omitted} bytes omitted\n`, "about");
    known.at = Math.max(known.at, piece.offset + bytes.length);
    add(plain(known, known.decoder.decode(fresh, { stream: true })), piece.stream === "STDERR" ? "err" : "");
  };
  stream.addEventListener("end", () => {
    state.textContent = "ended";
    stream.close();
  });
  stream.addEventListener("error", ({ data }) => {
    if (data) state.textContent = JSON.parse(data).detail;
    else if (stream.readyState !== EventSource.CLOSED) return; // the browser reconnects automatically
    else state.textContent = "disconnected: reload the page";
    stream.close();
  });
}

// -- send each form once --

const TWICE = 500; // ms within which a second click counts as part of a double click

// The request id of this page, which is sent with each form. The server executes a form that is sent twice only once,
// so the id doesn't change while an answer is pending. Forms from the stream have no id, so the id is set at submit.
let stamp = "";
let awaited = false; // whether a form was sent with this id

function restamp() {
  stamp = [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("");
  awaited = false;
}

// Return whether this click is the second click of a double click. The second click may hit the same button on the page
// that answers the first click. Only clicks that send a form start the time limit.
function isSecond(form) {
  const asked = wordOf(form);
  const [at, last] = JSON.parse(mine.getItem("sent") ?? "[0, null]");
  if (last === asked && Math.abs(Date.now() - at) < TWICE) return true;
  mine.setItem("sent", JSON.stringify([Date.now(), asked]));
  return false;
}

// return a hash of a form, without its request id and `until`, so that the input isn't stored
function wordOf(form) {
  const fields = new FormData(form);
  fields.delete("request_id");
  fields.delete("until");
  let word = 0;
  for (const sign of `${form.getAttribute("action")}?${new URLSearchParams(fields)}`) {
    word = (Math.imul(word, 31) + sign.codePointAt(0)) | 0;
  }
  return word;
}

function sending(event) {
  const form = event.target;
  if (form.getAttribute("method") !== "post") return;
  if (isSecond(form)) {
    event.preventDefault();
    const then = awaited ? "its answer is pending" : "click again to send it again";
    return notice(`Double click ignored, the request was sent once: ${then}.`);
  }
  const field = form.querySelector("input[name=request_id]");
  if (field) field.value = stamp;
  awaited = true;
}

// show a message of the script
function notice(words) {
  const line = document.createElement("p");
  line.className = "notice";
  line.textContent = words;
  document.getElementById("notices").replaceChildren(line);
}

// Report the answered request to the other tabs. If the answer opened in another tab, the page with the form is still
// open, and its next click is a new request.
function publishAnswer() {
  const answer = document.querySelector(".flash[data-of]");
  if (answer) ours.setItem("answered", answer.dataset.of);
}

// the page was restored, or its request was answered: forms of the page now send new requests
function reset() {
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
publishAnswer();
if (performance.getEntriesByType("navigation")[0]?.type === "back_forward") reset();
document.addEventListener("submit", sending);
addEventListener("pageshow", ({ persisted }) => persisted && reset());
addEventListener("storage", ({ key, newValue }) => key === "answered" && newValue === stamp && reset());
document.addEventListener("keydown", pressed);
document.addEventListener("toggle", closed, true); // captured, because the event `toggle` doesn't bubble
for (const log of document.querySelectorAll("[data-log]")) readLog(log);
tick();
setInterval(tick, 1000);
setInterval(listen, 1000);
if (body.dataset.live) {
  document.addEventListener("visibilitychange", watch);
  watch();
}
