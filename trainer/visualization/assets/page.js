// What is shown follows from the address: #part=encoder&layer=1&head=1, so that a view can be linked to and gone back from.

const DATA = JSON.parse(byId("data").textContent);

function chosen() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const part = DATA.parts.find(({ id }) => id === asked.get("part")) ?? DATA.parts[0];
  const among = (name, count) => Math.min(Math.max(Math.trunc(Number(asked.get(name))) || 1, 1), count) - 1;
  const layer = among("layer", part.layers.length), head = among("head", part.layers[layer].heads.length);
  return { part, layer, head, centred: asked.has("centred"), own: asked.has("own") };
}

function choose(changes) {
  const { part, layer, head, centred, own } = { ...chosen(), ...changes };
  const flags = (centred ? "&centred" : "") + (own ? "&own" : "");
  location.hash = `part=${part.id}&layer=${layer + 1}&head=${head + 1}${flags}`;
}

function render() {
  const choice = chosen();
  const { part, layer, head } = choice;
  hideTip();
  renderChoices(choice);
  for (const place of document.querySelectorAll(".chosen")) place.textContent = `${part.title}, layer ${layer + 1}, head ${head + 1}`;
  for (const place of document.querySelectorAll(".chosen-part")) place.textContent = part.title;
  byId("decoder-note").hidden = part.id === "encoder";
  const { weights } = part.layers[layer].heads[head];
  byId("map").replaceChildren(drawMap("weights", weights, choice, 640, (value) => ({ kind: "one", strength: value })));
  byId("overview").replaceChildren(...headGrid(choice, (heads, n) => thumbnail(heads[n].weights, 64)));
  renderLogits(choice);
  renderTables(choice);
}

function renderChoices({ part, layer, head }) {
  const numbered = (things, current, name) => things.map((_, n) => button(`${n + 1}`, n === current, () => choose({ [name]: n })));
  byId("part-choice").replaceChildren(...DATA.parts.map((other) => button(other.title, other === part, () => choose({ part: other }))));
  byId("layer-choice").replaceChildren(...numbered(part.layers, layer, "layer"));
  byId("head-choice").replaceChildren(...numbered(part.layers[layer].heads, head, "head"));
}

function drawMap(name, values, choice, width, look) {
  const { queries, keys, queryTitle, keyTitle } = choice.part;
  const point = (event, query, key) => pointAt(choice, event, query, key);
  return heatMap({ name, values, queries, keys, queryTitle, keyTitle, width, look, point });
}

// A table of buttons, a row for every layer, a column for every head.
function headGrid({ part, layer, head }, content) {
  const numbers = part.layers[0].heads.map((_, n) => element("th", {}, `head ${n + 1}`));
  const rows = part.layers.map(({ heads }, l) => {
    const cells = heads.map((_, n) => {
      const made = button(content(heads, n), l === layer && n === head, () => choose({ layer: l, head: n }));
      made.setAttribute("aria-label", `layer ${l + 1}, head ${n + 1} ${made.textContent}`.trim());
      return element("td", {}, made);
    });
    return element("tr", {}, element("th", {}, `layer ${l + 1}`), ...cells);
  });
  return [element("thead", {}, element("tr", {}, element("th"), ...numbers)), element("tbody", {}, ...rows)];
}

// Shows what lies under the pointer, and marks the same pair in all maps.
function pointAt({ part, layer, head }, event, query, key) {
  for (const marked of document.querySelectorAll(".pointed")) marked.classList.remove("pointed");
  if (query === null) return hideTip();
  for (const same of document.querySelectorAll(`[data-query="${query}"][data-key="${key}"]`)) same.classList.add("pointed");
  showTip(event, described(part, part.layers[layer].heads[head], query, key));
}

function described(part, { weights, content, position }, query, key) {
  const lines = [`${part.queryTitle} ${part.queries[query]} (${query}), ${part.keyTitle} ${part.keys[key]} (${key})`];
  if (weights[query][key] === null) return [...lines, "hidden: it comes later"].join("\n");
  lines.push(`attention  ${shown(weights[query][key])}`);
  if (content) {
    const [fromContent, fromPosition] = [content[query][key], position[query][key]];
    lines.push(`content  ${shown(fromContent)}`, `position  ${shown(fromPosition)}  (distance ${shown(key - query)})`);
    lines.push(`logit  ${shown(fromContent + fromPosition)}`);
  }
  return lines.join("\n");
}

// Says why a section has nothing to show; true where it has.
function explained(section, reason) {
  section.querySelector(".reason").textContent = reason ?? "";
  section.querySelector(".reason").hidden = !reason;
  section.querySelector(".body").hidden = Boolean(reason);
  return !reason;
}

function start() {
  document.querySelector("#source").textContent = DATA.source.text;
  document.querySelector("#target").textContent = DATA.target.text;
  const origin = DATA.isGiven ? "a translation that was given" : "the model's own translation";
  const sizes = `${DATA.source.tokens.length} source pieces, ${DATA.target.tokens.length} target pieces`;
  byId("model").textContent = `${DATA.model} · ${origin} · ${sizes}`;
  byId("settings").append(...Object.entries(DATA.settings).map(([name, value]) => {
    return element("div", {}, element("dt", {}, name), element("dd", {}, String(value)));
  }));
  const pieces = [...DATA.source.tokens, ...DATA.target.tokens];
  document.querySelector(".piece-note").textContent = pieces.some((piece) => piece.startsWith("▁")) ? "▁ begins a word." : "";
  byId("centred").addEventListener("change", (event) => choose({ centred: event.target.checked }));
  byId("own").addEventListener("change", (event) => choose({ own: event.target.checked }));
  addEventListener("hashchange", render);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  render();
}

start();
