"use strict";
/* The live half of report.html: chart, target compute, ranking. What it draws comes from the JSON in
   #data; every name is set as text, never as markup. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const SHAPES = ["circle", "square", "triangle", "diamond", "down", "plus", "cross"];
  const STOPS = 200, LEADERS = 5, LIKELY = 0.1, MOST = 7; // slider stops on the axis; those further are the ceiling
  const runs = data.runs.map((run, rank) => ({ ...run, rank, bands: new Map() }));

  // --- numbers -----------------------------------------------------------------------------------
  /* R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B); at C = Infinity it is the ceiling A. */
  const reward = ([A, B, mid, R0], c) => R0 + (A - R0) / (1 + (mid / c) ** B);
  const quantile = (sorted, q) => {
    const at = (sorted.length - 1) * q, low = Math.floor(at);
    return sorted[low] + (at - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
  };
  const summary = (values) => {
    const sorted = Float64Array.from(values).sort();
    return { mid: quantile(sorted, 0.5), low: quantile(sorted, 0.025), high: quantile(sorted, 0.975) };
  };
  const forecast = (run, c) => summary(run.draws.map((draw) => reward(draw, c)));
  const fitted = (run) => run.draws.length > 0;
  const ranked = (run) => run.state !== "unstable" && fitted(run);
  const ceiling = (run) => ({ mid: run.ceiling[0], low: run.ceiling[1], high: run.ceiling[2] });
  /* How often each of the rows has the highest value, draw by draw. */
  function chances(rows) {
    const count = rows.length && Math.min(...rows.map((row) => row.values.length)), wins = new Map(rows.map(({ run }) => [run, 0]));
    for (let k = 0; k < count; k++) {
      const best = rows.reduce((a, b) => (b.values[k] > a.values[k] ? b : a)).run;
      wins.set(best, wins.get(best) + 1 / count);
    }
    return wins;
  }
  /* At the ceiling the order and the probabilities are the analysis's own; elsewhere the forecast's. */
  function standings(c) {
    const rows = runs.map((run) => {
      const values = run.draws.map((draw) => reward(draw, c));
      return { run, values, ...(fitted(run) ? (c === Infinity ? ceiling(run) : summary(values)) : {}) };
    });
    const wins = chances(rows.filter(({ run }) => ranked(run)));
    for (const row of rows) row.chance = c === Infinity ? (row.run.chance ?? wins.get(row.run)) : wins.get(row.run);
    if (c === Infinity && data.at === null) return rows;
    return rows.sort((a, b) => ranked(b.run) - ranked(a.run) || fitted(b.run) - fitted(a.run) || (b.mid ?? 0) - (a.mid ?? 0));
  }
  const fixed = (value) => value.toFixed(3);
  const percent = (p) => (p > 0.995 ? ">99%" : p < 0.005 ? "<1%" : `${Math.round(100 * p)}%`);
  const SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  function compute(c) {
    if (c === 0) return "0";
    if (c >= 0.01 && c < 1e6) return c.toLocaleString("en-US", { maximumSignificantDigits: 3 });
    const [digits, power] = c.toExponential(1).split("e");
    const raised = [...String(Math.abs(power))].map((digit) => SUPER[digit]).join("");
    return `${digits === "1.0" ? "" : digits.replace(".0", "") + "×"}10${power < 0 ? "⁻" : ""}${raised}`;
  }
  const place = (c) => (c === Infinity ? "the ceiling" : `${compute(c)} ${data.unit}`);

  // --- state -------------------------------------------------------------------------------------
  const spent = runs.flatMap((run) => run.points.map((point) => point[0])).filter((c) => c > 0);
  if (!spent.length) return;
  const most = Math.max(...spent), least = Math.min(...spent);
  const state = { log: true, target: Infinity, pinned: new Set(), filter: "", slots: new Map() };
  function readFragment() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (given.has("scale")) state.log = given.get("scale") !== "linear";
    const at = given.get("at");
    if (at !== null) state.target = at === "ceiling" ? Infinity : Number(at) > 0 ? Number(at) : state.target;
  }
  function domain() {
    const target = state.target === Infinity ? 0 : state.target;
    const asked = 1.2 * Math.max(target, data.at ?? 0);
    return state.log ? [Math.min(least, target || least), Math.max(12 * most, asked)] : [0, Math.max(3 * most, 1.2 * target)];
  }
  let span = domain();
  const fraction = (c) => {
    const [low, high] = span;
    return state.log ? Math.log(c / low) / Math.log(high / low) : (c - low) / (high - low);
  };
  const atFraction = (f) => {
    const [low, high] = span;
    return state.log ? low * (high / low) ** f : low + f * (high - low);
  };
  /* A run keeps its colour and shape for as long as it is shown. */
  function highlight(rows) {
    const leading = rows.filter((row, i) => i < LEADERS || row.chance >= LIKELY).slice(0, MOST).map((row) => row.run);
    const chosen = [...new Set([...leading, ...state.pinned])];
    for (const run of state.slots.keys()) if (!chosen.includes(run)) state.slots.delete(run);
    for (const run of chosen) {
      if (state.slots.has(run)) continue;
      const taken = new Set(state.slots.values());
      let slot = 0;
      while (taken.has(slot)) slot++;
      state.slots.set(run, slot);
    }
  }

  // --- drawing -----------------------------------------------------------------------------------
  function svg(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  function html(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const round = (value) => Math.round(value * 10) / 10;
  const OUTLINES = {
    square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
    triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
    down: [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
    diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
    plus: [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2],
      [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
  };
  OUTLINES.cross = OUTLINES.plus.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]);
  function marker(slot, x, y, size, hollow = false) {
    const shape = SHAPES[slot % SHAPES.length], look = { class: `mark s${slot % 7}${hollow ? " hollow" : ""}` };
    if (shape === "circle") return svg("circle", { ...look, cx: round(x), cy: round(y), r: size });
    const corners = OUTLINES[shape].map(([dx, dy]) => `${round(x + size * dx)},${round(y + size * dy)}`);
    return svg("polygon", { ...look, points: corners.join(" ") });
  }
  function icon(run) {
    const box = svg("svg", { viewBox: "-7 -7 14 14", width: 14, height: 14, class: "icon", "aria-hidden": "true" });
    if (state.slots.has(run)) box.append(marker(state.slots.get(run), 0, 0, 4.6));
    else box.append(svg("circle", { r: 2.5, class: "mark muted" }));
    return box;
  }
  const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${round(x)} ${round(y)}`).join("");

  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= rough), out = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) out.push(t);
    return out;
  }
  function computeTicks(wanted) {
    const [low, high] = span;
    if (!state.log) return ticks(low, high, wanted);
    const decades = Math.log10(high / low), every = Math.max(1, Math.ceil(decades / wanted)), out = [];
    const steps = decades > wanted / 2 ? [1] : decades > wanted / 4 ? [1, 3] : [1, 2, 5];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p += every)
      for (const step of steps) if (step * 10 ** p >= low && step * 10 ** p <= high) out.push(step * 10 ** p);
    return out;
  }
  function extent(shown) {
    const seen = shown.flatMap((run) => [...run.points.map((point) => point[1]),
      ...(fitted(run) ? [forecast(run, span[1]).mid, run.ceiling[0], ...(run.state === "resolved" ? run.ceiling : [])] : [])]);
    const low = Math.min(...seen), high = Math.max(...seen), pad = 0.06 * (high - low) || 0.05;
    return [Math.max(0, low - pad), Math.min(1, high + pad)];
  }
  function band(run, grid) {
    const key = grid.join();
    if (!run.bands.has(key)) run.bands.set(key, grid.map((c) => forecast(run, c)));
    return run.bands.get(key);
  }
  /* Labels one under the other, pushed apart evenly from the values they belong to. */
  function spread(labels, gap, top, bottom) {
    labels.sort((a, b) => a.y - b.y || a.i - b.i);
    const clamp = (y) => Math.min(Math.max(y, top), bottom);
    for (const label of labels) label.at = label.y;
    for (let round = 0; round < 200; round++) for (let i = 1; i < labels.length; i++) {
      const [over, under] = [labels[i - 1], labels[i]], short = (gap - (under.at - over.at)) / 2;
      if (short > 0) { over.at = clamp(over.at - short); under.at = clamp(under.at + short); }
    }
    return labels;
  }

  function frame(box, layout) {
    const { left, right, top, bottom, y, low, high, narrow } = layout;
    for (const value of ticks(low, high, 5)) {
      box.append(svg("line", { class: "grid", x1: left, x2: layout.edge, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2)));
    }
    for (const c of computeTicks(narrow ? 4 : 7)) {
      const at = layout.x(c);
      box.append(svg("line", { class: "notch", x1: at, x2: at, y1: bottom, y2: bottom + 5 }),
        svg("text", { class: "tick", x: at, y: bottom + 19, "text-anchor": "middle" }, compute(c)));
    }
    box.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      svg("text", { class: state.target === Infinity ? "tick on" : "tick", x: layout.edge, y: bottom + 19, "text-anchor": "middle" }, "∞"),
      svg("rect", { class: state.target === Infinity ? "limit on" : "limit", x: right + 4, width: 2 * (layout.edge - right - 4), y: top - 6, height: bottom - top + 6, rx: 4 }));
  }
  function drawRun(box, run, { x, y, edge, strip }) {
    const slot = state.slots.get(run), shown = slot !== undefined;
    const spent = run.points.map((point) => point[0]).filter((c) => c > 0), last = Math.max(...spent);
    const begin = Math.max(0, fraction(Math.min(...spent)));
    const grid = Array.from({ length: 81 }, (_, i) => atFraction(begin + (1 - begin) * (i / 80)));
    if (!shown && !run.fit) return;
    if (!shown) {
      const coarse = grid.filter((_, i) => i % 2 === 0);
      box.append(svg("path", { class: "fit muted", d: line(coarse.map((c) => [x(c), y(reward(run.fit, c))])) }));
      return;
    }
    const points = svg("g", { class: "points" }), size = run.points.length > 80 ? 2.2 : 2.8;
    for (const [c, value, , used] of run.points)
      if (c > 0 || !state.log) points.append(marker(slot, x(c), y(value), size, !used));
    box.append(points);
    if (!fitted(run)) return;
    const values = band(run, grid);
    const path = grid.map((c, i) => [x(c), y(values[i].mid), c]);
    const upper = grid.map((c, i) => [x(c), y(values[i].high)]), lower = grid.map((c, i) => [x(c), y(values[i].low)]);
    box.append(svg("path", { class: `band s${slot % 7}`, d: `${line([...upper, ...lower.reverse()])}Z` }));
    const seen = path.filter((point) => point[2] <= last);
    box.append(svg("path", { class: `fit s${slot % 7}`, d: line(seen) }),
      svg("path", { class: `fit ahead s${slot % 7}`, d: line(path.slice(Math.max(seen.length - 1, 0))) }));
    const end = ceiling(run), at = edge + strip * ([...state.slots.keys()].indexOf(run) - (state.slots.size - 1) / 2);
    box.append(svg("line", { class: `whisker s${slot % 7}`, x1: at, x2: at, y1: y(end.low), y2: y(end.high) }),
      marker(slot, at, y(end.mid), 4, run.state !== "resolved"));
  }
  function drawTarget(box, rows, { x, y, top, bottom }) {
    if (state.target === Infinity) return;
    const at = x(state.target);
    box.append(svg("line", { class: "target", x1: at, x2: at, y1: top - 6, y2: bottom }));
    for (const row of rows.filter(({ run }) => state.slots.has(run) && fitted(run)).reverse()) {
      const slot = state.slots.get(row.run);
      box.append(svg("line", { class: `whisker s${slot % 7}`, x1: at, x2: at, y1: y(row.low), y2: y(row.high) }),
        marker(slot, at, y(row.mid), 4.6));
    }
  }
  function drawLabels(box, rows, { y, top, bottom, edge, gutter, narrow }, width) {
    const shown = rows.map(({ run }, i) => ({ run, i })).filter(({ run }) => state.slots.has(run));
    for (const label of shown) label.y = y(fitted(label.run) ? ceiling(label.run).mid : label.run.points.at(-1)[1]);
    for (const { run, i, y: from, at } of spread(shown, 17, top, bottom)) {
      const left = edge + gutter + (narrow ? 10 : 24);
      const text = svg("text", { class: "label", x: left, y: at + 4 }, narrow ? `${i + 1}` : run.name);
      if (!narrow) box.append(marker(state.slots.get(run), left - 9, at, 3.6));
      box.append(svg("path", { class: "leader", d: line([[edge + gutter - 2, from], [edge + gutter + 8, at]]) }), text);
      for (let kept = run.name.length - 1; !narrow && text.getComputedTextLength() > width - left; kept--)
        text.textContent = `${run.name.slice(0, Math.ceil(kept / 2))}…${run.name.slice(-Math.floor(kept / 2))}`;
    }
  }
  function drawChart(rows) {
    const host = $("chart"), width = Math.max(host.clientWidth, 280), narrow = width < 560;
    const height = narrow ? 320 : 430, left = 44, edge = width - (narrow ? 46 : 198);
    const gutter = narrow ? 20 : 36, strip = Math.min(10, (1.5 * gutter) / state.slots.size), right = edge - gutter, top = 14, bottom = height - 44;
    const shown = runs.filter((run) => state.slots.has(run)), [low, high] = extent(shown);
    const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    const layout = { left, right, edge, gutter, strip, top, bottom, low, high, narrow, y, x: (c) => left + fraction(c) * (right - left) };
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-labelledby": "chart-text" });
    const clip = svg("clipPath", { id: "plot" }, svg("rect", { x: left - 4, y: top - 6, width: edge - left + gutter + 4, height: bottom - top + 10 }));
    const inside = svg("g", { "clip-path": "url(#plot)" });
    box.append(svg("defs", {}, clip));
    frame(box, layout);
    const visible = rows.map((row) => row.run).filter((run) => matches(run) || state.slots.has(run)).reverse();
    for (const run of visible.filter((run) => !state.slots.has(run))) drawRun(inside, run, layout);
    for (const run of visible.filter((run) => state.slots.has(run))) drawRun(inside, run, layout);
    drawTarget(inside, rows, layout);
    box.append(inside);
    box.append(svg("text", { class: "tick", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, data.label));
    host.replaceChildren(box);
    drawLabels(box, rows, layout, width);
    const slider = $("target");
    slider.style.marginLeft = `${left - 11}px`;
    slider.style.width = `${edge - left + 22}px`;
    slider.max = STOPS + Math.max(2, Math.round((STOPS * gutter) / (right - left)));
  }

  // --- ranking -----------------------------------------------------------------------------------
  const matches = (run) => `${run.name} ${Object.values(run.choices).join(" ")}`.toLowerCase().includes(state.filter);
  /* A name may break after = _ , and space, rather than anywhere. */
  const breakable = (name) => name.split(/(?<=[=_,])(?=\S{5})/).flatMap((part) => [part, html("wbr", {})]);
  function bar(row, low, high) {
    const at = (value) => `${(100 * (Math.min(Math.max(value, low), high) - low)) / (high - low || 1)}%`;
    const box = html("span", { class: "bar", "aria-hidden": "true" });
    const range = html("i", {}), dot = html("b", {});
    range.style.left = at(row.low);
    range.style.right = `calc(100% - ${at(row.high)})`;
    dot.style.left = at(row.mid);
    box.append(range, dot);
    return box;
  }
  function drawRanking(rows) {
    const mids = rows.filter(({ run }) => fitted(run)).map((row) => row.mid);
    const low = Math.max(0, Math.min(...mids) - 0.03), high = Math.min(1, Math.max(...mids) + 0.03);
    const focused = document.activeElement?.dataset?.run;
    $("ranking").replaceChildren(...rows.map((row, i) => [row, i]).filter(([{ run }]) => matches(run)).map(([row, i]) => {
      const { run } = row;
      const button = html("button", { type: "button", "aria-pressed": state.pinned.has(run), "data-run": run.rank,
        title: state.pinned.has(run) ? "Stop highlighting" : "Keep highlighted" }, icon(run), html("span", {}, ...breakable(run.name)));
      button.addEventListener("click", () => {
        if (!state.pinned.delete(run)) state.pinned.add(run);
        draw();
      });
      const flag = run.state === "resolved" ? [] : [html("small", { class: "flag" }, run.state)];
      return html("tr", { class: ranked(run) ? "" : "out" }, html("td", { class: "rank" }, ranked(run) ? `${i + 1}` : "–"),
        html("th", { scope: "row" }, button, ...flag), html("td", { class: "value" }, fitted(run) ? fixed(row.mid) : "–"),
        html("td", { class: "range" }, ...(fitted(run) ? [bar(row, low, high), html("span", {}, `${fixed(row.low)}–${fixed(row.high)}`)] : [])),
        html("td", { class: "chance" }, ranked(run) ? percent(row.chance) : "–"));
    }));
    if (focused !== undefined) $("ranking").querySelector(`[data-run="${focused}"]`)?.focus();
  }
  function say(rows) {
    const [first] = rows.filter(({ run }) => ranked(run));
    if (!first) return "No run can be ranked.";
    const where = state.target === Infinity ? "At the ceiling" : `At ${place(state.target)}`;
    return `${where}, ${first.run.name} leads: ${fixed(first.mid)} (${fixed(first.low)}–${fixed(first.high)}), ${percent(first.chance)} likely to be best.`;
  }
  function draw() {
    const rows = standings(state.target);
    highlight(rows);
    drawChart(rows);
    drawRanking(rows);
    $("live").textContent = say(rows);
    const slider = $("target");
    slider.value = state.target === Infinity ? slider.max : Math.round(STOPS * fraction(state.target));
    slider.setAttribute("aria-valuetext", place(state.target));
    $("rule").textContent = state.target === Infinity && data.at === null
      ? `Ceilings within the margin of ${data.margin} count as the same; among them the faster curve comes first.`
      : "In order of the forecast there.";
    $("where").textContent = state.target === Infinity ? "ceiling (unlimited compute)" : place(state.target);
    $("log").setAttribute("aria-pressed", state.log);
    $("linear").setAttribute("aria-pressed", !state.log);
  }

  // --- one run in depth --------------------------------------------------------------------------
  function residuals(run) {
    const width = 520, height = 120, used = run.points.filter(([c, , , kept]) => c > 0 && kept);
    const left = used.map(([c, value, error]) => [c, value - reward(run.fit, c), error]);
    const most = Math.max(1e-6, ...left.map(([, gap, error]) => Math.abs(gap) + 2 * (error ?? 0))), y = (gap) => 60 - (50 * gap) / most;
    const [low, high] = [Math.min(...left.map(([c]) => c)), Math.max(...left.map(([c]) => c))];
    const x = (c) => 60 + (450 * Math.log(c / low)) / (Math.log(high / low) || 1);
    const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Residuals of ${run.name}: at most ${fixed(most)}` });
    for (const gap of [-most, 0, most]) box.append(svg("line", { class: "grid", x1: 52, x2: width, y1: y(gap), y2: y(gap) }),
      svg("text", { class: "tick", x: 46, y: y(gap) + 4, "text-anchor": "end" }, gap.toFixed(3)));
    for (const [c, gap, error] of left) {
      if (error) box.append(svg("line", { class: "whisker muted", x1: x(c), x2: x(c), y1: y(gap - 2 * error), y2: y(gap + 2 * error) }));
      box.append(svg("circle", { class: "mark s0", cx: x(c), cy: y(gap), r: 2.6 }));
    }
    return box;
  }
  document.querySelectorAll("details[data-run]").forEach((node) => node.addEventListener("toggle", () => {
    const host = node.querySelector(".residuals");
    if (node.open && host && !host.childElementCount) host.append(residuals(runs[node.dataset.run]));
  }));

  // --- controls ----------------------------------------------------------------------------------
  const refit = () => { span = domain(); for (const run of runs) run.bands.clear(); draw(); };
  function aim(c) {
    state.target = c;
    history.replaceState(null, "", `#at=${c === Infinity ? "ceiling" : Number(c.toPrecision(4))}${state.log ? "" : "&scale=linear"}`);
    if (c !== Infinity && (fraction(c) < 0 || fraction(c) > 1)) refit(); else draw();
  }
  $("target").addEventListener("input", (event) => {
    const value = Number(event.target.value), last = Number(event.target.max);
    const stepBack = state.target === Infinity && value === last - 1;
    aim(value > STOPS && !stepBack ? Infinity : atFraction(Math.min(value, STOPS) / STOPS));
  });
  $("spent").addEventListener("click", () => aim(most));
  $("ten").addEventListener("click", () => aim(10 * most));
  $("ceiling").addEventListener("click", () => aim(Infinity));
  for (const scale of ["log", "linear"]) $(scale).addEventListener("click", () => { state.log = scale === "log"; refit(); });
  $("filter")?.addEventListener("input", (event) => { state.filter = event.target.value.trim().toLowerCase(); draw(); });
  addEventListener("hashchange", () => { readFragment(); refit(); });
  if (data.at !== null) state.target = data.at;
  readFragment();
  refit();
  let width = 0;
  new ResizeObserver(() => { if ($("chart").clientWidth !== width) { width = $("chart").clientWidth; draw(); } }).observe($("chart"));
})();
