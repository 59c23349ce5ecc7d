"""How a page of stages looks, and what it does when a line is pointed at (inspect/page)."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f3f4f6; --panel: #ffffff; --text: #1d232b; --quiet: #5b6672; --edge: #d5dae0;
  --mark: #ffe9a3; --mark-edge: #b98900; --keyword: #8a2f8f; --name: #0b5fa5; --number: #0a6b3d;
  --string: #8f4a12; --comment: #5f6b76; --type: #0f6674;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --panel: #1c2026; --text: #dde3ea; --quiet: #98a3b0; --edge: #343b45;
    --mark: #4b3f12; --mark-edge: #e0b53c; --keyword: #d79ae0; --name: #83bdf2; --number: #8fd3a7;
    --string: #e3b180; --comment: #93a0ac; --type: #7fd0dc;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; padding: 1rem 1rem 5rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif;
}
h1, h2, h3 { margin: 0; line-height: 1.25; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.2rem; margin: 1.75rem 0 0.6rem; }
h3 { font-size: 0.9rem; padding: 0.5rem 0.75rem; border-bottom: 1px solid var(--edge); }
p { margin: 0.3rem 0; color: var(--quiet); overflow-wrap: anywhere; }
code, .numbers { font: 12px/1.55 ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.stages { display: grid; gap: 0.75rem; grid-template-columns: minmax(0, 1fr); align-items: start; }
.column { display: grid; gap: 0.75rem; min-width: 0; }
section.panel {
  background: var(--panel); border: 1px solid var(--edge); border-radius: 6px; min-width: 0; overflow: hidden;
}
section.panel > p, .panel dl { padding: 0 0.75rem; }
.panel dl { margin: 0.4rem 0; font-size: 0.85rem; color: var(--quiet); }
.panel dt { font-weight: 600; }
.panel dd { margin: 0 0 0.3rem 1rem; }
.code { overflow-x: auto; padding: 0.4rem 0; }
.code ol { list-style: none; margin: 0; padding: 0; min-width: max-content; }
.code li { display: flex; border-left: 3px solid transparent; }
.code code { white-space: pre; padding-right: 0.75rem; min-height: 1.55em; tab-size: 4; }
.wrapped .code ol { min-width: 0; }
.wrapped li code {
  flex: 1; min-width: 0; white-space: pre-wrap; overflow-wrap: anywhere; padding-left: 4ch; text-indent: -4ch;
}
.no {
  flex: none; width: 3.4em; padding-right: 0.9em; text-align: right; color: var(--quiet); user-select: none;
  font: 11px/1.7 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; text-decoration: none;
}
a.no { color: var(--name); text-decoration: underline dotted; }
li.linked { cursor: pointer; }
li.on, li:target { background: var(--mark); border-left-color: var(--mark-edge); }
li.on.declares { background: none; border-left-style: dotted; }
.numbers { overflow-x: auto; padding: 0.4rem 0.75rem; }
.numbers table { border-collapse: collapse; }
.numbers th, .numbers td { padding: 0.1rem 1.4rem 0.1rem 0; text-align: right; white-space: nowrap; }
.numbers th:first-child, .numbers td:first-child { text-align: left; }
.steps { padding: 0.4rem 0.75rem 0; }
.steps dt, .steps dd { overflow-wrap: anywhere; }
.k { color: var(--keyword); } .t { color: var(--type); } .f { color: var(--name); } .m { color: var(--number); }
.s { color: var(--string); } .c { color: var(--comment); font-style: italic; }
#about {
  position: fixed; inset: auto 0 0 0; max-height: 35vh; overflow: auto; padding: 0.5rem 1rem;
  background: var(--panel); border-top: 2px solid var(--mark-edge);
}
#about[hidden] { display: none; }
#about code { overflow-wrap: anywhere; }
#about a { color: inherit; text-decoration-color: var(--mark-edge); }
#about div + div { margin-top: 0.2rem; }
@media (min-width: 800px) {
  .stages { grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
  .wide { grid-column: 1 / -1; }
}
@media (min-width: 1200px) {
  .stages { grid-template-columns: minmax(0, 4fr) minmax(0, 4fr) minmax(0, 6fr); }
  .stages .cuda { position: sticky; top: 0.75rem; }
  .cuda .code { overflow: auto; max-height: calc(100vh - 7.5rem); }
}
@media (min-width: 800px) and (max-width: 1199px) {
  .stages .cuda { grid-column: 1 / -1; }
}
"""

# A line of CUDA names the statements that it is for; a statement names the op's expressions that it is of. What is
# lit are a line, all that it is for, and all lines that are for it; of CUDA also what else is for its statements.
SCRIPT = """
'use strict';
const above = new Map(), below = new Map(), about = document.getElementById('about');
let pinned = null;
for (const line of document.querySelectorAll('li.linked')) {
  const of = (line.dataset.of || '').split(' ').filter(Boolean).map(id => document.getElementById(id));
  above.set(line, of);
  for (const one of of) below.set(one, [...(below.get(one) || []), line]);
}
function reach(from, steps, found) {
  for (const next of steps.get(from) || []) if (!found.has(next)) { found.add(next); reach(next, steps, found); }
  return found;
}
const isCuda = line => line.closest('.cuda') !== null;
function related(line) {
  const found = new Set([line]);
  reach(line, above, found);
  reach(line, below, found);
  if (isCuda(line)) for (const statement of above.get(line)) reach(statement, below, found);
  return found;
}
function link(line, text) {
  const made = document.createElement('a'), row = document.createElement('div'), code = document.createElement('code');
  made.href = '#' + line.id;
  code.textContent = text;
  made.append(code);
  row.append(made);
  return row;
}
function show(line) {
  for (const lit of document.querySelectorAll('li.on')) lit.classList.remove('on');
  about.hidden = line === null;
  if (line === null) return;
  const found = [...related(line)], cuda = found.filter(one => isCuda(one) && !one.classList.contains('declares'));
  for (const one of found) one.classList.add('on');
  const said = new Set(found.filter(one => !isCuda(one) && one.closest('.fused')));
  const rows = [...said].slice(0, 4).map(one => link(one, one.querySelector('code').textContent.trim()));
  if (!isCuda(line) && cuda.length) {
    rows.push(link(cuda[0], cuda.length + (cuda.length === 1 ? ' line' : ' lines') + ' of CUDA'));
  }
  about.replaceChildren(...rows);
  about.hidden = rows.length === 0;
}
const lineOf = event => event.target instanceof Element ? event.target.closest('li.linked') : null;
document.addEventListener('pointerover', event => {
  if (pinned === null && event.pointerType === 'mouse') show(lineOf(event));
});
document.addEventListener('focusin', event => { if (pinned === null && lineOf(event)) show(lineOf(event)); });
document.addEventListener('click', event => {
  if (event.target.closest('#about, a') || !getSelection().isCollapsed) return;
  const line = lineOf(event);
  pinned = line === pinned ? null : line;
  show(pinned);
});
document.addEventListener('keydown', event => { if (event.key === 'Escape') { pinned = null; show(null); } });
"""
