// Matrices as squares: large ones with labels, and small ones without.

const LABEL_LENGTH = 16, CHARACTER_WIDTH = 6.6, SLOPE = (55 * Math.PI) / 180;

function cut(label) {
  const characters = [...label];
  return characters.length > LABEL_LENGTH ? characters.slice(0, LABEL_LENGTH - 1).join("") + "…" : label;
}

function labelWidth(labels) {
  return 12 + CHARACTER_WIDTH * Math.max(...labels.map((label) => [...cut(label)].length));
}

// values: rows of numbers or null (hidden). look(value) -> {kind, strength}: a class of page.css and an opacity.
// point(event, query, key) is told where the pointer is.
function heatMap({ name, values, queries, keys, queryTitle, keyTitle, width, look, point }) {
  const left = labelWidth(queries) + 16, slanted = labelWidth(keys);
  const top = slanted * Math.sin(SLOPE) + 20;
  const side = Math.max(7, Math.min(34, (width - left) / keys.length));
  const size = [left + side * keys.length + slanted * Math.cos(SLOPE) + 4, top + side * queries.length + 4];
  const svg = svgElement("svg", { width: size[0], height: size[1], role: "img", "aria-label": name, "data-map": name });
  svg.style.fontSize = `${Math.max(7, Math.min(11, side - 1))}px`;
  svg.append(
    svgElement("text", { x: left, y: 11, class: "title" }, `${keyTitle} →`),
    svgElement("text", { class: "title", transform: `translate(11 ${top + side * queries.length}) rotate(-90)` }, `← ${queryTitle}`),
  );
  keys.forEach((key, j) => {
    const place = `translate(${left + side * (j + 0.6)} ${top - 5}) rotate(-55)`;
    svg.append(svgElement("text", { transform: place }, cut(key)));
  });
  queries.forEach((query, i) => {
    svg.append(svgElement("text", { x: left - 6, y: top + side * (i + 0.5) + 4, "text-anchor": "end" }, cut(query)));
  });
  values.forEach((row, i) => row.forEach((value, j) => svg.append(cell(value, i, j, { left, top, side, look }))));
  svg.append(svgElement("rect", { x: left, y: top, width: side * keys.length, height: side * queries.length, class: "frame" }));
  svg.addEventListener("pointermove", (event) => {
    const { query, key } = event.target.dataset;
    query === undefined ? point(event, null, null) : point(event, Number(query), Number(key));
  });
  svg.addEventListener("pointerleave", (event) => point(event, null, null));
  return svg;
}

function cell(value, i, j, { left, top, side, look }) {
  const { kind, strength } = value === null ? { kind: "unseen", strength: null } : look(value);
  return svgElement("rect", {
    x: left + side * j,
    y: top + side * i,
    width: side,
    height: side,
    class: `cell ${kind}`,
    "fill-opacity": strength === null ? null : strength.toFixed(4),
    "data-query": i,
    "data-key": j,
    "data-value": value,
  });
}

// A matrix of weights from 0 to 1, one pixel a pair.
function thumbnail(values, width) {
  const [rows, columns] = [values.length, values[0].length];
  const canvas = element("canvas", { width: columns, height: rows });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${Math.max(8, Math.min(2 * width, (width * rows) / columns))}px`;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--one");
  values.forEach((row, i) => row.forEach((value, j) => {
    context.globalAlpha = value ?? 0;
    context.fillRect(j, i, 1, 1);
  }));
  return canvas;
}
