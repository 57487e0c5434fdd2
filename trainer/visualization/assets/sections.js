// The sections on logits and on tables.

function renderLogits(choice) {
  const { part, layer, head, centred, own } = choice;
  if (!explained(byId("logits"), part.reason)) return;
  byId("centred").checked = centred;
  byId("own").checked = own;
  const { content, position, parts } = part.layers[layer].heads[head];
  const sum = content.map((row, i) => row.map((value, j) => (value === null ? null : value + position[i][j])));
  const maps = [
    ["content", "Content, q·k", content],
    ["position", "Relative position, q·a^K", position],
    ["logit", "Logit: their sum", sum],
  ].map(([name, title, values]) => [name, title, centred ? lessRowMeans(values) : values]);
  const most = Math.max(...maps.map(([, , values]) => largest(values)));
  byId("logit-maps").replaceChildren(...maps.map(([name, title, values]) => {
    const scale = (own ? largest(values) : most) || 1;
    const look = (value) => ({ kind: value < 0 ? "less" : "more", strength: Math.abs(value) / scale });
    return logitFigure(title, scale, drawMap(name, values, choice, 350, look));
  }));
  byId("parts-of-head").textContent =
    `Layer ${layer + 1}, head ${head + 1}: share of position ${percent(parts.share)}; spread of content ${shown(parts.content, 3)}, ` +
    `of position ${shown(parts.position, 3)}; attention moved by position ${percent(parts.moved)}.`;
  for (const [id, name] of [["shares", "share"], ["moved", "moved"]]) {
    byId(id).replaceChildren(...headGrid(choice, (heads, n) => coloured(heads[n].parts[name])));
  }
}

function logitFigure(title, scale, map) {
  const legend = element("span", { class: "legend" }, `−${shown(scale, 3)}`, element("span", { class: "bar diverging" }), shown(scale, 3));
  return element(
    "figure", {}, element("h3", {}, title), element("div", { class: "scroll" }, map), element("figcaption", {}, legend, "logit"),
  );
}

function coloured(share) {
  const colour = element("i");
  colour.style.opacity = 0.75 * (share ?? 0);
  return element("span", {}, colour, element("b", {}, percent(share)));
}

function largest(values) {
  return Math.max(...values.flat().map((value) => Math.abs(value ?? 0)));
}

function lessRowMeans(values) {
  return values.map((row) => {
    const seen = row.filter((value) => value !== null), mean = seen.reduce((sum, value) => sum + value, 0) / seen.length;
    return row.map((value) => (value === null ? null : value - mean));
  });
}

function renderTables({ part, layer, head }) {
  const { tables } = part.layers[layer];
  if (!explained(byId("tables"), tables ? null : part.reason)) return;
  byId("unused-note").hidden = !part.isCausal;
  const perHead = (tables.keyNorms ?? tables.valueNorms).length > 1;
  byId("sharing-note").textContent = perHead
    ? `Every head has tables of its own: these are head ${head + 1}'s.`
    : "All heads of a layer share its tables.";
  const charts = [
    ["keyNorms", "norm of the rows of a^K"],
    ["valueNorms", "norm of the rows of a^V"],
    ["meanLogits", `q·a^K, mean over queries, head ${head + 1} (logit)`],
  ].filter(([name]) => tables[name]);
  byId("charts").replaceChildren(...charts.map(([name, title]) => {
    const lines = part.layers.map((other) => other.tables[name][other.tables[name].length > 1 ? head : 0]);
    const unusedAfter = part.isCausal ? 0 : null;
    return element("figure", {}, lineChart({ name, title, distances: tables.distances, lines, chosen: layer, unusedAfter }));
  }));
  byId("layer-legend").replaceChildren(...part.layers.map((_, l) => {
    const line = element("i");
    line.style.background = layerColour(l, part.layers.length);
    return element("span", { class: l === layer ? "chosen-line" : "" }, line, `layer ${l + 1}`);
  }));
}
