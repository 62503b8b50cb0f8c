// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
const D = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");

// --- Elements --------------------------------------------------------------------------------------------------------

// Text is never markup: names come from strangers.
function fill(made, attributes, kids) {
	for (const [name, value] of Object.entries(attributes || {})) {
		if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
		else if (name === "style") Object.assign(made.style, value);
		else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
	}
	for (const kid of kids.flat(9)) if (kid != null && kid !== false) made.append(kid);
	return made;
}
const el = (tag, attributes, ...kids) => fill(document.createElement(tag), attributes, kids);
const svg = (tag, attributes, ...kids) =>
	fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, kids);

function section(title, about, ...kids) {
	const made = el("section", {}, el("h2", {}, title), about ? el("p", { class: "hint" }, about) : null, kids);
	main.append(made);
	return made;
}

// --- Figures ---------------------------------------------------------------------------------------------------------

const three = (value) => (value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0));
const STEPS = [[999.5e3, 1e3, "us"], [999.5e6, 1e6, "ms"], [59.95e9, 1e9, "s"], [59.95 * 60e9, 60e9, "min"]];
function duration(ns) {
	if (ns < 999.5) return `${Math.round(ns)} ns`;
	for (const [limit, scale, unit] of STEPS) if (ns < limit) return `${three(ns / scale)} ${unit}`;
	return `${three(ns / 3600e9)} h`;
}
function scaled(value, base, units) {
	let step = 0;
	for (; value >= base - 0.5 && step < units.length - 1; step++) value /= base;
	let digits = three(value);
	if (digits.includes(".")) digits = digits.replace(/\.?0+$/, "");
	return `${digits} ${units[step]}`;
}
const size = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const rate = (count) => scaled(count, 1000, ["/s", "k/s", "M/s", "G/s"]);
const number = (count) => count.toLocaleString("en-US");
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const shown = (unit, value) => (unit === "ns" ? duration(value) : unit === "bytes" ? size(value) : number(value));
const many = (count, kind) => `${number(count)} ${count === 1 ? kind.one : kind.many}`;
function clock(ms, digits = 0) {
	const text = new Date(D.since + ms + D.offset * 1000).toISOString();
	return text.slice(11, 19) + (digits ? text.slice(19, 20 + digits) : "");
}

// Buckets are those of wptrace: eight to a power of two.
function low(slot) {
	return slot < 8 ? slot : (8 + (slot & 7)) * 2 ** ((slot >> 3) - 1);
}
const high = (slot) => (slot < 8 ? slot + 1 : low(slot) + 2 ** ((slot >> 3) - 1));
function place(value) {
	if (value < 8) return value;
	const shift = Math.floor(Math.log2(value)) - 3;
	return shift * 8 + value / 2 ** shift;
}
function percentile(share, count, buckets, least = 0, most = Infinity) {
	const rank = Math.max(1, Math.ceil(share * count - 1e-9));
	let seen = 0;
	for (const [slot, found] of buckets) {
		seen += found;
		if (seen >= rank) return Math.floor((Math.max(low(slot), least) + Math.min(high(slot) - 1, most)) / 2);
	}
	return 0;
}
function* pairs(flat) {
	for (let at = 0; at < flat.length; at += 2) yield [flat[at], flat[at + 1]];
}

// A cell of the whole trace is exact; one of a part of it is added up from columns.
function whole(cell) {
	const [count, sum, mean, p50, p90, p99, p999, max] = cell;
	return { count, sum, mean, p50, p90, p99, p999, max };
}
function summed(series, metric, columns) {
	let count = 0, sum = 0;
	const found = new Map();
	for (const [, , cells] of columns) {
		const cell = cells[series] && cells[series][metric];
		if (!cell) continue;
		count += cell[0];
		sum += cell[1];
		for (const [slot, more] of pairs(cell[2])) found.set(slot, (found.get(slot) || 0) + more);
	}
	const buckets = [...found].sort((a, b) => a[0] - b[0]);
	const [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map((share) => percentile(share, count, buckets));
	const max = buckets.length ? high(buckets[buckets.length - 1][0]) - 1 : 0;
	return { count, sum, mean: count ? Math.round(sum / count) : 0, p50, p90, p99, p999, max };
}

// --- What is looked at -----------------------------------------------------------------------------------------------

const state = { series: 0, metric: "total", range: null };
const drawn = [];
// Of events, where each of them is known; else of intervals.
const single = (series, metric) => (D.singles.of[series] || []).includes(metric);
// By their middles: the times of two that are side by side may overlap by what rounding leaves. Of an interval that is
// longer than the range there is no part.
function within(columns) {
	if (!state.range) return columns;
	const [from, to] = state.range, middle = (from + to) / 2;
	return columns.filter(([begin, end]) => ((begin + end) / 2 >= from && (begin + end) / 2 <= to) || (begin <= middle && middle < end));
}
const columnsOf = (series, metric) => within(single(series, metric) ? D.singles.columns : D.columns);
function figures(series, metric) {
	const cell = D.series[series].cells[metric];
	if (!cell) return null;
	return state.range ? summed(series, metric, columnsOf(series, metric)) : whole(cell);
}
function look(change) {
	Object.assign(state, change);
	for (const draw of drawn) draw();
}
// The first colours are those of the stages that took the most time.
const took = new Map();
for (const series of D.series) for (const metric of D.kinds[series.kind].metrics) {
	if (metric.is === "stage" && metric.name in series.cells) took.set(metric.name, (took.get(metric.name) || 0) + series.cells[metric.name][1]);
}
for (const one of D.events.rows) for (const [name] of one.stages) if (!took.has(name)) took.set(name, 0);
const names = [...took.keys()].sort((a, b) => took.get(b) - took.get(a));
const colour = (name) => `var(--s${name === "unattributed" ? 9 : Math.max(names.indexOf(name), 0) % 12})`;
// The time that the figures of a range are of.
function seconds(series) {
	if (!state.range) return D.duration / 1e9;
	const found = columnsOf(series, "total"), [from, to] = state.range;
	return Math.max(to - from, found.length ? found[found.length - 1][1] - found[0][0] : 0) / 1000;
}

// A device or an owner alone, behind the sums, which the tables are of.
const sums = [...D.series];
D.series.push(...D.apart.map((one) => ({ ...one, bytes: 0, untimed: 0, events: [], made: [] })));

// Kinds in their order, and of each those with the most time first.
const ranked = sums.map((one, at) => at).sort((a, b) =>
	D.series[a].kind - D.series[b].kind || D.series[b].cells.total[1] - D.series[a].cells.total[1]);

// --- The top ---------------------------------------------------------------------------------------------------------

function top() {
	document.documentElement.lang = "en";
	const where = [D.host, `Linux ${D.kernel}`, `${D.begin.slice(0, 19)} to ${D.end.slice(11, 19)} ${D.zone}`, duration(D.duration)].filter(Boolean);
	main.append(el("header", {},
		el("h1", {}, `wptrace ${D.flow}`, D.level ? el("small", {}, `level ${D.level}`) : null),
		el("p", {}, where.join(" · ")),
		D.chosen ? el("p", {}, D.chosen) : null,
		D.file ? el("p", {}, `from ${D.file}`) : null));
	const cards = el("div", { class: "cards" });
	const card = (value, words, bad) =>
		cards.append(el("div", { class: bad ? "card bad" : "card" }, el("b", {}, value), el("span", {}, words)));
	const first = D.series[ranked[0]];
	const bytes = sums.reduce((sum, one) => sum + (D.kinds[one.kind].name === "request" ? one.bytes : 0), 0);
	const counts = new Map();
	for (const one of sums) counts.set(one.kind, (counts.get(one.kind) || 0) + one.cells.total[0]);
	for (const [kind, count] of [...counts].slice(0, 3)) card(number(count), D.kinds[kind].many);
	if (bytes) card(size(bytes), `${size(bytes / (D.duration / 1e9))}/s`);
	if (first) {
		const unit = D.kinds[first.kind].unit, found = whole(first.cells.total);
		card(shown(unit, found.p50), `p50 of ${first.name}`);
		card(shown(unit, found.p99), `p99 of ${first.name}`);
		card(shown(unit, found.max), `max of ${first.name}`);
	}
	const failed = D.books.reduce((sum, one) => sum + one[5], 0), lost = D.books.reduce((sum, one) => sum + one[4], 0);
	if (failed) card(number(failed), "failed", true);
	card(number(lost), "lost", lost > 0);
	main.append(cards);
	if (D.verdict.length) main.append(el("div", { class: "verdict" }, D.verdict.map((line) => el("p", {}, line.replace(/^verdict: /, "")))));
	if (D.losses.length) main.append(el("div", { class: "verdict lost" }, D.losses.map((line) => el("p", {}, line))));
}

// --- The slowest of a dump, and what led to it ------------------------------------------------------------------------

function incident() {
	const found = D.incident;
	if (!found) return;
	const one = found.event, begin = Math.min(found.begin ?? found.queued, found.queued);
	const [what, ...lines] = found.lines;
	const around = el("button", { id: "around", onclick: () => {
		const end = Math.max(one.end, found.until ?? one.end), span = Math.max(end - begin, 1);
		look({ range: [Math.max(begin - span, D.columns[0][0]), Math.min(end + span / 2, D.columns[D.columns.length - 1][1])] });
		document.getElementById("heat").scrollIntoView({ block: "center" });
	} }, "show its time");
	const count = (at) => [(row) => row[at], (row) => (row[at] ? number(row[at]) : "")], bytes = (at) => [(row) => row[at], (row) => (row[at] ? size(row[at]) : "")];
	const columns = [["who", (row) => row[0], (row) => row[0]], ["operation", (row) => row[1], (row) => row[1]], ["under way", ...count(2)], ["bytes", ...bytes(3)],
		["in the device", ...count(4)], ["came behind", ...count(5)], ["bytes", ...bytes(6)]]
		.map(([title, value, cell], at) => ({ title, value, cell, number: at > 1, less: at === 4 || at === 6 }));
	const rows = [...found.rows, ...(found.others ? [found.others] : [])];
	const part = section("The incident", null,
		el("div", { class: "verdict lost" }, el("p", {}, what), lines.map((line) => el("p", {}, line)), found.advice ? el("p", {}, `look at: ${found.advice}`) : null),
		el("div", { class: "bar" }, D.columns.length ? around : null),
		one.stages.length > 1 ? fall(one) : null,
		el("h3", {}, "Who was on the device"), el("p", {}, `${found.moment[0].toUpperCase()}${found.moment.slice(1)}.`),
		rows.length ? grid(rows, columns, (row) => `${row[0]} ${row[1]}`, { order: 2, limit: 25, placeholder: "search who was there" }).made : null,
		found.left ? el("p", { class: "hint" }, `The oldest ${number(found.left)} events were not looked at for it.`) : null,
		el("details", {}, el("summary", {}, "its story"), el("pre", {}, one.story.join("\n"))));
	part.id = "incident";
}
// Where it was queued, where it began to be slow, and itself.
function marks(x, y, span) {
	const found = D.incident;
	if (!found) return [];
	const one = found.event, inside = (ms) => ms != null && ms >= span[0] && ms <= span[1];
	const upright = (ms, name, words) => (inside(ms) ? [svg("line", { class: `upright ${name}`, x1: x(ms), x2: x(ms), y1: TOP, y2: HIGH - BOTTOM }, svg("title", {}, `${words} ${clock(ms, 3)}`))] : []);
	const own = state.series === one.series && state.metric === "total" && inside(one.end);
	return [...upright(found.begin, "since", "slow since"), ...upright(found.queued, "queued", "from then on it was on its way: "),
		...(own ? [svg("circle", { class: "slow", r: 6, cx: x(one.end).toFixed(1), cy: y(one.total) }, svg("title", {}, found.lines[0]))] : [])];
}

// --- Latency over time -----------------------------------------------------------------------------------------------

const LEFT = 62, RIGHT = 8, TOP = 8, BOTTOM = 24, HIGH = 250;
const NICE = [1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 108e5, 216e5, 864e5];

// The range that is shown, and where a time is in a chart as wide as it is now.
function axis(chart, height) {
	const wide = Math.max(chart.clientWidth || chart.parentNode.clientWidth, 280);
	const span = state.range || [D.columns[0][0], D.columns[D.columns.length - 1][1]];
	const scale = (wide - LEFT - RIGHT) / (span[1] - span[0] || 1);
	const x = (ms) => LEFT + (Math.min(Math.max(ms, span[0]), span[1]) - span[0]) * scale;
	x.back = (pixel) => span[0] + (pixel - LEFT) / scale;
	chart.setAttribute("viewBox", `0 0 ${wide} ${height}`);
	chart.setAttribute("height", height);
	return { wide, span, scale, x };
}
// With every change of what is looked at, and of the width.
function redrawn(chart, draw) {
	drawn.push(draw);
	new ResizeObserver(() => { if (chart.clientWidth && Math.abs(chart.clientWidth - chart.viewBox.baseVal.width) > 1) draw(); }).observe(chart);
}

function heat() {
	if (!D.columns.length || !D.series.length) return;
	state.series = D.incident && D.incident.event.series >= 0 ? D.incident.event.series : ranked[0];
	const bytes = D.kinds.length && D.kinds[0].unit !== "ns";
	const which = el("select", { "aria-label": "what", id: "what", onchange: () => look({ series: +which.value, metric: "total" }) },
		ranked.map((at) => el("option", { value: at }, D.series[at].name)),
		D.apart.length ? el("optgroup", { label: "one device or owner" }, D.apart.map((one, at) => el("option", { value: sums.length + at }, one.name))) : null);
	const metric = el("select", { "aria-label": "stage", id: "stage", onchange: () => look({ metric: metric.value }) });
	const reset = el("button", { id: "reset", onclick: () => look({ range: null }) }, "whole trace");
	const told = el("output", { id: "told", "aria-live": "polite" });
	const chart = svg("svg", {
		id: "heat", tabindex: 0, role: "group", height: HIGH,
		"aria-label": "Heat map over time. Arrows move, with shift they select, Enter zooms, Escape shows all.",
	});
	const grain = el("p", { class: "hint", id: "grain" });
	section(bytes ? "Sizes over time" : "Latency over time",
		"The darker a field, the more there were. Drag over a range to zoom into it: the tables below then cover that range. "
		+ "With the keyboard: arrows, shift and arrows, Enter, Escape.",
		el("div", { class: "bar" }, el("label", { for: "what" }, "of"), which, el("label", { for: "stage" }, "stage"), metric, reset),
		el("figure", {}, chart), grain,
		el("div", { class: "legend" },
			el("span", {}, el("i", { class: "line", style: { background: "var(--fg)" } }), "p50"),
			el("span", {}, el("i", { class: "line", style: { background: "var(--over)" } }), "p99"),
			D.events.rows.length ? el("span", {}, el("i", { style: { background: "var(--over)", width: "8px", height: "8px", borderRadius: "4px" } }), "one of the slowest") : null,
			D.incident ? el("span", {}, el("i", { class: "ring" }), "the incident") : null,
			D.incident && D.incident.begin != null ? el("span", {}, el("i", { class: "line", style: { background: "var(--bad)" } }), "slow since") : null,
			D.incident ? el("span", {}, el("i", { class: "line", style: { background: "var(--accent)" } }), "it came") : null),
		told);

	let cursor = -1, anchor = -1, view = [], x = null;
	function describe(from, to) {
		const kind = D.kinds[D.series[state.series].kind], [begin, end] = [view[from][0], view[to][1]];
		const found = summed(state.series, state.metric, view.slice(from, to + 1)), unit = unitOf(state.series, state.metric);
		told.textContent = `${clock(begin, 3)} to ${clock(end, 3)}: ${many(found.count, kind)}`
			+ (found.count ? `, mean ${shown(unit, found.mean)}, p50 ${shown(unit, found.p50)}, p99 ${shown(unit, found.p99)}` : "");
	}
	function mark() {
		for (const old of chart.querySelectorAll(".brush, .cursor")) old.remove();
		if (cursor < 0 || !view.length) return;
		const from = Math.min(cursor, anchor), to = Math.max(cursor, anchor);
		const left = x(view[from][0]), right = x(view[to][1]);
		chart.append(svg("rect", { class: "brush", x: left, y: TOP, width: Math.max(right - left, 1), height: HIGH - TOP - BOTTOM }));
		describe(from, to);
	}
	function zoom() {
		if (cursor < 0) return;
		const from = Math.min(cursor, anchor), to = Math.max(cursor, anchor);
		const range = [view[from][0], view[to][1]];
		cursor = anchor = -1;
		look({ range });
	}
	chart.addEventListener("keydown", (event) => {
		const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
		if (step && view.length) {
			if (cursor < 0) cursor = step > 0 ? -1 : view.length;
			cursor = Math.min(Math.max(cursor + step, 0), view.length - 1);
			if (!event.shiftKey || anchor < 0) anchor = cursor;
			mark();
		} else if (event.key === "Enter") zoom();
		else if (event.key === "Escape") { cursor = anchor = -1; look({ range: null }); }
		else return;
		event.preventDefault();
	});
	const at = (event) => {
		const time = x.back(event.clientX - chart.getBoundingClientRect().left);
		let found = view.findIndex(([, end]) => end > time);
		if (found < 0) found = view.length - 1;
		return found;
	};
	let dragging = false;
	chart.addEventListener("pointerdown", (event) => {
		if (event.button || !view.length || event.target.classList.contains("dot")) return;
		dragging = true;
		chart.setPointerCapture(event.pointerId);
		cursor = anchor = at(event);
		mark();
	});
	chart.addEventListener("pointermove", (event) => {
		if (!view.length) return;
		if (dragging) { cursor = at(event); mark(); } else if (cursor < 0) { const one = at(event); describe(one, one); }
	});
	chart.addEventListener("pointerup", () => {
		if (!dragging) return;
		dragging = false;
		if (cursor !== anchor) zoom();
	});
	chart.addEventListener("dblclick", () => { cursor = anchor = -1; look({ range: null }); });

	function draw() {
		const series = D.series[state.series], kind = D.kinds[series.kind], unit = unitOf(state.series, state.metric);
		which.value = state.series;
		metric.replaceChildren(...["total", ...kind.metrics.map((one) => one.name)]
			.filter((name) => series.cells[name] && series.cells[name][1]).map((name) => el("option", { value: name }, name)));
		if (![...metric.options].some((one) => one.value === state.metric)) state.metric = "total";
		metric.value = state.metric;
		reset.disabled = !state.range;
		view = columnsOf(state.series, state.metric);
		grain.textContent = single(state.series, state.metric)
			? `Each column is ${duration(D.singles.width * 1e6)}: all ${many(series.cells.total[0], kind)} are there one by one, where they ended.`
			: "Each column is an interval, or several: not every one is known by itself.";
		const time = axis(chart, HIGH), { wide, span, scale } = time;
		x = time.x;
		// Four buckets are a row: half a power of two.
		let least = Infinity, most = -Infinity, darkest = 0;
		const rows = view.map(([, , cells]) => {
			const found = new Map(), cell = cells[state.series] && cells[state.series][state.metric];
			for (const [slot, count] of cell ? pairs(cell[2]) : []) {
				const row = slot >> 2;
				found.set(row, (found.get(row) || 0) + count);
				least = Math.min(least, row);
				most = Math.max(most, row);
			}
			return found;
		});
		if (most < least) [least, most] = [0, 1];
		if (most - least < 5) { least = Math.max(least - 2, 0); most += 3; }
		rows.forEach((found, at) => {
			const length = view[at][1] - view[at][0] || 1;
			for (const count of found.values()) darkest = Math.max(darkest, count / length);
		});
		const tall = (HIGH - TOP - BOTTOM) / (most - least + 1);
		const y = (row) => TOP + (most + 1 - row) * tall;
		const parts = Array.from({ length: 10 }, () => []);
		rows.forEach((found, at) => {
			const [begin, end] = view[at], left = x(begin), width = Math.max(x(end) - left - (scale * (end - begin) > 6 ? 0.6 : 0), 0.7);
			for (const [row, count] of found) {
				const share = Math.log1p((99 * count) / (end - begin || 1) / (darkest || 1)) / Math.log(100);
				parts[Math.min(Math.max(Math.ceil(share * 9), 1), 9)].push(`M${left.toFixed(1)} ${y(row + 1).toFixed(1)}h${width.toFixed(1)}v${(tall + 0.2).toFixed(1)}h-${width.toFixed(1)}z`);
			}
		});
		const back = [];
		for (const value of ticks(low(least * 4), high(most * 4 + 3), unit)) {
			const line = y(place(value) / 4);
			if (line < TOP + 4 || line > HIGH - BOTTOM + 1) continue;
			back.push(svg("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: line, y2: line }),
				svg("text", { x: LEFT - 6, y: line + 4, "text-anchor": "end" }, shown(unit, value).replace(/\.0+ /, " ")));
		}
		const step = NICE.find((one) => (span[1] - span[0]) / one <= Math.max(wide / 110, 2)) || 864e5;
		const fine = span[1] - span[0] < 2000, every = fine ? (span[1] - span[0]) / 4 : step;
		const first = fine ? span[0] : Math.ceil((span[0] + D.since) / step) * step - D.since;
		for (let ms = first; ms <= span[1]; ms += every) {
			const text = clock(ms, fine ? 3 : 0), place = x(ms);
			back.push(svg("line", { class: "grid", x1: place, x2: place, y1: HIGH - BOTTOM, y2: HIGH - BOTTOM + 4 }),
				svg("text", { x: Math.min(Math.max(place, LEFT + (fine ? 36 : 22)), wide - (fine ? 46 : 30)), y: HIGH - 6, "text-anchor": "middle" }, text));
		}
		const line = (share) => {
			let path = "", last = -Infinity;
			view.forEach(([begin, end, cells]) => {
				const cell = cells[state.series] && cells[state.series][state.metric];
				if (!cell || !cell[0]) return;
				const value = y(place(percentile(share, cell[0], [...pairs(cell[2])])) / 4).toFixed(1);
				// Where there was nothing is no line.
				path += `${begin - last < (end - begin) / 2 ? "L" : `M${x(begin).toFixed(1)} ${value}L`}${x((begin + end) / 2).toFixed(1)} ${value}`;
				last = end;
			});
			return path;
		};
		const dots = state.series >= sums.length || state.metric !== "total" ? [] : D.events.rows.slice(0, 300)
			.filter((one) => one.series === state.series && one.end >= span[0] && one.end <= span[1])
			.map((one) => svg("circle", {
				class: "dot", r: 2.6, cx: x(one.end).toFixed(1), cy: Math.min(Math.max(y(place(one.total) / 4), TOP), HIGH - BOTTOM).toFixed(1),
				onclick: () => look({ open: one }),
			}, svg("title", {}, `${one.clock} ${one.what} ${duration(one.total)} ${one.who}`)));
		chart.replaceChildren(...back,
			...parts.map((part, level) => svg("path", { d: part.join(""), style: { fill: `var(--h${level})` } })).slice(1),
			svg("path", { class: "p50", d: line(0.5) }), svg("path", { class: "p99", d: line(0.99) }), ...dots,
			...marks(x, (value) => Math.min(Math.max(y(place(value) / 4), TOP), HIGH - BOTTOM).toFixed(1), span));
		const kept = state.range ? `${clock(span[0], 3)} to ${clock(span[1], 3)}, ${duration((span[1] - span[0]) * 1e6)} of ${duration(D.duration)}` : "";
		told.textContent = kept;
		mark();
	}
	redrawn(chart, draw);
}
function unitOf(series, name) {
	const kind = D.kinds[D.series[series].kind];
	return name === "total" ? kind.unit : (kind.metrics.find((one) => one.name === name) || kind).unit;
}
function* ticks(least, most, unit) {
	const few = Math.log2(most / Math.max(least, 1)) > 6;
	if (unit === "bytes") { for (let value = 1; value <= most; value *= few ? 8 : 2) if (value >= least) yield value; return; }
	for (let value = 1; value <= most; value *= 10)
		for (const one of few ? [value] : [value, 2 * value, 5 * value]) if (one >= least && one <= most) yield one;
}

// --- Rates, and places on the device ---------------------------------------------------------------------------------

const opColour = (at) => `var(--s${[0, 1, 2, 3, 4, 5][at % 6]})`;
const key = (name, at) => el("span", {}, el("i", { style: { background: opColour(at) } }), name);

function rates() {
	const kind = Math.max(D.kinds.findIndex((one) => one.name === "request"), 0);
	const mine = ranked.filter((at) => D.series[at].kind === kind);
	if (!D.columns.length || !mine.length || D.kinds[kind].unit !== "ns") return;
	const per = (columns, value) => mine.map((at) => columns.map((one) => [one[0], one[1], value(one, at)]));
	const cell = (one, at) => (one[2][at] && one[2][at].total) || [0, 0];
	const lines = [
		["a second", (one, at) => cell(one, at)[0] / ((one[1] - one[0]) / 1e3 || 1), (value) => rate(value)],
		["bytes", (one, at) => (one[3][at] || 0) / ((one[1] - one[0]) / 1e3 || 1), (value) => `${size(value)}/s`],
		["bytes each", (one, at) => (cell(one, at)[0] ? (one[3][at] || 0) / cell(one, at)[0] : 0), (value) => size(value)],
		["at a time", (one, at) => cell(one, at)[1] / 1e6 / (one[1] - one[0] || 1), (value) => three(value)],
	];
	// A flow may know no bytes.
	if (!D.columns.some((one) => mine.some((at) => one[3][at]))) lines.splice(1, 2);
	const charts = lines.map(([name]) => svg("svg", { class: "rate", role: "img", "aria-label": `${D.kinds[kind].many} ${name} over time` }));
	section("Rates over time", `${D.kinds[kind].many[0].toUpperCase()}${D.kinds[kind].many.slice(1)} a second, their bytes and sizes, and how many there were at a time, in each interval.`,
		charts.map((chart) => el("figure", {}, chart)), el("div", { class: "legend" }, mine.map((at, place) => key(D.series[at].name, place))));
	charts.forEach((chart, place) => redrawn(chart, () => {
		const [name, value, words] = lines[place], { wide, x } = axis(chart, 96);
		const found = per(within(D.columns), value);
		const most = Math.max(...found.flat().map((one) => one[2]), 1e-9);
		const y = (one) => 78 - (68 * one) / most;
		chart.replaceChildren(svg("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: 78, y2: 78 }), svg("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: 10, y2: 10 }),
			svg("text", { x: LEFT - 6, y: 14, "text-anchor": "end" }, words(most)), svg("text", { x: LEFT - 6, y: 82, "text-anchor": "end" }, "0"), svg("text", { x: LEFT, y: 94 }, name),
			...found.map((line, at) => svg("path", { class: "rateline", style: { stroke: opColour(at) },
				d: line.map(([begin, end, one], step) => `${step ? "L" : "M"}${x(begin).toFixed(1)} ${y(one).toFixed(1)}H${x(end).toFixed(1)}`).join("") })));
	}));
}
function map() {
	const { rows, devices, ops, step } = D.places;
	if (rows.length < 2 || !D.columns.length) return;
	const pick = el("select", { id: "device", "aria-label": "device", onchange: () => look({}) }, devices.map((name, at) => el("option", { value: at }, name)));
	const chart = svg("svg", { id: "map", role: "img", "aria-label": "Places on the device over time" });
	section("Places on the device", `Each mark is where one of ${number(D.events.seen)} events began, over time: a line is sequential, a cloud random.`
		+ (step > 1 ? ` One in ${number(step)} is drawn.` : ""),
		devices.length > 1 ? el("div", { class: "bar" }, el("label", { for: "device" }, "device"), pick) : null,
		el("figure", {}, chart), el("div", { class: "legend" }, ops.map(key)));
	redrawn(chart, () => {
		const { wide, span, x } = axis(chart, HIGH);
		const shownRows = rows.filter(([ms, dev]) => dev === +pick.value && ms >= span[0] && ms <= span[1]);
		const least = Math.min(...shownRows.map((row) => row[3]), Infinity), most = Math.max(...shownRows.map((row) => row[3] + row[4]), 0);
		const y = (sector) => HIGH - BOTTOM - ((HIGH - TOP - BOTTOM) * (sector - least)) / (most - least || 1);
		const paths = ops.map(() => []);
		for (const [ms, , op, sector, sectors] of shownRows) {
			const top = y(sector + sectors);
			paths[op].push(`M${x(ms).toFixed(1)} ${top.toFixed(1)}h1.6v${Math.max(y(sector) - top, 1.6).toFixed(1)}h-1.6z`);
		}
		const edge = (sector) => size(sector * 512);
		chart.replaceChildren(svg("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: HIGH - BOTTOM, y2: HIGH - BOTTOM }),
			...(shownRows.length ? [svg("text", { x: LEFT - 6, y: TOP + 8, "text-anchor": "end" }, edge(most)), svg("text", { x: LEFT - 6, y: HIGH - BOTTOM, "text-anchor": "end" }, edge(least))] : []),
			svg("text", { x: LEFT, y: HIGH - 8 }, clock(span[0], 0)), svg("text", { x: wide - RIGHT, y: HIGH - 8, "text-anchor": "end" }, clock(span[1], 0)),
			...paths.map((path, op) => svg("path", { d: path.join(""), style: { fill: opColour(op) } })));
	});
}

// --- Where the time goes ---------------------------------------------------------------------------------------------

const FIGURES = [["mean", "least"], ["p50", ""], ["p90", "less"], ["p99", ""], ["p999", "less"], ["max", "least"]];
const titles = { p999: "p99.9" };
const figureCells = (found, unit) => FIGURES.map(([name, kind]) => el("td", { class: `num ${kind}` }, found.count ? shown(unit, found[name]) : ""));
const figureTitles = () => FIGURES.map(([name, kind]) => el("th", { class: `num ${kind}` }, titles[name] || name));

function strip(parts, total, tall) {
	return el("span", { class: tall ? "strip tall" : "strip", role: "img", "aria-label": parts.map(([name, ns]) => `${name} ${percent(ns / (total || 1))}`).join(", ") },
		parts.map(([name, ns]) => el("i", { title: `${name} ${percent(ns / (total || 1))}`, style: { width: `${(100 * ns) / (total || 1)}%`, background: colour(name) } })));
}

function stages() {
	if (!D.series.length) return;
	const hold = el("div", { id: "stages" });
	const timed = D.kinds.some((kind) => kind.unit === "ns");
	section(timed ? "Where the time goes" : "What there was", timed ? "Open the name of a stage to read what it is." : null, hold);
	drawn.push(() => {
		const whole = el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "what"), el("th", { class: "num" }, "count"), el("th", { class: "num" }, "rate"),
			el("th", { class: "num less" }, "bytes"), figureTitles())), el("tbody", {}, ranked.map((at) => {
			const series = D.series[at];
			const found = figures(at, "total"), unit = unitOf(at, "total");
			return el("tr", {}, el("td", { class: "name" }, series.name), el("td", { class: "num" }, number(found.count)),
				el("td", { class: "num" }, seconds(at) ? rate(found.count / seconds(at)) : ""),
				el("td", { class: "num less" }, series.bytes && !state.range ? size(series.bytes) : ""), figureCells(found, unit));
		})));
		const parts = [el("div", { class: "wide" }, whole)];
		ranked.filter((at) => D.kinds[D.series[at].kind].metrics.filter((one) => one.is !== "" || one.unit !== "ns").length > 1)
			.forEach((at) => parts.push(...table(at)));
		hold.replaceChildren(...parts);
	});
	function table(at) {
		const series = D.series[at], kind = D.kinds[series.kind], total = figures(at, "total");
		if (!total.count) return [];
		const rows = kind.metrics.map((metric) => [metric, figures(at, metric.name)]).filter(([, found]) => found);
		const idle = rows.filter(([, found]) => !found.sum).map(([metric]) => metric.name);
		const busy = rows.filter(([, found]) => found.sum);
		const row = (metric, found) => el("tr", { class: metric.is === "interference" ? "interference" : "" },
			el("td", { class: "name" }, el("details", {}, el("summary", {},
				metric.is === "stage" ? el("span", { class: "swatch", style: { background: colour(metric.name) } }) : null, metric.name),
				el("span", { class: "hint" }, `${metric.about}; where it is large: ${metric.large}`))),
			el("td", { class: "num" }, number(found.count)), figureCells(found, metric.unit),
			el("td", { class: "num" }, total.sum ? percent(found.sum / total.sum) : ""),
			el("td", { class: "draw least" }, el("span", { class: "share", style: { width: `${Math.min((100 * found.sum) / (total.sum || 1), 100)}%`, background: metric.is === "stage" ? colour(metric.name) : "var(--dim)" } })));
		const interference = busy.filter(([metric]) => metric.is === "interference");
		const parts = busy.filter(([metric]) => metric.is === "stage").map(([metric, found]) => [metric.name, found.sum]);
		const extra = series.events.map(([name, count]) => `${name} ${number(count)}`);
		if (series.untimed) extra.push(`${number(series.untimed)} counted, not timed`);
		return [el("h3", {}, `${series.name}: ${number(total.count)}`),
			parts.length ? strip(parts, total.sum, true) : null,
			el("div", { class: "wide" }, el("table", { "data-series": at }, el("thead", {}, el("tr", {}, el("th", {}, "stage"), el("th", { class: "num" }, "count"), figureTitles(),
				el("th", { class: "num" }, "share"), el("th", { class: "least" }, ""))), el("tbody", {},
				busy.filter(([metric]) => metric.is !== "interference").map(([metric, found]) => row(metric, found)),
				interference.length ? el("tr", { class: "none" }, el("td", { colspan: 10 }, "of that, inside the stages above:")) : null,
				interference.map(([metric, found]) => row(metric, found)),
				el("tr", { class: "whole" }, el("td", {}, "total"), el("td", { class: "num" }, number(total.count)), figureCells(total, kind.unit), el("td", { class: "num" }, ""), el("td", { class: "least" }))))),
			// Of a range nobody knows it.
			state.range ? [] : series.made.map((one) => el("p", { class: "made" }, one)),
			idle.length || extra.length ? el("p", { class: "hint" }, [idle.length ? `took no time: ${idle.join(", ")}` : "", ...extra].filter(Boolean).join("; ")) : null].flat().filter(Boolean);
	}
}

// --- Tables that are searched and sorted -----------------------------------------------------------------------------

// A column is { title, cell(row), value(row), number, less }; `words` is what a search looks into.
function grid(rows, columns, words, options) {
	let order = options.order, down = true, needle = "", limit = options.limit, wanted = rows;
	const body = el("tbody"), count = el("span", { class: "dim" }), opened = new Set();
	const search = el("input", { type: "search", placeholder: options.placeholder, "aria-label": options.placeholder, oninput: () => { needle = search.value.toLowerCase(); limit = options.limit; draw(); } });
	const more = el("button", { class: "more", onclick: () => { limit += 10 * options.limit; draw(); } }, "show more");
	const heads = columns.map((column, at) => el("th", { class: `${column.number ? "num" : column.draw ? "draw" : ""} ${column.less ? "less" : ""}` },
		column.value ? el("button", { onclick: () => { if (order === at) down = !down; else { order = at; down = !!column.number; } draw(); } }, column.title) : column.title));
	const made = el("div", {}, rows.length > 8 ? el("div", { class: "bar" }, search, count) : null,
		el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), el("p", {}, more));
	function one(row) {
		const cells = columns.map((column) => el("td", { class: `${column.number ? "num" : column.draw ? "draw" : "name"} ${column.less ? "less" : ""}` }, column.cell(row)));
		const line = el("tr", {}, cells);
		if (!options.detail) return [line];
		const button = el("button", { class: "row", "aria-expanded": opened.has(row), onclick: () => toggle(row) }, ...cells[0].childNodes);
		cells[0].append(button);
		if (!opened.has(row)) return [line];
		line.classList.add("open");
		return [line, el("tr", { class: "detail" }, el("td", { colspan: columns.length }, el("div", {}, options.detail(row))))];
	}
	function toggle(row) {
		if (!opened.delete(row)) opened.add(row);
		const at = found.indexOf(row);
		draw();
		const button = body.querySelectorAll("button.row")[at];
		if (button) button.focus();
	}
	let found = [];
	function draw() {
		found = needle ? wanted.filter((row) => words(row).toLowerCase().includes(needle)) : [...wanted];
		const value = columns[order].value;
		found.sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
		count.textContent = needle || wanted !== rows ? `${number(found.length)} of ${number(rows.length)}` : number(rows.length);
		heads.forEach((head, at) => { if (at === order) head.setAttribute("aria-sort", down ? "descending" : "ascending"); else head.removeAttribute("aria-sort"); });
		body.replaceChildren(...found.slice(0, limit).flatMap(one));
		more.hidden = found.length <= limit;
		more.parentNode.hidden = more.hidden;
	}
	draw();
	return { made, search, draw, only(some) { wanted = some; draw(); }, open(row) { needle = search.value = ""; opened.add(row); if (found.indexOf(row) >= limit || !found.includes(row)) limit = rows.length; draw(); } };
}

function who() {
	for (const table of D.tables) {
		const kind = D.kinds[table.kind], unit = kind.unit;
		const title = table.owned ? `${kind.many} by ${D.by || "owner"}` : `${kind.many}, row by row`;
		const figure = (at, name, less) => ({ title: name, number: true, less, value: (row) => row.total[at], cell: (row) => (row.total[0] ? shown(unit, row.total[at]) : "") });
		const columns = [
			{ title: table.owned ? D.by || "owner" : "row", value: (row) => row.name, cell: (row) => row.name },
			...(table.rows.some((row) => row.op) ? [{ title: "operation", value: (row) => row.op, cell: (row) => row.op }] : []),
			{ title: "count", number: true, value: (row) => row.total[0], cell: (row) => number(row.total[0]) },
			...(kind.sized ? [{ title: "bytes", number: true, less: true, value: (row) => row.bytes, cell: (row) => size(row.bytes) }] : []),
			figure(2, "mean", true), figure(3, "p50", true), figure(5, "p99"), figure(7, "max", true),
			{ title: table.device ? "device" : "share", number: true, value: (row) => row.share, cell: (row) => percent(row.share) },
			{ title: "", draw: true, cell: (row) => (row.stages.some(([name]) => names.includes(name)) && !table.owned
				? strip(row.stages.filter(([name]) => names.includes(name)), row.total[1])
				: el("span", { class: "share", style: { width: `${100 * Math.min(row.share, 1)}%` } })) },
		];
		const order = columns.findIndex((column) => column.title === (table.device ? "device" : "share"));
		const made = grid(table.rows, columns, (row) => `${row.name} ${row.op}`, { order, limit: 25, placeholder: "search rows" });
		section(title[0].toUpperCase() + title.slice(1), table.left ? `The ${number(table.rows.length)} with the most time; ${number(table.left)} more are not in this file.`
			: table.device ? "device: the share of the device's time that it had." : null, made.made).classList.add("long");
	}
	if (D.neighbours.length) {
		const all = new Map();
		for (const one of D.neighbours) all.set(one.dev, (all.get(one.dev) || 0) + one.device);
		const devices = D.neighbours.some((one) => one.dev);
		const columns = [
			{ title: "who", value: (row) => row.name, cell: (row) => row.name },
			...(devices ? [{ title: "device", value: (row) => row.dev, cell: (row) => row.dev }] : []),
			{ title: "had of it", number: true, value: (row) => row.device, cell: (row) => percent(row.device / (all.get(row.dev) || 1)) },
			{ title: "bytes", number: true, less: true, value: (row) => row.bytes, cell: (row) => size(row.bytes) },
			{ title: "waits", number: true, value: (row) => row.waits, cell: (row) => number(row.waits) },
			{ title: "mean wait", number: true, value: (row) => (row.waits ? row.waited / row.waits : 0), cell: (row) => (row.waits ? duration(row.waited / row.waits) : "") },
			{ title: "meanwhile the device had", cell: (row) => row.met.map(([name, share]) => `${name} ${(100 * share).toFixed(0)}%`).join(", ") },
		];
		section("Neighbours", "Who had the device, and who had it while others waited.",
			grid(D.neighbours, columns, (row) => row.name, { order: devices ? 2 : 1, limit: 25, placeholder: "search neighbours" }).made).classList.add("long");
	}
}

// --- The slowest -----------------------------------------------------------------------------------------------------

// From when on it was in each stage, and how long: stretches where they are known, else the sums end to end.
function spansOf(one) {
	let at = 0;
	return one.spans || one.stages.map(([name, ns]) => {
		at += ns;
		return [name, at - ns, ns];
	});
}
function fall(one) {
	const total = one.total || 1;
	const spans = spansOf(one);
	return el("div", { class: "fall" }, one.stages.map(([name, ns]) => {
		const mine = spans.filter(([stage]) => stage === name);
		return [el("span", {}, el("span", { class: "swatch", style: { background: colour(name) } }), name),
			el("span", { class: "lane" }, mine.map(([, left, took]) => el("i", { style: { left: `${(100 * left) / total}%`, width: `${(100 * took) / total}%`, background: colour(name) } }))),
			el("span", { class: "mono" }, `${duration(ns)} ${percent(ns / total)}`)];
	}));
}
function slowest() {
	const { rows, seen, kept } = D.events;
	if (!rows.length) {
		if (D.kinds.some((kind) => kind.metrics.filter((one) => one.is === "stage").length > 2))
			section("The slowest", null, el("p", { class: "dim" }, "No events were recorded: --slow 5ms, where a command has it, records them."));
		return;
	}
	const columns = [
		{ title: "when", value: (row) => row.end, cell: (row) => row.clock.slice(0, 12) },
		{ title: "what", value: (row) => row.what, cell: (row) => (row.failed ? `${row.what}, failed (${row.failed})` : row.what) },
		{ title: "who", less: true, value: (row) => row.who, cell: (row) => row.who },
		...(rows.some((row) => row.where) ? [{ title: "where", less: true, value: (row) => row.where, cell: (row) => row.where }] : []),
		{ title: "took", number: true, value: (row) => row.total, cell: (row) => duration(row.total) },
		...(rows.some((row) => row.stages.length > 1) ? [{ title: "stages", draw: true, less: true, cell: (row) => strip(spansOf(row).map(([name, , ns]) => [name, ns]), row.total) }] : []),
	];
	const order = columns.findIndex((column) => column.title === "took");
	const made = grid(rows, columns, (row) => `${row.what} ${row.who} ${row.where} ${row.failed} ${row.story.join(" ")}`, {
		order, limit: 25, placeholder: "search, with the key /",
		detail: (row) => [row.stages.length > 1 ? fall(row) : null, el("pre", {}, row.story.join("\n"))],
	});
	made.search.id = "search";
	const about = `${number(seen)} were told one by one` + (seen > kept ? `; the ${number(kept)} slowest of them are in this file.` : ".")
		+ (rows.every((row) => row.timed) ? ""
			: " Where the story says so, stages stand in the order of the path, not in that of time: only their sums are known. wptrace io --segments keeps both.");
	const part = section("The slowest", about, made.made);
	part.classList.add("long");
	part.id = "slowest";
	document.addEventListener("keydown", (event) => {
		if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); made.search.focus(); }
	});
	drawn.push(() => {
		made.only(state.range ? rows.filter((row) => row.end >= state.range[0] && row.end <= state.range[1]) : rows);
		if (state.open) {
			made.open(state.open);
			state.open = null;
			const open = part.querySelector("tr.open");
			if (open) { open.scrollIntoView({ block: "center" }); open.querySelector("button").focus(); }
		}
	});
}

// --- Stacks ----------------------------------------------------------------------------------------------------------

function flames() {
	if (!D.stacks) return;
	const TALL = 18, LETTER = 6.7;
	const weights = { time: 1, count: 2, bytes: 3 };
	let by = "time", needle = "", root, zoomed;
	function build() {
		root = { name: "all", value: 0, kids: new Map(), up: null };
		for (const row of D.stacks.rows) {
			const value = row[weights[by]];
			let node = root;
			root.value += value;
			for (const name of row[0]) {
				if (!node.kids.has(name)) node.kids.set(name, { name, value: 0, kids: new Map(), up: node });
				node = node.kids.get(name);
				node.value += value;
			}
		}
		zoomed = root;
	}
	const chart = svg("svg", { class: "flame", id: "flame", role: "tree", "aria-label": "Flame graph" });
	const told = el("output", { id: "flamed", "aria-live": "polite" });
	const pick = el("select", { id: "weight", onchange: () => { by = pick.value; build(); draw(); } }, Object.keys(weights).map((name) => el("option", { value: name }, name)));
	const search = el("input", { type: "search", id: "frame", placeholder: "search functions", "aria-label": "search functions", oninput: () => { needle = search.value.toLowerCase(); draw(); } });
	const reset = el("button", { onclick: () => { zoomed = root; draw(); } }, "all stacks");
	section("Flame graph", "The outermost function is at the top, and the wider a field, the more of it was started there. Click, or Enter, zooms; arrows walk; Escape shows all."
		+ (D.stacks.left ? ` The ${number(D.stacks.rows.length)} stacks with the most time; ${number(D.stacks.left)} more are not in this file.` : ""),
		el("div", { class: "bar" }, el("label", { for: "weight" }, "by"), pick, search, reset), el("figure", {}, chart), told);
	const value = (node) => (by === "time" ? duration(node.value) : by === "bytes" ? size(node.value) : number(node.value));
	const say = (node) => { told.textContent = `${node.name}: ${value(node)}, ${percent(node.value / (root.value || 1))} of all`; };
	const hash = (name) => { let sum = 0; for (const char of name) sum = (sum * 31 + char.codePointAt(0)) % 9973; return sum % 5; };
	let shownNodes = new Map();
	function draw(focus) {
		const wide = Math.max(chart.clientWidth || chart.parentNode.clientWidth, 280);
		const boxes = [], chain = [];
		for (let node = zoomed.up; node; node = node.up) chain.unshift(node);
		chain.forEach((node, depth) => boxes.push([node, 0, wide, depth, true]));
		let deepest = 0, left = 0;
		const lay = (node, x, width, depth) => {
			deepest = Math.max(deepest, depth);
			boxes.push([node, x, width, depth, false]);
			let at = x;
			for (const kid of [...node.kids.values()].sort((a, b) => b.value - a.value)) {
				const part = (width * kid.value) / (node.value || 1);
				if (part >= 0.7) lay(kid, at, part, depth + 1); else left++;
				at += part;
			}
		};
		lay(zoomed, 0, wide, chain.length);
		chart.setAttribute("viewBox", `0 0 ${wide} ${(deepest + 1) * TALL}`);
		chart.setAttribute("height", (deepest + 1) * TALL);
		reset.disabled = zoomed === root;
		shownNodes = new Map();
		let matched = 0;
		const hit = (node) => needle && node.name.toLowerCase().includes(needle);
		const covered = (node) => { for (let up = node.up; up; up = up.up) if (hit(up)) return true; return false; };
		chart.replaceChildren(...boxes.map(([node, x, width, depth, up]) => {
			if (hit(node) && !covered(node)) matched += node.value;
			const room = Math.floor((width - 6) / LETTER);
			const text = room < 3 ? "" : node.name.length <= room ? node.name : `${node.name.slice(0, room - 1)}…`;
			const made = svg("g", {
				class: `${up ? "up" : ""} ${hit(node) ? "hit" : ""}`, tabindex: node === (focus || zoomed) ? 0 : -1, role: "treeitem",
				"aria-label": `${node.name}, ${value(node)}, ${percent(node.value / (root.value || 1))}`,
				onclick: () => { zoomed = node; draw(node); }, onfocus: () => say(node), onpointerenter: () => say(node),
				onkeydown: (event) => walk(event, node),
			}, svg("title", {}, `${node.name}: ${value(node)}, ${percent(node.value / (root.value || 1))}`),
				svg("rect", { x: x.toFixed(2), y: depth * TALL, width: Math.max(width, 0.5).toFixed(2), height: TALL - 1, rx: 2, style: { fill: `var(--f${hash(node.name)})` } }),
				text ? svg("text", { x: (x + 4).toFixed(2), y: depth * TALL + 12.5 }, text) : null);
			shownNodes.set(node, made);
			return made;
		}));
		if (focus && shownNodes.has(focus)) shownNodes.get(focus).focus();
		else told.textContent = needle ? `${percent(matched / (zoomed.value || 1))} of the ${by} match` : left ? `${number(left)} fields are too narrow to be drawn` : "";
	}
	function walk(event, node) {
		const kids = (of) => [...of.kids.values()].sort((a, b) => b.value - a.value).filter((one) => shownNodes.has(one));
		const beside = node.up ? kids(node.up) : [node], at = beside.indexOf(node);
		const to = { ArrowUp: node.up, ArrowDown: kids(node)[0], ArrowLeft: beside[at - 1], ArrowRight: beside[at + 1] };
		if (event.key === "Enter" || event.key === " ") { zoomed = node; draw(node); }
		else if (event.key === "Escape") { zoomed = root; draw(root); }
		else if (event.key in to) { const found = to[event.key]; if (found && shownNodes.has(found)) shownNodes.get(found).focus(); }
		else return;
		event.preventDefault();
	}
	build();
	redrawn(chart, () => draw());
}

// --- What was lost, and how it was measured --------------------------------------------------------------------------

function measured() {
	const books = D.books.map(([name, started, finished, flight, lost, failed]) =>
		el("li", {}, `${name}: ${number(started)} started = ${number(finished)} finished + ${number(flight)} in flight + ${number(lost)} lost`, failed ? `; ${number(failed)} failed` : ""));
	section("What was lost", null, D.losses.length ? el("ul", {}, D.losses.map((line) => el("li", {}, line))) : el("p", {}, "Nothing."),
		el("ul", { class: "dim" }, books), D.stuck.length ? [el("h3", {}, "In flight, when it was last looked for"), el("pre", {}, D.stuck.join("\n"))] : null);
	const terms = [["command", D.command || `wptrace ${D.flow}`], ["version", D.version], ["host", D.host], ["kernel", D.kernel], ["from", `${D.begin} ${D.zone}`], ["to", `${D.end} ${D.zone}`],
		...D.filters, ["cost", D.cost.replace(/^own cost: /, "")]];
	section("How it was measured", null, el("dl", {}, terms.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
		D.notes.length ? el("ul", {}, D.notes.map((note) => el("li", {}, note))) : null,
		D.budget.length ? el("ul", {}, D.budget.map((line) => el("li", {}, line))) : null,
		D.sources.length ? el("details", {}, el("summary", {}, "hooks"), el("dl", {}, D.sources.map(([stage, how]) => [el("dt", {}, stage), el("dd", { class: "mono" }, how || "not seen on this kernel")]))) : null);
	section("As text", null, el("details", { class: "noprint" }, el("summary", {}, "as the terminal shows it"), el("pre", { id: "text" }, D.text)));
	main.append(el("footer", {}, `wptrace ${D.version}. Percentiles are within 6.25 %; counts, sums and largest values are exact, but in a range that was chosen: there the largest is the edge of its bucket.`));
}

top();
incident();
heat();
stages();
rates();
map();
who();
slowest();
flames();
measured();
look({});
})();
