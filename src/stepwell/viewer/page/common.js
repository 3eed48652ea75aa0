"use strict";
// what all pages share
const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
// of an exported file: what the server would answer, by path and query, as data: addresses or {"error": text}
const embedded = $("embedded") && JSON.parse($("embedded").textContent);

function address(path, given = {}) {
  const query = new URLSearchParams(given);
  if (embedded) return embedded.answers[`${path}?${query}`] || "data:,";
  if (token !== null) query.set("token", token);
  return `api/${path}?${query}`;
}

async function get(path, given) {
  const where = address(path, given);
  if (where.error) throw new Error(where.error);
  const answer = await fetch(where);
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

async function send(path, given, value) {
  const body = JSON.stringify(value), headers = { "Content-Type": "application/json" };
  const answer = await fetch(address(path, given), { method: "POST", headers, body });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function element(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = kind;
  return made;
}

const round = (value) => String(Number(value.toPrecision(4)));
