"use strict";
// Elements made of text alone: nothing here reads markup, so no sentence can become any.

function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svgElement(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function button(label, isPressed, press) {
  const made = element("button", { type: "button", "aria-pressed": isPressed }, label);
  made.addEventListener("click", press);
  return made;
}

// A number as the page writes it; what does not exist is a dash.
function shown(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  return Number(value.toPrecision(digits)).toString().replace("-", "−");
}

function percent(value) {
  return value === null ? "–" : `${Math.round(100 * value)} %`;
}

// A note beside the pointer.
function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = event.clientX + 16, below = event.clientY + 16;
  tip.style.left = `${Math.max(4, right + width < innerWidth ? right : event.clientX - width - 12)}px`;
  tip.style.top = `${Math.max(4, below + height < innerHeight ? below : event.clientY - height - 12)}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}
