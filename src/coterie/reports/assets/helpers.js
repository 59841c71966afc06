"use strict";
/* What every part uses. Text of the data enters the page only as text nodes and attributes, never as markup. */

const DATA = JSON.parse(document.getElementById("report-data").textContent);
const DASH = "\u2013";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/* An element of a drawing, such as a method's mark in a legend. */
function vector(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* A number as Python's format would write it (".2f", "+.1f", ",.0f", ".3g", ".1%"); without a format, four digits. */
function formatted(value, spec) {
  if (value === null || value === undefined || value === "") return DASH;
  if (typeof value !== "number") return String(value);
  const parts = /^(\+?)(,?)(?:\.(\d+))?([fgde%]?)$/.exec(spec || "");
  if (!spec || !parts) return plain(value);
  const [, sign, comma, digits, kind] = parts;
  const places = digits === undefined ? (kind === "d" ? 0 : 6) : Number(digits);
  const grouped = (number, count) =>
    number.toLocaleString("en-US", { minimumFractionDigits: count, maximumFractionDigits: count, useGrouping: comma === "," });
  let text;
  if (kind === "%") text = grouped(100 * value, places) + "\u202f%";
  else if (kind === "e") text = value.toExponential(places);
  else if (kind === "g") text = significant(value, places || 1, comma === ",");
  else text = grouped(value, kind === "d" ? 0 : places);
  text = text.replace(/^-(0(?:\.0*)?)$/, "$1").replace("-", "\u2212");
  return sign && value > 0 ? "+" + text : text;
}

function plain(value) {
  return significant(value, Number.isInteger(value) ? 15 : 4, Math.abs(value) >= 10000).replace("-", "\u2212");
}

function significant(value, digits, grouped) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) return value.toExponential(Math.max(0, Math.min(digits, 4) - 1));
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits, useGrouping: grouped });
}

/* Head and tail of a long name: names that differ often differ at their ends. */
function shortened(text, most) {
  const letters = Array.from(String(text));
  if (letters.length <= most) return letters.join("");
  const tail = Math.floor(most / 3);
  return `${letters.slice(0, most - 1 - tail).join("")}\u2026${letters.slice(-tail).join("")}`;
}

function mean(values) {
  const there = (values || []).filter((value) => typeof value === "number");
  return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
}

function count(number, word) {
  return `${number.toLocaleString("en-US")} ${word}${number === 1 ? "" : "s"}`;
}
