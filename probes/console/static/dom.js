// Makes elements. Everything that a program or an operator wrote becomes text, never markup.

// el('td', {class: 'number'}, 'text', child) makes an element. A property that begins with "on" is a listener.
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

const svgSpace = 'http://www.w3.org/2000/svg';

// svg makes an element of a drawing.
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(svgSpace, tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null));
  return node;
}

// table makes a table with a heading for each column: [title, class]. A screen reader says its name.
export function table(name, columns, rows) {
  return el('div', {class: 'scroll'}, el('table', {'aria-label': name},
    el('thead', {}, el('tr', {}, columns.map(([title, css]) => el('th', {scope: 'col', class: css}, title)))),
    el('tbody', {}, rows)));
}

// facts makes a list of terms and what they are; a term without a value is left out.
export function facts(pairs) {
  return el('dl', {class: 'facts'}, pairs.filter(([, value]) => value != null && value !== '').map(
    ([term, value]) => [el('dt', {}, term), el('dd', {}, value)]));
}

export function state(name) {
  return el('span', {class: 'state ' + name}, name);
}

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at++; }
  return (at === 0 || n >= 100 ? n.toFixed(0) : n.toFixed(1)) + ' ' + units[at];
}

export function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return Math.round(s * 1000) + 'ms';
  if (s < 60) return Math.floor(s) + 's';
  if (s < 3600) return Math.floor(s / 60) + 'm' + Math.floor(s % 60) + 's';
  if (s < 86400) return Math.floor(s / 3600) + 'h' + Math.floor(s % 3600 / 60) + 'm';
  return Math.floor(s / 86400) + 'd' + Math.floor(s % 86400 / 3600) + 'h';
}
