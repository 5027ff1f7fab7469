// The pages of the console. The address after # says which one is shown.
import {el, table, facts, state, bytes, span} from './dom.js';
import {box, ask, follow, refresh, watch, now, latest} from './box.js';
import {waterfall, plot, graph, figure} from './charts.js';
import {logView} from './logs.js';

const view = document.getElementById('view');
const link = (name) => el('a', {href: '#/program/' + encodeURIComponent(name)}, name);
const percent = (share) => (share * 100).toFixed(share < 0.1 ? 1 : 0) + ' %';
const since = (p) => span(now() - Date.parse(p.since));

// confirm asks before something is changed, and returns whether to go on. more is shown below the question.
function confirm(question, more) {
  const dialog = document.getElementById('ask');
  document.getElementById('ask-text').textContent = question;
  document.getElementById('ask-more').replaceChildren(...(more ? [more] : []));
  dialog.returnValue = 'no';
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), {once: true}));
}

const notice = el('p', {role: 'alert', class: 'error'});

async function act(name, verb, body = {}) {
  notice.textContent = '';
  try {
    const result = await ask('POST', `/v1/programs/${encodeURIComponent(name)}/${verb}`, body);
    notice.textContent = result.results.filter((r) => r.error).map((r) => r.error.detail || r.error.message || r.name + ' failed')
      .concat(result.note ?? []).join('; ');
  } catch (error) {
    notice.textContent = error.message;
  }
  refresh();
}

function buttons(p) {
  if (!box.canChange) return null;
  const button = (verb, ask) => el('button', {type: 'button', 'aria-label': `${verb} ${p.name}`, onclick: async () => {
    if (!ask || await confirm(ask)) act(p.name, verb);
  }}, verb);
  if (!p.pid && p.schedule) return [button('run'), ' ', p.schedule.paused ? button('start') : null];
  return p.pid ? [button('restart', `Restart ${p.name}?`), ' ', button('stop', `Stop ${p.name}?`)] : button('start');
}

function signalForm(p) {
  if (!box.canChange || !p.pid) return null;
  const choice = el('select', {'aria-label': 'Signal'}, ['HUP', 'USR1', 'USR2', 'INT', 'TERM', 'QUIT', 'KILL'].map((s) => el('option', {}, s)));
  return el('span', {}, choice, ' ', el('button', {type: 'button', onclick: async () => {
    if (await confirm(`Send ${choice.value} to ${p.name}?`)) act(p.name, 'signal', {signal: choice.value});
  }}, 'send signal'));
}

// pageRows bounds what one page draws: a box may have ten thousand programs.
const pageRows = 250;

function programsPage() {
  const search = el('input', {type: 'search', placeholder: 'Name, state or reason', 'aria-label': 'Filter programs'});
  const count = el('span', {class: 'muted', role: 'status'});
  const list = el('div');
  const draw = () => {
    const text = search.value.toLowerCase();
    const fitting = [...box.programs.values()].filter((p) => [p.name, p.shown ?? p.state, p.reason ?? ''].join(' ').toLowerCase().includes(text));
    const fatal = fitting.filter((p) => p.state === 'FATAL').length;
    count.textContent = (fitting.length > pageRows ? `${pageRows} of ${fitting.length}; filter to see others` : `${fitting.length} programs`) + (fatal ? `; ${fatal} FATAL` : '');
    const focused = document.activeElement?.getAttribute('aria-label');
    list.replaceChildren(table('Programs', [['Name'], ['State'], ['CPU', 'number'], ['Memory', 'number'], ['PID', 'number wide'], ['Restarts', 'number wide'], ['For', 'number'], ['Reason', 'wide'], ['', '']],
      fitting.slice(0, pageRows).map((p) => {
        const u = latest(p.name);
        return el('tr', {}, el('th', {scope: 'row'}, link(p.name)), el('td', {}, state(p.shown ?? p.state)),
          el('td', {class: 'number'}, u && p.pid ? percent(u.cpu) : ''), el('td', {class: 'number'}, u && p.pid ? bytes(u.memory) : ''),
          el('td', {class: 'number wide'}, p.pid || ''), el('td', {class: 'number wide'}, p.restarts), el('td', {class: 'number'}, since(p)),
          el('td', {class: 'wide'}, p.reason ?? p.log_trouble ?? p.text ?? ''), el('td', {class: 'actions'}, buttons(p)));
      })));
    if (focused) list.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  };
  search.addEventListener('input', draw);
  return {title: 'Programs', node: el('div', {}, el('div', {class: 'bar'}, search, count), list), draw};
}

function programPage(name) {
  const top = el('div'), story = el('div'), plots = el('div', {class: 'plots'}), spec = el('pre');
  const log = logView([name]);
  let seen = '';
  const tell = async () => {
    try {
      const why = await ask('GET', `/v1/programs/${encodeURIComponent(name)}/why`);
      story.replaceChildren(el('p', {}, why.summary), ...(why.next ? [el('p', {}, 'Next: ' + why.next)] : []),
        ...(why.needs?.length ? [table('Needs', [['Needs'], ['Condition'], ['Holds'], ['State']], why.needs.map((n) => el('tr', {},
          el('th', {scope: 'row'}, link(n.program)), el('td', {}, n.condition), el('td', {class: n.met ? 'good' : 'bad'}, n.met ? 'yes' : 'no'), el('td', {}, n.reason ?? n.state))))] : []),
        ...(why.dependents?.length ? [el('p', {}, 'Needed by ', why.dependents.flatMap((d, i) => [i ? ', ' : '', link(d)]))] : []));
      const detail = await ask('GET', `/v1/programs/${encodeURIComponent(name)}`);
      spec.textContent = JSON.stringify(detail.spec, null, 2);
    } catch (error) {
      story.replaceChildren(el('p', {class: 'error'}, error.message));
    }
  };
  const draw = () => {
    const p = box.programs.get(name);
    if (!p) { top.replaceChildren(el('p', {class: 'error'}, 'There is no such program.')); return; }
    const key = [p.state, p.run, p.ready, p.reason].join();
    if (key !== seen) { seen = key; tell(); }
    const u = latest(name);
    const exit = p.last_exit && (p.last_exit.signal ? 'signal ' + p.last_exit.signal : 'exit status ' + p.last_exit.code);
    if (!top.contains(document.activeElement)) {
      top.replaceChildren(el('div', {class: 'bar'}, buttons(p), signalForm(p)), facts([
        ['State', [state(p.shown ?? p.state), ` for ${since(p)}`]], ['Reason', p.reason], ['Says of itself', p.text], ['Log files', p.log_trouble], ['PID', p.pid && String(p.pid)],
        ['Run', String(p.run)], ['Restarts', String(p.restarts)], ['Last exit', exit], ['Acts next', p.deadline && 'in ' + span(Date.parse(p.deadline) - now())],
        ['CPU', u && p.pid ? percent(u.cpu) : null], ['Memory', u && p.pid ? `${bytes(u.memory)} in ${u.processes} processes` : null]]));
    }
    const samples = box.usage.get(name) ?? [];
    plots.replaceChildren(plot('CPU', samples.map((s) => s.cpu), percent), plot('Memory', samples.map((s) => s.memory), bytes));
  };
  return {title: name, draw, close: log.close, node: el('div', {}, top, story, plots, el('h3', {}, 'Output'), log.node,
    el('details', {}, el('summary', {}, 'Specification'), spec))};
}

function logsPage() {
  const log = logView([]);
  return {title: 'Logs', node: log.node, close: log.close};
}

function eventsPage() {
  const search = el('input', {type: 'search', placeholder: 'Filter', 'aria-label': 'Filter events'});
  const list = el('div');
  const words = (e) => Object.entries(e).filter(([k]) => !['seq', 'time', 'level', 'event', 'program', 'agentbox.stage', 'message'].includes(k))
    .map(([k, v]) => k + '=' + (typeof v === 'object' ? JSON.stringify(v) : v)).join(' ');
  const draw = () => {
    const text = search.value.toLowerCase();
    const fitting = box.events.filter((e) => JSON.stringify(e).toLowerCase().includes(text)).slice(-pageRows).reverse();
    list.replaceChildren(table('Events', [['Number', 'number'], ['Time'], ['Event'], ['Program'], ['Details', 'wide']], fitting.map((e) => el('tr', {},
      el('td', {class: 'number'}, e.seq), el('td', {}, (e.time ?? '').slice(11, 23)), el('td', {class: {error: 'bad', warn: 'warn'}[e.level] ?? ''}, e.event),
      el('td', {}, e.program ? link(e.program) : ''), el('td', {class: 'wide'}, words(e))))));
  };
  search.addEventListener('input', draw);
  return {title: 'Events', draw, node: el('div', {}, el('div', {class: 'bar'}, search), list)};
}

function bootPage() {
  const place = el('div');
  const show = async () => {
    const boot = await ask('GET', '/v1/box/boot');
    const begun = Date.parse(boot.started_at);
    const at = (t) => Date.parse(t) - begun;
    const rows = [
      ...boot.phases.map((p) => ({name: p.name, from: at(p.started_at), to: at(p.started_at) + p.duration_ms, bad: p.outcome === 'failed'})),
      ...boot.programs.filter((p) => p.started_at).slice(0, pageRows).map((p) => ({
        name: p.name, from: at(p.started_at), to: at(p.ready_at ?? p.running_at ?? p.started_at), bad: !p.ready_at && p.required})),
    ];
    place.replaceChildren(
      facts([['Outcome', boot.outcome], ['Reason', boot.reason], ['Sealed after', boot.sealed_at && span(at(boot.sealed_at))], ['Critical chain', boot.critical_chain?.join(' → ')]]),
      waterfall('Boot: phases, then programs until ready', rows),
      ...(boot.artifacts?.length ? [table('Artifacts', [['Artifact'], ['Result'], ['Reason']], boot.artifacts.map((a) => el('tr', {},
        el('th', {scope: 'row'}, a.id), el('td', {class: a.ok ? 'good' : 'bad'}, a.ok ? 'ok' : 'failed'), el('td', {}, a.reason ?? ''))))] : []));
  };
  return {title: 'Boot', node: place, start: show};
}

function graphPage() {
  const place = el('div');
  const show = async () => {
    const whys = await Promise.all([...box.programs.keys()].slice(0, pageRows).map((n) => ask('GET', `/v1/programs/${encodeURIComponent(n)}/why`)));
    const nodes = whys.map((w) => ({name: w.program.name, state: w.program.state}));
    const edges = whys.flatMap((w) => (w.needs ?? []).map((n) => ({from: n.program, to: w.program.name, condition: n.condition, met: n.met})));
    place.replaceChildren(graph(nodes, edges), el('h3', {}, 'Needs'), table('Needs', [['Program'], ['Needs'], ['Condition'], ['Holds']], edges.map((e) => el('tr', {},
      el('th', {scope: 'row'}, link(e.to)), el('td', {}, link(e.from)), el('td', {}, e.condition), el('td', {class: e.met ? 'good' : 'bad'}, e.met ? 'yes' : 'no')))));
  };
  return {title: 'Graph', node: place, start: show};
}

function usagePage() {
  const list = el('div', {class: 'plots'});
  const draw = () => {
    const busiest = [...box.usage.entries()].filter(([n]) => box.programs.get(n)?.pid).sort((a, b) => b[1].at(-1).cpu - a[1].at(-1).cpu || b[1].at(-1).memory - a[1].at(-1).memory);
    list.replaceChildren(...busiest.slice(0, 24).map(([name, s]) => figure(link(name),
      plot('CPU', s.map((x) => x.cpu), percent), plot('Memory', s.map((x) => x.memory), bytes))));
  };
  return {title: 'Usage', draw, node: el('div', {}, el('p', {class: 'muted'}, 'The 24 programs that use the most processor time now.'), list)};
}

// meshParts are the box's identity, its relays and its mailbox.
function meshParts({npub, relays, mailbox}) {
  return [el('h3', {}, 'Mesh'),
    table('Relays', [['Relay'], ['State'], ['Latency', 'number'], ['Last event'], ['Received', 'number'], ['Published', 'number'], ['Error']], relays.map((r) => el('tr', {},
      el('th', {scope: 'row'}, r.url + (r.own ? ' (own)' : '')), el('td', {class: r.state === 'connected' ? 'good' : 'bad'}, r.state), el('td', {class: 'number'}, r.latency_ms ? r.latency_ms.toFixed(1) + ' ms' : ''),
      el('td', {}, r.last_event ?? ''), el('td', {class: 'number'}, r.events), el('td', {class: 'number'}, r.published), el('td', {}, r.error ?? '')))),
    facts([['npub', npub], ...Object.entries(mailbox ?? {}).map(([k, v]) => [k, String(v)])])];
}

function slotsPage() {
  const place = el('div');
  const show = async () => {
    const [slots, federation, meta] = await Promise.all([ask('GET', '/v1/adapters'), ask('GET', '/v1/federation'), ask('GET', '/v1/meta')]);
    const mesh = meta.sovereign_mesh && await ask('GET', '/v1/mesh');
    place.replaceChildren(table('Slots', [['Slot'], ['Class'], ['Health'], ['Last error']], (slots.items ?? []).map((s) => el('tr', {},
      el('th', {scope: 'row'}, s.slot ?? s.name), el('td', {}, s.class ?? s.impl ?? ''), el('td', {}, s.health ?? s.state ?? ''), el('td', {}, s.last_error ?? s.reason ?? '')))),
      ...(mesh ? meshParts(mesh) : []),
      el('h3', {}, 'Federation'), facts(Object.entries(federation).map(([k, v]) => [k, v == null ? null : typeof v === 'object' ? JSON.stringify(v) : String(v)])));
  };
  return {title: 'Slots and mesh', node: place, start: show};
}

function changesTable(result) {
  const changes = (result.changes ?? []).filter((c) => c.action !== 'unchanged');
  return el('div', {}, changes.length ? table('Changes', [['Program'], ['Action'], ['Keys']], changes.map((c) => el('tr', {},
    el('th', {scope: 'row'}, c.program), el('td', {}, c.action), el('td', {}, (c.keys ?? []).join(', '))))) : el('p', {}, 'Nothing would change.'),
  result.next_boot?.length ? el('p', {}, 'From the next boot on: ' + result.next_boot.join(', ')) : null);
}

const findings = (list) => table('Findings', [['Code'], ['Where'], ['Message'], ['Hint']], list.map((f) => el('tr', {},
  el('th', {scope: 'row'}, f.code), el('td', {}, f.path || f.file || ''), el('td', {}, f.message), el('td', {}, f.hint ?? ''))));

function manifestPage() {
  const place = el('div'), outcome = el('div', {role: 'status'}), complaints = el('div');
  const search = el('input', {type: 'search', placeholder: 'Key or value', 'aria-label': 'Filter settings'});
  let settings = [];
  const draw = () => {
    const text = search.value.toLowerCase();
    place.replaceChildren(table('Settings', [['Key'], ['Value'], ['Comes from']], settings.filter((s) => (s.path + JSON.stringify(s.value)).toLowerCase().includes(text)).slice(0, 1000)
      .map((s) => el('tr', {}, el('th', {scope: 'row'}, s.path), el('td', {}, JSON.stringify(s.value)), el('td', {}, s.source + (s.detail ? ': ' + s.detail : ''))))));
  };
  search.addEventListener('input', draw);
  const apply = async () => {
    try {
      const preview = await ask('POST', '/v1/box/apply', {dry_run: true});
      if (!await confirm('Apply the manifest file?', changesTable(preview))) return;
      const done = await ask('POST', '/v1/box/apply', {});
      outcome.replaceChildren(el('p', {class: done.rolled_back ? 'error' : 'good'}, done.rolled_back ? 'Rolled back: ' + done.reason : 'Applied.'), changesTable(done));
      show();
    } catch (error) {
      outcome.replaceChildren(el('p', {class: 'error'}, error.message), ...(error.data?.findings ? [findings(error.data.findings)] : []));
    }
  };
  const show = async () => {
    const m = await ask('GET', '/v1/box/manifest');
    settings = m.settings;
    draw();
    complaints.replaceChildren(...(m.findings?.length ? [findings(m.findings)] : []));
  };
  return {title: 'Manifest', start: show, node: el('div', {}, el('div', {class: 'bar'}, search,
    box.canChange ? el('button', {type: 'button', onclick: apply}, 'Apply the file…') : null), outcome, complaints, place)};
}

const pages = [['', 'Programs', programsPage], ['logs', 'Logs', logsPage], ['events', 'Events', eventsPage], ['boot', 'Boot', bootPage], ['graph', 'Graph', graphPage],
  ['usage', 'Usage', usagePage], ['slots', 'Slots and mesh', slotsPage], ['manifest', 'Manifest', manifestPage]];

let page = null;

async function go() {
  const [, where = '', name = ''] = location.hash.split('/');
  page?.close?.();
  page = where === 'program' ? programPage(decodeURIComponent(name)) : (pages.find(([p]) => p === where) ?? pages[0])[2]();
  document.getElementById('nav').replaceChildren(...pages.map(([path, title]) => el('a', {href: '#/' + path, 'aria-current': path === where ? 'page' : null}, title)));
  document.title = page.title + ' · agentbox';
  notice.textContent = '';
  view.replaceChildren(el('h2', {}, page.title), notice, page.node);
  view.focus({preventScroll: true});
  const mine = page;
  try {
    await mine.start?.();
  } catch (error) {
    if (page === mine) notice.textContent = error.message;
  }
  mine.draw?.();
}

function header() {
  const ready = box.ready?.ready;
  document.getElementById('box').textContent = !box.connected ? 'Not connected; trying again…'
    : `${box.phase}, ${ready ? 'ready' : 'not ready' + (box.ready?.reason ? ': ' + box.ready.reason : '')}`;
}

watch(() => { header(); page?.draw?.(); });
// Times count on without events.
setInterval(() => { if (!document.hidden) page?.draw?.(); }, 2000);
addEventListener('hashchange', go);
follow().catch((error) => { notice.textContent = error.message; }).then(go);
