// The page: asks for journals, and shows what they say. Texts reach the document as text only.
import { h, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import htm from "htm";

const html = htm.bind(h);
const EVERY_MS = 2000;
const TABLE_ROWS = 60;

const number = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });
const share = (value) => (value === null || value === undefined ? "–" : `${number(100 * value, 2)} %`);
const two = (value) => String(value).padStart(2, "0");
const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;

// A time of this machine, as sentences have it; with its day where that is not today.
function clock(ms) {
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return day(at) === day(new Date()) ? time : `${day(at)} ${time}`;
}

// Times below a chart: as short as their distance allows, the day where it changes.
function ticks(_, times, axis, space, apart_s) {
  return times.map((time, i) => {
    const at = new Date(1000 * time);
    const text = clock(1000 * time).slice(-8, apart_s < 60 ? undefined : -3);
    const other = i ? day(new Date(1000 * times[i - 1])) !== day(at) : day(at) !== day(new Date());
    return apart_s >= 86400 ? day(at) : other ? `${text}\n${day(at)}` : text;
  });
}

async function fetchJson(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

// Takes the token of commands out of the address, where others would see it, and keeps it for this tab.
function takeToken() {
  const given = /^#token=([\w-]+)/.exec(location.hash);
  if (given) {
    sessionStorage.setItem("token", given[1]);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token") || "";
}
const TOKEN = takeToken();
// the address of a server that was started again, pasted into a tab that is open already
addEventListener("hashchange", () => { if (location.hash.startsWith("#token=")) location.reload(); });

async function sendCommand(id, command) {
  const answer = await fetch(`/api/control/${id}`, {
    method: "POST", body: JSON.stringify(command),
    headers: { "Content-Type": "application/json", "X-Headgate-Token": TOKEN },
  });
  const told = await answer.json();
  if (!answer.ok || told.error) throw new Error(told.error);
  return told;
}

// Asks again and again while the tab is seen; keeps the last answer when one fails.
function useAnswer(path) {
  const [state, setState] = useState({ path, answer: null, error: "" });
  useEffect(() => {
    let alive = true;
    let timer;
    async function ask() {
      if (!document.hidden) {
        try {
          const answer = await fetchJson(path);
          if (alive) setState({ path, answer, error: "" });
        } catch (error) {
          if (alive) setState((old) => ({ ...old, error: String(error.message || error) }));
        }
      }
      if (alive) timer = setTimeout(ask, EVERY_MS);
    }
    ask();
    return () => { alive = false; clearTimeout(timer); };
  }, [path]);
  return state.path === path ? state : { path, answer: null, error: "" };
}

function useHash() {
  const [hash, setHash] = useState(location.hash.slice(1));
  useEffect(() => {
    const changed = () => setHash(location.hash.slice(1));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return hash;
}

// A cell without a text would be read out as nothing.
const filled = (cell) => (cell === "" || cell === null || cell === undefined ? "–" : cell);

function Table({ columns, rows, caption }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table><caption class="quiet">${caption}</caption>
      <thead><tr>${columns.map((c) => html`<th scope="col" class=${c.number ? "number" : ""}>${c.title}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${columns.map((c) =>
        html`<td class=${c.number ? "number" : ""}>${filled(c.show(row))}</td>`)}</tr>`)}</tbody>
    </table></div>`;
}

// Has the legend show the newest values while nobody points at a chart.
function newest(chart) {
  const last = chart.data[0].length - 1;
  if (last >= 0 && (chart.cursor.idx === null || chart.cursor.idx === undefined)) chart.setLegend({ idx: last }, false);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Distances of lines in a chart of what is counted: there is no half a slot.
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

// A chart by uPlot, and the same numbers as a table behind a button.
function Chart({ title, unit, curves, names }) {
  const place = useRef(null);
  const plot = useRef(null);
  const told = (value) => (unit === "share" ? share(value) : `${number(value, 1)}${unit === "slots" ? "" : ` ${unit}`}`);
  const data = [curves.at_s, ...names.map(([key]) => curves[key])];
  const sentence = `${title}: ` + names.map(([key, label]) => {
    const known = curves[key].filter((v) => v !== null);
    return known.length
      ? `${label} now ${told(known[known.length - 1])}, at most ${told(known.reduce((a, b) => Math.max(a, b)))}`
      : `${label} not known`;
  }).join("; ");

  useEffect(() => {
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const options = {
      width: place.current.clientWidth || 400, height: 200,
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.05] } },
      axes: [{ ...axis, space: 110, values: ticks }, { ...axis, size: 60, values: unit === "share" ? (_, shares) => shares.map(share) : undefined,
        incrs: unit === "slots" || unit === "records" ? WHOLE : undefined }],
      series: [{ label: "time", value: (_, at) => (at === null || at === undefined ? "–" : clock(1000 * at)) }, ...names.map(([, label, dash], i) => ({
        label, stroke: colour(`--curve-${1 + (i % 5)}`), width: 1.5, dash: dash ? [6, 4] : undefined, spanGaps: true,
        value: (_, v) => (v === null || v === undefined ? "–" : told(v)),
      }))],
      hooks: { setData: [newest], setCursor: [newest] },
    };
    plot.current = new uPlot(options, data, place.current);
    const watcher = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: 200 }));
    watcher.observe(place.current);
    return () => { watcher.disconnect(); plot.current.destroy(); };
  }, []);
  useEffect(() => { plot.current?.setData(data); });

  const step = Math.max(1, Math.ceil(curves.at_s.length / TABLE_ROWS));
  const rows = curves.at_s.map((_, i) => i).filter((i) => (curves.at_s.length - 1 - i) % step === 0).reverse();
  return html`<section class="card"><h3>${title} <span class="quiet">(${unit})</span></h3>
    <figure role="img" aria-label=${sentence}><div ref=${place}></div></figure>
    <details><summary>${title} as a table</summary>
      <${Table} caption=${`${title} (${unit}), newest first`} rows=${rows}
        columns=${[{ title: "time", show: (i) => clock(1000 * curves.at_s[i]) },
          ...names.map(([key, label]) => ({ title: label, number: true, show: (i) => (unit === "share" ? share(curves[key][i]) : number(curves[key][i], 2)) }))]} />
    </details></section>`;
}

function Heat({ heat }) {
  const canvas = useRef(null);
  const most = Math.max(1, ...heat.rows.map((r) => r.counts.reduce((a, b) => Math.max(a, b), 0)));
  const columns = Math.max(1, ...heat.rows.map((r) => r.counts.length));
  useEffect(() => {
    const pen = canvas.current.getContext("2d");
    canvas.current.width = columns;
    canvas.current.height = Math.max(1, heat.rows.length);
    heat.rows.forEach((row, y) => row.counts.forEach((count, x) => {
      pen.globalAlpha = Math.sqrt(count / most);
      pen.fillStyle = colour("--curve-2");
      pen.fillRect(x, y, 1, 1);
    }));
  });
  const total = heat.rows.reduce((sum, row) => sum + row.records, 0);
  const first = heat.rows[0];
  const sentence = first
    ? `Records by key group and time: the hottest is group ${first.group} of ${first.operator} with ${share(first.records / total)} of the shown`
    : "No record was served yet";
  return html`<section class="card"><h3>Who is hot <span class="quiet">(key groups, hottest on top; time to the right, a column is ${number(heat.column_ms / 1000)} s)</span></h3>
    <figure role="img" aria-label=${sentence}><canvas class="heat" ref=${canvas}></canvas></figure>
    <p class="quiet">${sentence}. ${heat.groups > heat.rows.length ? `${heat.rows.length} of ${heat.groups} key groups are shown.` : ""}</p>
    <details><summary>Key groups as a table</summary>
      <${Table} caption="Key groups, hottest first" rows=${heat.rows} columns=${[
        { title: "operator", show: (r) => r.operator }, { title: "key group", number: true, show: (r) => r.group },
        { title: "records", number: true, show: (r) => number(r.records) }, { title: "share", number: true, show: (r) => share(r.records / total) },
        { title: `in the last ${number(heat.column_ms / 1000)} s`, number: true, show: (r) => number(r.counts[r.counts.length - 1]) }]} />
    </details></section>`;
}

// Rows of the diagnosis that somebody on call reads first.
const STRONG = ["late by", "limit", "do"];

// A command of the diagnosis as a draft of the form below; null where it is none that the form has.
function draftOf(text, place) {
  const scale = `headgate scale ${place} `;
  if (text === `headgate thaw ${place}`) return { act: "thaw" };
  return text.startsWith(scale) ? { act: "scale", slots: String(parseInt(text.slice(scale.length), 10)) } : null;
}

// A button that fills the form below in; nothing is sent before a reason is typed there.
function FillIn({ offer, draft, text }) {
  return offer && draft ? html` <button type="button" onClick=${() => offer(draft)}>${text}</button>` : null;
}

function Verdict({ told, offer }) {
  const { slo } = told.diagnosis;
  const missed = slo.ended_in_time ? "no results" : "missed";
  const word = slo.met === true ? "met" : slo.met === false ? missed : slo.texts.length ? "not known yet" : "none is set";
  const budget = slo.success !== null && slo.wanted !== null && slo.wanted < 1 ? (1 - slo.success) / (1 - slo.wanted) : null;
  const worst = told.slo?.success_worst;
  const since = slo.since_ms === null ? "" : ` since ${clock(slo.since_ms)}`;
  const rows = [
    ...told.rows.map(([label, text], i) => [i && told.rows[i - 1][0] === label ? "" : label, text, STRONG.includes(label) ? "strong" : ""]),
    ["error budget", budget === null ? "" : `${budget > 1 ? `used up ${number(budget, 1)} times` : `${share(budget)} of it used`} since the start${worst === undefined || worst === null ? "" : `; the worst key group met the SLO in ${share(worst)} of its windows`}`],
  ].filter(([, text]) => text);
  return html`<section class="card" aria-labelledby="verdict">
    <h2 id="verdict">Is the SLO met?</h2>
    <p class=${`verdict ${slo.met === true ? "good" : slo.met === false ? "bad" : ""}`}>${slo.texts.join("; ") || "SLO"}: ${word}${since}</p>
    <dl>${rows.map(([label, text, how]) => html`<dt>${label}</dt><dd class=${how || ""}>${text}<${FillIn}
      offer=${offer} draft=${draftOf(text, told.diagnosis.checkpoint)} text=${/--reason "undo"$/.test(text) ? "Undo" : "Fill in"} /></dd>`)}</dl></section>`;
}

const ACTS = {
  scale: "scale: change the number of slots", freeze: "freeze: forbid changes of slots", thaw: "thaw: allow changes of slots again",
  rollback: "rollback: go back to the slots of an earlier epoch", stop: "stop: end the query",
};
const FIELDS = { scale: ["slots", "operator", "hold"], freeze: ["for"], rollback: ["epoch"], thaw: [], stop: [] };
const EMPTY = { act: "scale", slots: "", operator: "", hold: "", for: "", epoch: "", reason: "" };

// Commands to the query, as of the command line; there only with headgate ui --control.
function Control({ id, told, draft, setDraft }) {
  const [state, setState] = useState({ text: "", error: "", asks: false });
  const sending = useRef(false); // a second click comes before the button is drawn as disabled
  async function send(event) {
    event.preventDefault();
    if (sending.current) return;
    sending.current = true;
    setState({ text: `${draft.act}: requested`, error: "", asks: true });
    const typed = FIELDS[draft.act].filter((name) => draft[name] !== "");
    const fields = typed.map((name) => [name, name === "slots" || name === "epoch" ? Number(draft[name]) : draft[name]]);
    try {
      const answer = await sendCommand(id, { act: draft.act, reason: draft.reason, ...Object.fromEntries(fields) });
      setState({ text: `${draft.act}: ${answer.state}${answer.text ? `, ${answer.text}` : ""}`, error: "", asks: false });
      setDraft((old) => (old === draft ? { ...EMPTY, act: draft.act } : old)); // another may be typed by now
    } catch (error) {
      setState({ text: "", error: String(error.message || error), asks: false });
    }
    sending.current = false;
  }
  const set = (name) => (event) => setDraft((old) => ({ ...old, [name]: event.target.value }));
  const shown = FIELDS[draft.act];
  const field = (name, label, more) => shown.includes(name) && html`<label key=${name}>${label} <input value=${draft[name]} onInput=${set(name)} ...${more} /></label>`;
  const whyNot = told.error || (TOKEN ? "" : "Commands need the address that headgate ui --control printed when it started: it has a token.");
  return html`<section class="card" aria-labelledby="control"><h3 id="control">Commands</h3>
    ${whyNot ? html`<p class="bad">${whyNot}</p>` : html`<form onSubmit=${send}>
      <label>command <select value=${draft.act} onChange=${set("act")}>${Object.entries(ACTS).map(([act, text]) => html`<option value=${act}>${text}</option>`)}</select></label>
      ${field("slots", "slots", { type: "number", min: 1, required: true })}
      ${shown.includes("operator") && told.operators.length > 1 && html`<label>operator <select value=${draft.operator} onChange=${set("operator")}>
        <option value="">all</option>${told.operators.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}
      ${field("hold", "hold for", { placeholder: "10min; empty: not at all", size: 22 })}
      ${field("for", "freeze for", { placeholder: "2h; empty: until thawed", size: 22 })}
      ${field("epoch", "epoch", { type: "number", min: 0, required: true })}
      <label>reason <input id="reason" value=${draft.reason} onInput=${set("reason")} required maxlength="500" size="34" placeholder="a ticket, a sentence: for the journal" /></label>
      <button disabled=${state.asks}>${state.asks ? "Requested" : "Send"}</button></form>`}
    <div role="status">${state.text && html`<p>${state.text}</p>`}${state.error && html`<p class="bad">${state.error}</p>`}</div>
    ${told.sent.length > 0 && html`<${Table} caption="Sent from this page, newest first" rows=${told.sent} columns=${[
      { title: "time", show: (c) => clock(c.at_ms) }, { title: "command", show: (c) => c.what },
      { title: "state", show: (c) => html`<span class=${c.state === "refused" ? "bad" : c.state === "in force" ? "good" : ""}>${c.state}</span>` },
      { title: "reason", show: (c) => c.reason }, { title: "answer", show: (c) => c.text }]} />`}</section>`;
}

const bytes = (value) => (value < 1024 ? `${value} B` : value < 1048576 ? `${number(value / 1024)} KB` : `${number(value / 1048576, 1)} MB`);

// What a checkpoint holds; read on request, since every file's name and the newest manifests are looked at.
function Checkpoint({ id }) {
  const [state, setState] = useState({ answer: null, error: "", asks: false });
  async function ask() {
    setState((old) => ({ ...old, asks: true }));
    try {
      setState({ answer: await fetchJson(`/api/checkpoint/${id}`), error: "", asks: false });
    } catch (error) {
      setState({ answer: null, error: String(error.message || error), asks: false });
    }
  }
  const { answer, error, asks } = state;
  const told = answer && !answer.error ? answer : null;
  return html`<section class="card"><h3>Checkpoint</h3>
    <p><button type="button" onClick=${ask} disabled=${asks}>${told ? "Look again" : "Look into the checkpoint"}</button></p>
    <div role="status">
    ${(error || answer?.error) && html`<p class="bad">${error || answer.error}</p>`}
    ${told && html`<dl>
      <dt>sound</dt><dd class=${told.sound ? "good" : "bad"}>${told.sound ? "yes, as far as was looked" : told.problems.join("; ")}</dd>
      <dt>newest step</dt><dd>${told.step === undefined ? "none" : `${number(told.step)}, epoch ${told.epoch}`}</dd>
      <dt>a restart would</dt><dd>${told.restart.does}; read ${number(told.restart.rows)} rows, ${bytes(told.restart.bytes)}, in ${number(told.restart.sections)} sections of ${number(told.restart.groups)} key groups</dd>
      <dt>all checksums</dt><dd><code>headgate inspect ${told.checkpoint} --verify</code></dd></dl>
      <${Table} caption="Operators" rows=${Object.entries(told.operators || {})} columns=${[
        { title: "operator", show: ([name]) => name }, { title: "slots", number: true, show: ([, o]) => number(o.slots) },
        { title: "key groups with state", number: true, show: ([, o]) => number(o.groups_with_state) },
        { title: "entries", number: true, show: ([, o]) => number(o.entries) }, { title: "rows that wait", number: true, show: ([, o]) => number(o.backlog_rows) }]} />
      <${Table} caption="Files" rows=${Object.keys(told.files)} columns=${[
        { title: "directory", show: (name) => name }, { title: "files", number: true, show: (name) => number(told.files[name]) },
        { title: "size", number: true, show: (name) => bytes(told.bytes[name]) }]} />`}</div></section>`;
}

// The recorded run under another SLO, policy or number of slots, beside how wrong the model is about it.
function WhatIf({ id, slo, place }) {
  const [asked, setAsked] = useState({ slo, policy: "", slots_max: "" });
  const [state, setState] = useState({ answer: null, error: "", asks: false });
  async function ask(event) {
    event.preventDefault();
    setState({ answer: null, error: "", asks: true });
    const words = new URLSearchParams({ ...asked, slo: asked.slo === slo ? "" : asked.slo });
    try {
      const answer = await fetchJson(`/api/what-if/${id}?${words}`);
      setState({ answer: answer.error ? null : answer, error: answer.error, asks: false });
    } catch (error) {
      setState({ answer: null, error: String(error.message || error), asks: false });
    }
  }
  const set = (key) => (event) => setAsked((old) => ({ ...old, [key]: event.target.value }));
  const { answer, error, asks } = state;
  const runs = answer ? [["as it ran", answer.real], ["the model of that", answer.model], ["what if", answer.what_if]].filter(([, run]) => run) : [];
  return html`<section class="card"><h3>What if</h3>
    <p class="quiet">Simulates the recorded run, which takes a core for some seconds. In a terminal: <code>headgate replay ${place}</code></p>
    <form onSubmit=${ask}>
      <label>SLO <input value=${asked.slo} onInput=${set("slo")} size="28" /></label>
      <label>policy <select value=${asked.policy} onChange=${set("policy")}>
        ${["", "unified", "streamswitch", "threshold", "static"].map((name) => html`<option value=${name}>${name || "as recorded"}</option>`)}</select></label>
      <label>most slots <input type="number" min="1" value=${asked.slots_max} onInput=${set("slots_max")} placeholder="as recorded" /></label>
      <button disabled=${asks}>${asks ? "Simulating" : "Simulate"}</button></form>
    <div role="status">
    ${error && html`<p class="bad">${error}</p>`}
    ${answer && html`<${Table} caption="Runs" rows=${runs} columns=${[
      { title: "run", show: ([name]) => name }, { title: "policy", show: ([, r]) => r.policy }, { title: "SLO", show: ([, r]) => r.slo },
      { title: "windows met", number: true, show: ([, r]) => share(r.success) }, { title: "worst key group", number: true, show: ([, r]) => share(r.success_worst) },
      { title: "slots, mean", number: true, show: ([, r]) => number(r.slots_mean, 2) }, { title: "mean latency, ms", number: true, show: ([, r]) => number(r.latency_mean_ms) },
      { title: "changes", show: ([, r]) => Object.entries(r.changes).map(([kind, n]) => `${n} ${kind}`).join(", ") || "none" }]} />
      <p>The model is wrong about this run by ${answer.error_of_model.success_points === null ? "an unknown number of" : number(answer.error_of_model.success_points, 2)} points of windows met and ${number(answer.error_of_model.slots_percent, 1)} % of slots.</p>`}</div></section>`;
}

function QueryPage({ id }) {
  const { answer: told, error } = useAnswer(`/api/query/${id}`);
  const [draft, setDraft] = useState(EMPTY);
  if (!told) return html`<p class="quiet">${error || "reading the journal"}</p>`;
  const curves = told.curves;
  const place = told.diagnosis.checkpoint;
  const back = told.undo_epoch;
  const offer = told.control && !told.control.error && TOKEN && ((offered) => {
    setDraft({ ...EMPTY, ...offered });
    document.getElementById("reason").focus();
  });
  return html`
    ${error && html`<p class="bad" role="alert">no answer: ${error}</p>`}
    ${told.error && html`<p class="bad" role="alert">${told.error}</p>`}
    <${Verdict} told=${told} offer=${offer} />
    ${told.control && html`<${Control} id=${id} told=${told.control} draft=${draft} setDraft=${setDraft} />`}
    <div class="grid">
      <${Chart} title="Latency" unit="ms" curves=${curves} names=${[["mean_ms", "mean"], ["p99_ms", "p99"], ["bound_ms", "bound", true], ["floor_ms", "floor", true]]} />
      <${Chart} title="Records" unit="per s" curves=${curves} names=${[["arrived", "in"], ["emitted", "out"], ["late", "late"]]} />
      <${Chart} title="Waiting" unit="records" curves=${curves} names=${[["backlog", "in slots"], ["lag", "at the source"]]} />
      <${Chart} title="Slots" unit="slots" curves=${curves} names=${[["slots", "slots"]]} />
      <${Chart} title="Duration of a batch" unit="ms" curves=${curves} names=${[["duration_ms", "batch"]]} />
      <${Chart} title="Windows met" unit="share" curves=${curves} names=${[["met", "met"]]} />
    </div>
    <${Heat} heat=${told.heat} />
    <section class="card"><h3>What changed, and why</h3>
      <p class="quiet">The numbers behind the last decision: <code>headgate why ${place}</code></p>
      ${back !== null && html`<p class="quiet">To undo the last change of slots: <code>headgate rollback ${place} --to-epoch ${back} --reason "undo"</code><${FillIn}
        offer=${offer} draft=${{ act: "rollback", epoch: String(back) }} text="Undo the last change" /></p>`}
      ${told.changes.length ? html`<${Table} caption="Changes, newest first" rows=${told.changes} columns=${[
        { title: "time", show: (c) => clock(c.at_ms) }, { title: "kind", show: (c) => c.kind }, { title: "what", show: (c) => c.text }]} />`
        : html`<p>Nothing has changed.</p>`}</section>
    <section class="card"><h3>Slots, last batches</h3>
      <${Table} caption="Slots of operators that read a source, busiest first" rows=${told.slots} columns=${[
        { title: "operator", show: (s) => s.operator }, { title: "slot", number: true, show: (s) => s.slot },
        { title: "records", number: true, show: (s) => number(s.records) }, { title: "share", number: true, show: (s) => share(s.share) },
        { title: "waiting", number: true, show: (s) => number(s.backlog) }]} /></section>
    <${WhatIf} id=${id} slo=${told.diagnosis.slo.texts[0] || ""} place=${place} />
    <${Checkpoint} id=${id} />`;
}

// The journal of a fleet's job, which lies in a directory of the job's name where the fleet made it.
function ofJob(journals, job) {
  const own = journals.filter((j) => j.kind === "query" && j.place.split("/").includes(job));
  return own.length === 1 ? html`<a href=${`#${own[0].id}`}>${job}</a>` : job;
}

function FleetPage({ id, journals }) {
  const { answer: told, error } = useAnswer(`/api/fleet/${id}`);
  if (!told) return html`<p class="quiet">${error || "reading the journal"}</p>`;
  if (told.error) return html`<p class="bad" role="alert">${told.error}</p>`;
  return html`<section class="card"><h2>Fleet</h2>
    <p class="verdict">utility ${number(told.utility, 2)} of ${number(told.utility_max, 2)}, ${told.slots} of ${told.slots_max} slots</p></section>
    <section class="card whole"><${Table} caption="Jobs" rows=${told.jobs || []} columns=${[
      { title: "job", show: (j) => ofJob(journals, j.job) }, { title: "state", show: (j) => j.state }, { title: "met", show: (j) => (j.met === null ? "–" : j.met ? "met" : "missed") },
      { title: "utility", number: true, show: (j) => number(j.utility, 2) }, { title: "of", number: true, show: (j) => number(j.of, 2) },
      { title: "slots", number: true, show: (j) => j.slots }, { title: "records/s", number: true, show: (j) => number(j.records_per_s) },
      { title: "why", show: (j) => j.why }]} /></section>
    <section class="card"><${Table} caption="What the fleet did, newest first" rows=${[...(told.rows || [])].reverse()} columns=${[
      { title: "after", number: true, show: (r) => `${number(r.time_s)} s` }, { title: "action", show: (r) => r.action },
      { title: "slots", show: (r) => r.slots }, { title: "why", show: (r) => r.reason }]} /></section>`;
}

// Names of journals by id; those of one name are told apart by the parts of their places that differ.
function labels(journals) {
  const parts = (j) => j.place.split("/");
  return Object.fromEntries(journals.map((journal) => {
    const others = journals.filter((j) => j.name === journal.name && j.id !== journal.id).map(parts);
    const own = parts(journal).filter((part, i) => others.some((other) => other[i] !== part));
    return [journal.id, others.length ? `${journal.name} (${own.join("/")})` : journal.name];
  }));
}

const state = (j) => (j.met === true ? "met" : j.met === false ? "missed" : j.slo ? "not known yet" : "none is set");
const RANK = ["missed", "not known yet", "met", "none is set"];

// All queries, those that miss their SLO first.
function Overview({ journals, names }) {
  const queries = journals.filter((j) => j.kind === "query").sort((a, b) => RANK.indexOf(state(a)) - RANK.indexOf(state(b)));
  const missed = queries.filter((j) => j.met === false).length;
  const judged = queries.filter((j) => j.slo).length;
  return html`<section class="card whole"><h2>Are the SLOs met?</h2>
    <p class=${`verdict ${missed ? "bad" : judged ? "good" : ""}`}>${missed ? `${missed} of ${judged} missed` : judged ? `none of ${judged} is missed` : "no query has an SLO"}</p>
    <${Table} caption="Queries, those that miss their SLO first" rows=${queries} columns=${[
      { title: "query", show: (j) => html`<a href=${`#${j.id}`} title=${j.place}>${names[j.id]}</a>` },
      { title: "SLO", show: (j) => html`<span class=${j.met === true ? "good" : j.met === false ? "bad" : "quiet"}>${state(j)}</span>` },
      { title: "since", show: (j) => (j.since_ms === null ? "–" : clock(j.since_ms)) }, { title: "latency, ms", number: true, show: (j) => number(j.latency_ms) },
      { title: "slots", number: true, show: (j) => number(j.slots) }, { title: "limit", show: (j) => j.limit },
      { title: "bound", show: (j) => j.slo || "–" }, { title: "state", show: (j) => j.health }]} /></section>`;
}

function Page() {
  const { answer, error } = useAnswer("/api/journals");
  const hash = useHash();
  const journals = answer || [];
  const chosen = journals.find((j) => j.id === hash) || (journals.length === 1 ? journals[0] : null);
  const names = labels(journals);
  const fleets = journals.filter((j) => j.kind === "fleet");
  const title = chosen ? names[chosen.id] : "";
  const link = (id, text, here) => html`<li key=${id}><a href=${`#${id}`} aria-current=${here ? "page" : undefined}>${text}</a></li>`;
  useEffect(() => { document.title = title ? `${title} – headgate` : "headgate"; }, [title]);
  return html`
    <header><h1>headgate</h1>
      <nav aria-label="Queries"><ul>
        ${journals.length > 1 && link("", "all queries", !chosen)}
        ${fleets.map((j) => link(j.id, `fleet ${names[j.id]}`, chosen?.id === j.id))}
        ${chosen?.kind === "query" && link(chosen.id, title, true)}</ul></nav></header>
    <main>
      ${error && html`<p class="bad" role="alert">no answer: ${error}</p>`}
      ${!answer && !error && html`<p class="quiet">reading the journals</p>`}
      ${answer && !journals.length && html`<p>There is no journal here yet. A query of headgate writes one into its checkpoint when it starts; this page looks again every two seconds.</p>`}
      ${journals.length > 1 && !chosen && html`<${Overview} journals=${journals} names=${names} />`}
      ${chosen && (chosen.kind === "fleet" ? html`<${FleetPage} key=${chosen.id} id=${chosen.id} journals=${journals} />` : html`<${QueryPage} key=${chosen.id} id=${chosen.id} />`)}
    </main>`;
}

const place = document.getElementById("page");
place.textContent = "";
render(html`<${Page} />`, place);
