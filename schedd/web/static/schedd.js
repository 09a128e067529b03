// Keeps the page live: the server sends its body anew when it has changed, and only the sections
// that differ are replaced, so that nothing jumps and a selection stays. Without this script the
// page reads as well; it is loaded anew every few seconds instead.
"use strict";

const overview = document.getElementById("overview");
const live = document.getElementById("live");
const shown = new Map(); // section's id → its HTML as it was sent

function show(html) {
  const body = document.createElement("template");
  body.innerHTML = html;
  for (const section of body.content.querySelectorAll("section")) {
    const old = document.getElementById(section.id);
    const text = section.outerHTML;
    if (shown.get(section.id) === text) continue;
    shown.set(section.id, text);
    if (old) old.replaceWith(section);
    else overview.append(section);
  }
  const trouble = document.querySelector("#verdict.bad") ? "⚠ " : "";
  document.title = trouble + document.title.replace(/^⚠ /, "");
  tick();
}

function say(state) {
  live.dataset.state = state;
  live.querySelector("b").textContent = state;
}

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

function follow() {
  const events = new EventSource(overview.dataset.events);
  events.onopen = () => say("live");
  events.onmessage = (event) => show(event.data);
  events.onerror = () => {
    say("reconnecting");
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  };
}

tick();
setInterval(tick, 1000);
follow();
