// SPDX-License-Identifier: Apache-2.0
// Tables that sort and filter, figures by plotly.js (unpacked from the page itself), and the comparison of two points.
"use strict";
document.documentElement.classList.add("js");
const report = JSON.parse(document.getElementById("report-data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

// Tables: a click on a heading sorts by it, numbers as numbers; the text field leaves the rows that hold its text.
function numberIn(text) {
  const found = text.replace(/(\d) (?=\d{3})/g, "$1").match(/^[+\-\u2212]?\d*\.?\d+(e[+-]?\d+)?/i);
  return found ? parseFloat(found[0].replace("\u2212", "-")) : NaN;
}
function sortBy(table, column, descending) {
  const body = table.tBodies[0], rows = [...body.rows];
  const key = row => row.cells[column].textContent.trim();
  rows.sort((a, b) => {
    const x = numberIn(key(a)), y = numberIn(key(b));
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;  // cells without a number last
    const order = isNaN(x) ? key(a).localeCompare(key(b)) : x - y;
    return descending ? -order : order;
  });
  body.append(...rows);
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
}
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th[data-sort]").forEach(cell => {
    cell.tabIndex = 0;
    const sort = () => sortBy(table, cell.cellIndex, cell.getAttribute("aria-sort") === "ascending");
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
for (const field of document.querySelectorAll(".filter input")) {
  field.addEventListener("input", () => {
    const section = field.closest("section"), rows = [...section.querySelectorAll("tbody tr")];
    const wanted = field.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    const left = rows.filter(row => !row.hidden).length;
    section.querySelector(".count").textContent = wanted ? `${left} of ${rows.length} rows` : "";
  });
}

// Paper has what is folded on the screen.
const folded = () => document.querySelectorAll("details");
addEventListener("beforeprint", () => folded().forEach(one => { one.dataset.open = one.open; one.open = true; }));
addEventListener("afterprint", () => folded().forEach(one => { one.open = one.dataset.open === "true"; }));

// Figures.
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left",
  "triangle-right", "star", "hexagon", "pentagon"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px 1px"];
const GLYPHS = "\u25cf\u25a0\u25b2\u25c6\u25bc\u271a\u2716\u25c0\u25b6\u2605\u2b22\u2b1f";
const SCALE = report.scale;  // viridis from dark to light
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function colour(hue) {  // of looks.py
  if (typeof hue === "string") return hue.startsWith("#") ? hue : style(`--${hue.replace(" ", "-")}`);
  const [from, to] = dark.matches ? [1, 0.4] : report.ends;  // the contrast to the page stays
  return SCALE[Math.round((from + (to - from) * hue) * (SCALE.length - 1))];
}
const oneLine = title => title.replaceAll("\n", " ");
const asShown = text => [["&", "&amp;"], ["<", "&lt;"], [">", "&gt;"], ["\n", "<br>"]]  // plotly.js has tags of its own
  .reduce((made, [from, to]) => made.replaceAll(from, to), text);
const faint = hex => `rgba(${[1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)).join(",")},0.2)`;

function tracesOf(curve, panel) {
  const [hue, mark, dash] = curve.look, own = colour(hue), hues = curve.hues ? curve.hues.map(colour) : own;
  const open = curve.hollow ? "-open" : "", of = place => SYMBOLS[place % SYMBOLS.length] + open;
  const small = curve.kind === "points" && !curve.hollow;  // one run
  const symbol = curve.symbol ? curve.symbol + open : small ? "circle" : curve.hues ? curve.hues.map(h => of(h === "ink" ? 0 : mark)) : of(mark);
  const base = {type: "scatter", name: curve.name, x: curve.x, y: curve.y, meta: asShown(curve.name), cliponaxis: curve.kind !== "edge",
    hoverlabel: {namelength: -1}, hovertemplate: `%{meta}<br>${asShown(oneLine(panel.x.title))}: %{x}<br>${asShown(oneLine(panel.y.title))}: %{y:.6~g}<extra></extra>`};
  if (curve.text) Object.assign(base, {text: curve.text.map(asShown), hovertemplate: "%{text}<extra></extra>"});
  if (curve.kind === "stack")
    return [{...base, type: "bar", orientation: "h", textposition: "none", marker: {color: own, line: {color: style("--card"), width: 0.5}}}];
  if (curve.kind === "points" || curve.kind === "edge")
    return [{...base, mode: "markers", marker: {color: hues, symbol, size: curve.symbol ? 10 : curve.hollow ? 7 : 5, opacity: curve.symbol ? 1 : 0.75}}];
  const line = {color: own, width: curve.width || 2, dash: curve.solid ? "solid" : curve.plain ? "dot" : DASHES[dash % DASHES.length]};
  const wide = curve.low && curve.low.some(v => v !== null);
  if (curve.kind === "marks" || curve.kind === "bars") {
    const along = curve.along || "y";
    const bars = wide ? {["error_" + along]: {type: "data", symmetric: false, color: own, thickness: 1.2, width: 4,
      array: curve.high.map((v, i) => v === null ? 0 : v - curve[along][i]),
      arrayminus: curve.low.map((v, i) => v === null ? 0 : curve[along][i] - v)}} : {};
    return [{...base, ...bars, mode: curve.kind === "bars" ? "markers" : "lines+markers", line,
      marker: {color: hues, symbol, size: curve.y.length > 40 ? 5 : 8}}];
  }
  const mode = curve.plain || curve.x.length > 25 ? "lines" : "lines+markers";
  const shown = {...base, mode, line, opacity: curve.opacity || 1, marker: {color: own, symbol, size: 5}};
  if (!wide) return [shown];
  const edge = {type: "scatter", mode: "lines", x: curve.x, line: {width: 0}, hoverinfo: "skip", meta: base.meta};
  return [{...edge, y: curve.low}, {...edge, y: curve.high, fill: "tonexty", fillcolor: faint(own)}, shown];
}
function axisOf(axis, ink) {
  const made = {title: {text: asShown(axis.title || ""), standoff: 8}, gridcolor: style("--grid"), linecolor: style("--line"),
    zeroline: false, automargin: true, tickfont: {color: ink}};
  made.exponentformat = axis.type ? "power" : "none";
  if (axis.type) Object.assign(made, {type: axis.type, dtick: axis.range && axis.range[1] - axis.range[0] < 2 ? "D2" : 1});
  if (axis.ticks) Object.assign(made, {tickvals: axis.ticks, ticktext: axis.labels.map(asShown)});
  if (axis.whole) Object.assign(made, {tickformat: "d", nticks: 7}, axis.range && axis.range[1] - axis.range[0] < 8 ? {dtick: 1} : {});
  if (axis.range) made.range = axis.range;
  if (axis.rows) Object.assign(made, {range: [axis.rows - 0.5, -0.5], showgrid: false});
  return made;
}
function drawPanel(place, panel) {
  const ink = style("--ink"), titles = panel.title ? panel.title.split("\n").length : 0;
  const below = 46 + 14 * (panel.x.title.split("\n").length - 1);
  const traces = panel.curves.flatMap(curve => tracesOf(curve, panel));
  const layout = {
    title: {text: asShown(panel.title), font: {size: 13}, x: 0.02, xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: {t: 15 * titles - 6}},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, modebar: {bgcolor: "rgba(0,0,0,0)", color: style("--soft"), activecolor: style("--link")},
    font: {color: ink, size: 11, family: "system-ui, DejaVu Sans, sans-serif"},
    margin: {l: 62, r: 14, t: titles ? 20 + 16 * titles : 14, b: below}, hovermode: "closest", barmode: "stack",
    hoverlabel: {bgcolor: style("--card"), bordercolor: style("--line"), font: {color: ink}},
    xaxis: axisOf(panel.x, ink), yaxis: axisOf(panel.y, ink),
    shapes: [
      ...(panel.bands || []).map(band => ({type: "rect", layer: "below", line: {width: 0}, fillcolor: style("--soft"), opacity: 0.12,
        ...(band.x ? {yref: "paper", y0: 0, y1: 1, x0: band.x[0], x1: band.x[1]} : {xref: "paper", x0: 0, x1: 1, y0: band.y[0], y1: band.y[1]})})),
      ...panel.lines.map(line => ({type: "line", ...("x" in line ? {yref: "paper", y0: 0, y1: 1, x0: line.x, x1: line.x}
        : {xref: "paper", x0: 0, x1: 1, y0: line.y, y1: line.y}), line: {color: style("--soft"), width: 1, dash: line.dash || "solid"}}))],
    annotations: panel.lines.filter(line => line.name).map(line => ({...("x" in line
      ? {yref: "paper", y: 1, yanchor: "top", x: line.x, xanchor: "left"}
      : {xref: "paper", x: 1, xanchor: "right", y: line.y, yanchor: "bottom"}),
      text: asShown(line.name), showarrow: false, font: {size: 10, color: style("--soft")}})),
  };
  if (panel.heat) {
    const heat = panel.heat;
    traces.push({type: "heatmap", z: heat.z, zmin: heat.low, zmax: heat.high, colorscale: "Viridis", xgap: 1, ygap: 1, showscale: false,
      hoverongaps: false, text: heat.text.map(row => row.map(asShown)), hovertemplate: "%{text}<extra></extra>"});
    const dark = v => v === null || v < heat.low + 0.6 * (heat.high - heat.low);
    layout.annotations.push(...(heat.cells || []).flatMap((row, y) => row.map((text, x) => ({x, y, text, showarrow: false,
      font: {size: 10, color: heat.z[y][x] === null ? ink : dark(heat.z[y][x]) ? "#fff" : "#000"}}))));
    layout.shapes.push(...(heat.frames || []).map(([x, y]) => ({type: "rect", x0: x - 0.47, x1: x + 0.47, y0: y - 0.47, y1: y + 0.47,
      line: {color: "#ff5050", width: 2}})));
    Object.assign(layout.xaxis, {showgrid: false});
    Object.assign(layout, {plot_bgcolor: style("--line"), margin: {l: 46, r: 8, t: 20 + 15 * titles, b: 42}});
    layout.title.font.size = 11;
  }
  const options = {responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]};
  return Plotly.react(place, traces, layout, options);
}
function keyOf(figure, panels) {  // the names of the curves, which show and hide them, and the scale of colours
  const looks = new Map();
  for (const panel of figure.panels.filter(p => p && p.keyed !== false)) for (const c of panel.curves) if (c.x.length && !looks.has(c.name)) looks.set(c.name, c);
  const names = [...(figure.order || []).filter(n => looks.has(n)), ...[...looks.keys()].filter(n => !(figure.order || []).includes(n))];
  const key = document.createElement("div");
  key.className = "key";
  if (figure.bar) {
    const text = v => `${+v.toPrecision(4)}`, bar = document.createElement("span");
    bar.className = "bar";
    bar.style.background = `linear-gradient(to right, ${SCALE.join(",")})`;
    key.append(`${oneLine(figure.bar.title)}: ${text(figure.bar.low)}`, bar, text(figure.bar.high));
  }
  if (figure.key) key.append(`${figure.key}: `);
  if (names.length === 1) { key.append(names[0]); return key; }
  for (const name of names) {
    const {look: [hue, mark, dash], plain, kind} = looks.get(name), button = document.createElement("button");
    button.type = "button";
    button.title = "show or hide";
    button.innerHTML = kind === "stack" ? `<svg width="14" height="12"><rect width="14" height="12" fill="${colour(hue)}"/></svg>`
      : `<svg width="34" height="14"><line x1="0" x2="34" y1="7" y2="7" stroke="${colour(hue)}" stroke-width="2"` +
      ` stroke-dasharray="${["", "7 3", "2 3", "7 3 2 3", "12 4", "12 4 2 4", "5 1"][plain ? 2 : dash % 7]}"/>` + (plain ? "" :
      `<text x="17" y="11.5" font-size="13" text-anchor="middle" fill="${colour(hue)}">${GLYPHS[mark % GLYPHS.length]}</text>`) + "</svg>";
    button.append(name);
    button.addEventListener("click", () => {
      const off = button.classList.toggle("off");
      for (const place of panels.filter(p => p.data))
        place.data.forEach((trace, i) => { if (trace.meta === asShown(name)) Plotly.restyle(place, {visible: !off}, [i]); });
    });
    key.append(button);
  }
  return key.childNodes.length ? key : "";
}
function drawFigure(name, figure) {
  const place = document.querySelector(`.drawing[data-figure="${name}"]`);
  if (!place || !figure.panels.length) return;
  place.parentElement.classList.add("drawn");
  for (const old of place.querySelectorAll(".panel")) Plotly.purge(old);
  const room = Math.max(1, Math.floor(place.clientWidth / (figure.least || (figure.columns > 3 ? 250 : 330))));
  const columns = Math.min(figure.columns, figure.panels.length, room);
  place.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  const shown = figure.panels.filter(p => p || columns === figure.columns);  // gaps hold panels of one kind together
  const panels = shown.map(content => {
    const panel = document.createElement("div");
    panel.className = content ? "panel" : "gap";
    if (content && content.y.rows && !content.heat) panel.style.height = `${Math.max(12, 7 + 2.2 * content.y.ticks.length)}rem`;
    return panel;
  });
  place.replaceChildren(...panels);
  panels.forEach((panel, i) => { if (shown[i]) drawPanel(panel, shown[i]); });
  place.append(keyOf(figure, panels));
}

// Two points.
const choice = name => document.getElementById(`compare-${name}`);
function mean(curves) {  // at the steps that all curves have
  const steps = curves.length ? curves[0].step.filter(s => curves.every(c => c.step.includes(s))) : [];
  return {x: steps, y: steps.map(s => curves.reduce((sum, c) => sum + c.loss[c.step.indexOf(s)], 0) / curves.length)};
}
function nearAxis(curves, far, ...lines) {  // as `fit` of drawing.py: the losses of diverging runs are out of sight
  const seen = curves.flatMap(c => c.y).filter(v => v !== null), near = seen.filter(v => Math.abs(v) <= far);
  if (far === null || near.length === seen.length) return {};
  const [low, high] = [Math.min, Math.max].map(end => near.concat(lines).reduce((x, y) => end(x, y), near.length ? near[0] : far));
  const room = 0.08 * (high - low) || 0.1;
  return {range: [low - room, high + room]};
}
function compare() {
  const {points, pairs, matches, unit, far} = report.comparison;
  const i = +choice("a").value, j = +choice("b").value, a = points[i], b = points[j];
  const found = pairs[`${i},${j}`] || pairs[`${j},${i}`], sign = pairs[`${i},${j}`] ? 1 : -1;
  const decimal = v => v < 1e6 ? v.toFixed(4) : v.toExponential(4);  // a million: only losses of diverged runs
  const text = v => (v >= 0 ? "+" : "\u2212") + decimal(Math.abs(v));
  let words = "No two finished runs of these points have equal seeds.";
  if (i === j) words = "Choose two different points.";
  else if (found) {
    const [low, high] = sign > 0 ? [found[1], found[2]] : [found[2], found[1]];
    words = `Final validation loss, A minus B: ${text(sign * found[0])} ${unit}` +
      (low === null ? ` (one pair)` : ` (95 % interval ${text(sign * low)} to ${text(sign * high)}, ${found[3]} pairs)`) + ".";
  }
  document.getElementById("compare-result").textContent = words;
  const body = document.querySelector("#compare-spec tbody");
  const pointers = [...new Set([...Object.keys(a.spec), ...Object.keys(b.spec)])].sort();
  body.replaceChildren(...pointers.filter(p => a.spec[p] !== b.spec[p]).map(p => {
    const row = document.createElement("tr");
    for (const cell of [p, a.spec[p] || "not given", b.spec[p] || "not given"]) row.insertCell().textContent = cell;
    return row;
  }));
  if (!body.rows.length) body.insertRow().insertCell().textContent = "no difference";
  const LOOKS = {A: ["#4477aa", 0, 0], B: ["#ee6677", 1, 1], "A \u2212 B": ["ink", 0, 0]};
  const thin = (point, name) => point.runs.filter(r => r.step.length).map(r => ({name, look: LOOKS[name], x: r.step,
    y: r.loss, kind: "line", width: 1, opacity: 0.5, solid: true, text: r.step.map((s, k) =>
      `${name}, seed ${r.seed}\nstep ${s}: ${r.loss[k]}`)}));
  const whole = (point, name) => ({name, look: LOOKS[name], kind: "line", width: 3, ...mean(point.runs.filter(r => r.step.length))});
  const both = [];
  const turned = (matches[`${j},${i}`] || []).map(([k, m]) => [m, k]);
  for (const [k, m] of matches[`${i},${j}`] || turned) {
    const r = a.runs[k], s = b.runs[m];
    const steps = r.step.filter(t => s.step.includes(t));
    if (steps.length) both.push({seed: a.lossless ? s.seed : r.seed, step: steps,
      loss: steps.map(t => r.loss[r.step.indexOf(t)] - s.loss[s.step.indexOf(t)])});
  }
  const differences = both.map(d => ({name: "A \u2212 B", look: LOOKS["A \u2212 B"], x: d.step, y: d.loss, kind: "line", width: 1,
    opacity: 0.5, solid: true, text: d.step.map((s, k) => `seed ${d.seed}\nstep ${s}: ${text(d.loss[k])}`)}));
  const losses = [...thin(a, "A"), ...thin(b, "B"), whole(a, "A"), whole(b, "B")];
  const minus = [...differences, {name: "A \u2212 B", look: LOOKS["A \u2212 B"], kind: "line", width: 3, ...mean(both)}];
  drawFigure("compare", {columns: 2, panels: [
    {title: "validation loss", x: {title: "step"}, y: {title: unit, ...nearAxis(losses, far)}, lines: [], curves: losses},
    {title: "A minus B", x: {title: "step"}, y: {title: unit, ...nearAxis(minus, far, 0)}, lines: [{y: 0, dash: "dot"}], curves: minus}]});
}
function drawAll() {
  for (const [name, figure] of Object.entries(report.figures)) drawFigure(name, figure);
  if (choice("a") && report.comparison.points.length > 1) compare();
}
async function start() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), c => c.charCodeAt(0));
  const source = new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
  const script = document.createElement("script");
  script.textContent = await source.text();
  document.head.append(script);
  if (choice("a")) {
    for (const name of ["a", "b"]) {
      report.comparison.points.forEach((point, i) => choice(name).add(new Option(point.name, i)));
      choice(name).addEventListener("change", compare);
    }
    choice("a").value = report.comparison.points.length - 1;
    choice("b").value = 0;
  }
  drawAll();
  dark.addEventListener("change", drawAll);
  let width = innerWidth, timer;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; drawAll(); } }, 200);
  });
  document.documentElement.dataset.drawn = document.querySelectorAll(".panel .main-svg").length;
}
start().catch(error => {  // the pictures stay
  document.documentElement.dataset.failed = String(error);
  for (const figure of document.querySelectorAll(".drawn")) figure.classList.remove("drawn");
});
