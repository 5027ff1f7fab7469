// A view of output that follows: at most keptLines lines are on the page, and a search hides the others.
import {el} from './dom.js';
import {stream} from './box.js';

const keptLines = 2000;

// decode returns the text of a line; what is not UTF-8 comes as base64.
function decode(line) {
  if (line.data) return new TextDecoder('utf-8').decode(Uint8Array.from(atob(line.data), (c) => c.charCodeAt(0)));
  return line.text ?? '';
}

// visible makes control characters readable: a terminal would obey them.
function visible(text) {
  return text.replace(/\x1b\[[0-9;]*m/g, '').replace(/[\x00-\x08\x0b-\x1f\x7f]/g, (c) => '␀'.charCodeAt(0) + c.charCodeAt(0) < 0x2421
    ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : '�');
}

// logView returns {node, close}. names empty is every program.
export function logView(names) {
  const lines = el('div', {class: 'log', role: 'log', tabindex: '0', 'aria-label': 'Output'});
  const search = el('input', {type: 'search', placeholder: 'Search', 'aria-label': 'Search the output'});
  const count = el('span', {class: 'muted', role: 'status'});
  const follow = el('input', {type: 'checkbox', id: 'follow', checked: true});
  const which = el('select', {'aria-label': 'Stream'}, ['both streams', 'stdout', 'stderr'].map((s, i) => el('option', {value: i ? s : ''}, s)));
  const matches = (node) => node.textContent.toLowerCase().includes(search.value.toLowerCase()) && (!which.value || node.dataset.stream === which.value);
  const sift = () => {
    let shown = 0;
    for (const node of lines.children) {
      node.hidden = !matches(node);
      if (!node.hidden) shown++;
    }
    count.textContent = search.value || which.value ? shown + ' lines match' : '';
  };
  search.addEventListener('input', sift);
  which.addEventListener('change', sift);

  let waiting = [];
  const flush = () => {
    const fresh = waiting.splice(0).map((line) => {
      const node = el('div', {class: line.stream, 'data-stream': line.stream},
        el('time', {datetime: line.time}, line.time.slice(11, 23)),
        names.length === 1 ? null : el('span', {class: 'who'}, line.program),
        visible(decode(line)));
      node.hidden = !matches(node);
      return node;
    });
    lines.append(...fresh);
    while (lines.children.length > keptLines) lines.firstChild.remove();
    if (follow.checked) lines.scrollTop = lines.scrollHeight;
  };
  const query = new URLSearchParams([...names.map((n) => ['name', n]), ['follow', 'true'], ['lines', '500']]);
  const close = stream('/v1/logs', query, {message: (line) => {
    if (waiting.length === 0) requestAnimationFrame(flush);
    waiting.push(line);
    if (waiting.length > keptLines) waiting.shift();
  }});
  const node = el('section', {}, el('div', {class: 'bar'}, search, which, el('label', {for: 'follow'}, follow, ' follow'), count), lines);
  return {node, close};
}
