// Drawings: the waterfall of a boot, the graph of needs, plots over time. Each has a title for screen readers.
import {el, svg, span} from './dom.js';

// waterfall draws rows of {name, from, to, bad}, in milliseconds since the beginning.
export function waterfall(title, rows) {
  const left = 190, width = 900, line = 20;
  const end = Math.max(1, ...rows.map((r) => r.to));
  const x = (ms) => left + ms / end * (width - left - 80);
  return svg('svg', {viewBox: `0 0 ${width} ${rows.length * line + 10}`, width, role: 'img', 'aria-label': title},
    svg('title', {}, title),
    rows.map((r, i) => svg('g', {},
      svg('text', {x: 6, y: i * line + 17}, r.name.length > 26 ? r.name.slice(0, 25) + '…' : r.name),
      svg('rect', {class: 'bar' + (r.bad ? ' bad' : ''), x: x(r.from), y: i * line + 5, width: Math.max(2, x(r.to) - x(r.from)), height: line - 6}),
      svg('text', {x: x(r.to) + 5, y: i * line + 17}, span(r.to - r.from)))));
}

// plot draws one line; values are numbers of any scale.
export function plot(title, values, print) {
  const width = 280, height = 70;
  const top = Math.max(...values, 1e-9);
  const points = values.map((v, i) => `${(i / Math.max(1, values.length - 1) * (width - 4) + 2).toFixed(1)},${(height - 4 - v / top * (height - 22)).toFixed(1)}`);
  const label = `${title}: ${print(values.at(-1) ?? 0)}, highest ${print(top)}`;
  return svg('svg', {viewBox: `0 0 ${width} ${height}`, width, role: 'img', 'aria-label': label},
    svg('title', {}, label),
    svg('polyline', {class: 'line', points: points.join(' ')}),
    svg('text', {x: 4, y: 12}, `${title} ${print(values.at(-1) ?? 0)}`));
}

// graph draws programs in columns: each to the right of all that it needs.
export function graph(nodes, edges) {
  const column = new Map();
  const needs = new Map(nodes.map((n) => [n.name, []]));
  for (const e of edges) needs.get(e.to)?.push(e.from);
  // A cycle cannot be: the manifest would have been refused. The bound keeps a wrong answer from hanging the page.
  for (let round = 0; round < nodes.length; round++) {
    let moved = false;
    for (const n of nodes) {
      const at = Math.max(-1, ...needs.get(n.name).map((m) => column.get(m) ?? 0)) + 1;
      if (column.get(n.name) !== at && at <= nodes.length) { column.set(n.name, at); moved = true; }
    }
    if (!moved) break;
  }
  const count = [], place = new Map();
  for (const n of nodes) {
    const c = column.get(n.name) ?? 0;
    count[c] = (count[c] ?? 0) + 1;
    place.set(n.name, {x: 10 + c * 210, y: count[c] * 34 - 24});
  }
  const width = count.length * 210, height = Math.max(0, ...count.filter(Boolean)) * 34 + 12;
  return svg('svg', {viewBox: `0 0 ${width} ${height}`, width, role: 'img', 'aria-label': 'Dependency graph; the table below says the same'},
    edges.filter((e) => place.has(e.from) && place.has(e.to)).map((e) => {
      const a = place.get(e.from), b = place.get(e.to);
      return svg('path', {class: 'edge', d: `M${a.x + 160},${a.y + 12} C${a.x + 190},${a.y + 12} ${b.x - 30},${b.y + 12} ${b.x},${b.y + 12}`});
    }),
    nodes.map((n) => {
      const p = place.get(n.name);
      return svg('a', {href: '#/program/' + encodeURIComponent(n.name)},
        svg('rect', {class: 'node ' + n.state, x: p.x, y: p.y, width: 160, height: 24, rx: 5}),
        svg('text', {x: p.x + 8, y: p.y + 16}, n.name.length > 22 ? n.name.slice(0, 21) + '…' : n.name));
    }));
}

export const figure = (caption, ...drawings) => el('figure', {}, el('figcaption', {}, caption), drawings);
