// What the console knows of the box: one copy of the state, kept true by one stream of events. Everything comes by the
// same routes that other clients of the management listener use.

// ask sends a request and returns its JSON, or throws an Error that says what the box answered.
export async function ask(method, path, body) {
  const options = {method, headers: {Accept: 'application/json'}, credentials: 'same-origin'};
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  if (answer.status === 401) {
    location.reload(); // the session has expired: the page is then the login form
    throw new Error('The session has expired.');
  }
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new Error(data.detail || data.message || answer.status + ' ' + answer.statusText);
    error.data = data;
    throw error;
  }
  return data;
}

const keptEvents = 500;
const keptSamples = 120;

export const box = {
  programs: new Map(), // by name, in start order
  phase: '',
  ready: null,
  skew: 0, // the box's clock minus the browser's, in milliseconds
  connected: false,
  events: [],
  usage: new Map(), // name → [{at, cpu (share of one processor), memory}]
  canChange: document.body.dataset.canChange === 'true',
};

// watchers are called, at most once a frame, when something in box has changed.
const watchers = new Set();
let due = false;

export function watch(f) {
  watchers.add(f);
  return () => watchers.delete(f);
}

function changed() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    for (const f of watchers) f();
  });
}

// now is the present by the clock of the box.
export const now = () => Date.now() + box.skew;

let refreshing = false;
let again = false;

// refresh reads the state of all programs. A burst of events causes one reading after the other, not one for each.
export async function refresh() {
  if (refreshing) { again = true; return; }
  refreshing = true;
  try {
    const [status, ready] = await Promise.all([ask('GET', '/v1/programs'), ask('GET', '/v1/box/ready')]);
    box.skew = Date.parse(status.time) - Date.now();
    box.phase = status.phase;
    box.programs = new Map(status.programs.map((p) => [p.name, p]));
    box.ready = ready;
    box.seq = status.seq;
  } finally {
    refreshing = false;
    changed();
    if (again) {
      again = false;
      setTimeout(refresh, box.programs.size > 200 ? 1000 : 200);
    }
  }
}

// stream reads a stream of server-sent events for as long as the page wants it, and returns a function that closes it.
// EventSource connects again by itself after a broken connection. It gives up after an answer that is no stream, such as
// 503, and the box ends its streams when it stops: then stream opens another one, which goes on after the last event.
// resume is the parameter that says after which event; on has open, error and message.
export function stream(path, query, resume, on) {
  let source, timer, closed = false;
  const again = () => {
    source.close();
    on.error?.();
    if (!closed) timer = setTimeout(open, 3000);
  };
  const open = () => {
    source = new EventSource(path + '?' + query);
    source.onopen = () => on.open?.();
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) again(); else on.error?.(); };
    source.onmessage = (message) => {
      if (message.lastEventId) query.set(resume, message.lastEventId);
      on.message(JSON.parse(message.data));
    };
    source.addEventListener('end', again);
  };
  open();
  return () => { closed = true; clearTimeout(timer); source.close(); };
}

// follow keeps the state true.
export async function follow() {
  await refresh();
  stream('/v1/box/events', new URLSearchParams({follow: true, since: Math.max(0, box.seq - 200)}), 'since', {
    open: () => { box.connected = true; refresh(); },
    error: () => { box.connected = false; changed(); },
    message: (event) => {
      box.events.push(event);
      if (box.events.length > keptEvents) box.events.shift();
      if (event.seq > box.seq) refresh();
      changed();
    },
  });
  measure();
}

let before = new Map();

async function measure() {
  let pause = 2000;
  try {
    if (!document.hidden) pause = Math.max(pause, take(await ask('GET', '/v1/box/usage')));
  } catch {
    pause = 10000; // the state of the connection shows elsewhere
  }
  setTimeout(measure, pause);
}

function take(report) {
  const at = Date.parse(report.time);
  for (const u of report.programs) {
    const last = before.get(u.name);
    if (last && at <= last.at) continue; // the same reading again
    const samples = box.usage.get(u.name) || [];
    const cpu = last ? Math.max(0, (u.cpu_seconds - last.cpu) / ((at - last.at) / 1000)) : 0;
    samples.push({at, cpu, memory: u.memory_bytes, processes: u.processes});
    if (samples.length > keptSamples) samples.shift();
    box.usage.set(u.name, samples);
    before.set(u.name, {at, cpu: u.cpu_seconds});
  }
  for (const name of box.usage.keys()) {
    if (!box.programs.has(name)) { box.usage.delete(name); before.delete(name); }
  }
  changed();
  return report.next_ms;
}

export const latest = (name) => box.usage.get(name)?.at(-1);
