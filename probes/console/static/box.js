// What the console knows of the box: one copy of the state, kept true by one stream of events. Everything comes by the
// same routes that other clients of the management listener use.

// The login puts the key of the session after the #. It is kept where no other origin can read it: the cookie of the
// session goes to every port of this host, and what listens there may be a hostile program of the box.
const keyName = 'agentbox-console-key';
const given = location.hash.match(/^#key=(\w+)$/);
if (given) {
  localStorage.setItem(keyName, given[1]);
  history.replaceState(null, '', location.pathname);
}

// send sends a request with the credentials of the session. If the session has expired, the page becomes the login form.
async function send(path, options) {
  options.headers['Agentbox-Console'] = localStorage.getItem(keyName) ?? '';
  const answer = await fetch(path, {...options, credentials: 'same-origin'});
  if (answer.status === 401) {
    await fetch('/ui/logout', {method: 'POST', credentials: 'same-origin'}); // the cookie alone opens the page
    location.reload();
    throw new Error('The session has expired.');
  }
  return answer;
}

// ask sends a request and returns its JSON, or throws an Error that says what the box answered.
export async function ask(method, path, body) {
  const options = {method, headers: {Accept: 'application/json'}};
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  const answer = await send(path, options);
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

// events reads the server-sent events of an answer: each has type, id and data.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const blocks = (text + value).split('\n\n');
    text = blocks.pop();
    for (const block of blocks) {
      const event = {type: 'message', id: '', data: ''};
      for (const line of block.split('\n')) {
        if (line.startsWith('event: ')) event.type = line.slice(7);
        if (line.startsWith('id: ')) event.id = line.slice(4);
        if (line.startsWith('data: ')) event.data = line.slice(6);
      }
      if (event.data) yield event;
    }
  }
}

// stream reads a stream of server-sent events for as long as the page wants it, and returns a function that closes it.
// After a broken connection, an answer that is no stream, such as 503, and the end of the stream it asks again for what
// comes after the last event. An EventSource cannot send the key of the session. on has open, error and message.
export function stream(path, query, on) {
  const headers = {Accept: 'text/event-stream'};
  const stop = new AbortController();
  let timer;
  const open = async () => {
    try {
      const answer = await send(path + '?' + query, {headers, signal: stop.signal});
      if (!answer.ok) throw new Error(answer.statusText);
      on.open?.();
      for await (const event of events(answer.body)) {
        if (event.type === 'end') break;
        if (event.id) headers['Last-Event-ID'] = event.id;
        on.message(JSON.parse(event.data));
      }
    } catch {
      // on.error shows it
    }
    if (stop.signal.aborted) return;
    on.error?.();
    timer = setTimeout(open, 3000);
  };
  open();
  return () => { clearTimeout(timer); stop.abort(); };
}

// follow keeps the state true.
export async function follow() {
  await refresh();
  stream('/v1/box/events', new URLSearchParams({follow: true, since: Math.max(0, box.seq - 200)}), {
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
