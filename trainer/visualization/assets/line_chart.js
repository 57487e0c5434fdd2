// Lines over distance, one for every layer.

const CHART = { width: 400, height: 230, left: 52, right: 10, top: 26, bottom: 38 };

// Deep layers are warm, first ones cold.
function layerColour(layer, count) {
  return `hsl(${count > 1 ? 225 - (205 * layer) / (count - 1) : 225} 62% 52%)`;
}

function ticks(least, most, count) {
  const rough = (most - least) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let n = Math.ceil(least / step - 1e-9); n * step <= most + 1e-9 * step; n++) found.push(Number((n * step).toPrecision(6)));
  return found;
}

// lines: one list of numbers over `distances` for every layer; chosen: the number of the emphasised one.
function lineChart({ name, title, distances, lines, chosen, unusedAfter }) {
  const { width, height, left, right, top, bottom } = CHART;
  const numbers = lines.flat();
  let least = Math.min(0, ...numbers), most = Math.max(0, ...numbers);
  if (least === most) most = 1;
  const first = distances[0], last = distances.at(-1), span = last - first || 1;
  const x = (distance) => left + ((distance - first + (first === last ? 0.5 : 0)) / span) * (width - left - right);
  const y = (value) => height - bottom - ((value - least) / (most - least)) * (height - top - bottom);
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, "data-chart": name });
  svg.style.width = "100%";
  svg.style.maxWidth = `${1.4 * width}px`;
  if (unusedAfter !== null && last > unusedAfter) {
    const from = x(unusedAfter) + 2;
    svg.append(svgElement("rect", { x: from, y: top, width: x(last) - from, height: height - top - bottom, class: "unused" }));
  }
  svg.append(svgElement("text", { x: 4, y: 13 }, title), ...axes({ x, y, least, most, first, last }));
  const order = [...lines.keys()].filter((layer) => layer !== chosen).concat(chosen);
  for (const layer of order) svg.append(...drawn(lines[layer], layer, { distances, x, y, chosen, count: lines.length }));
  followPointer(svg, { distances, lines, x });
  return svg;
}

function axes({ x, y, least, most, first, last }) {
  const { width, height, left, right, top, bottom } = CHART;
  const made = [];
  for (const value of ticks(least, most, 4)) {
    made.push(svgElement("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: value === 0 ? "zero" : "grid" }));
    made.push(svgElement("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, shown(value)));
  }
  const marks = first === last ? [first] : ticks(first, last, 8).filter(Number.isInteger);
  for (const distance of marks) {
    made.push(svgElement("line", { x1: x(distance), x2: x(distance), y1: height - bottom, y2: height - bottom + 4, class: "zero" }));
    made.push(svgElement("text", { x: x(distance), y: height - bottom + 16, "text-anchor": "middle" }, shown(distance)));
  }
  const middle = { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle", class: "title" };
  made.push(svgElement("text", middle, "distance, key less query (positions)"));
  made.push(svgElement("line", { x1: x(0), x2: x(0), y1: top, y2: height - bottom, class: "grid" }));
  return made;
}

function drawn(line, layer, { distances, x, y, chosen, count }) {
  const colour = layerColour(layer, count), mark = layer === chosen ? "series chosen-line" : "series";
  const points = line.map((value, i) => `${x(distances[i]).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const values = { "data-layer": layer, "data-values": JSON.stringify(line) };
  const made = [svgElement("polyline", { points, class: mark, stroke: colour, ...values })];
  if (line.length === 1) {
    made.push(svgElement("circle", { cx: x(distances[0]), cy: y(line[0]), r: layer === chosen ? 5 : 3, fill: colour }));
  }
  return made;
}

function followPointer(svg, { distances, lines, x }) {
  const cursor = svgElement("line", { y1: CHART.top, y2: CHART.height - CHART.bottom, class: "cursor", visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * CHART.width;
    const away = distances.map((distance) => Math.abs(x(distance) - at)), nearest = away.indexOf(Math.min(...away));
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(distances[nearest]));
    cursor.setAttribute("visibility", "visible");
    const values = lines.map((line, layer) => `layer ${layer + 1}  ${shown(line[nearest])}`);
    showTip(event, [`distance ${shown(distances[nearest])}`, ...values].join("\n"));
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    hideTip();
  });
}
