// Plays two users of nostr-tools at a relay: node client.cjs URL. Prints one line
// of JSON with what it saw.
const { createRequire } = require('node:module')
const load = createRequire(process.env.NOSTR_TOOLS + '/')
const { generateSecretKey, getPublicKey, finalizeEvent, verifyEvent } = load('nostr-tools/pure')
const { Relay, useWebSocketImplementation } = load('nostr-tools/relay')
const { wrapManyEvents, unwrapEvent } = load('nostr-tools/nip17')
useWebSocketImplementation(load('ws'))

// stored collects what a relay has, up to EOSE.
const stored = (relay, filter) => new Promise(resolve => {
  const events = []
  relay.subscribe([filter], { onevent: e => events.push(e), oneose: () => resolve(events) })
})
// login answers the relay's challenge, which may not be here yet.
async function login(relay, key) {
  while (!relay.challenge) await new Promise(r => setTimeout(r, 10))
  await relay.auth(async e => finalizeEvent(e, key))
}

async function main(url) {
  const seen = {}
  const [a, b] = [generateSecretKey(), generateSecretKey()]
  const [ra, rb] = [await Relay.connect(url), await Relay.connect(url)]
  const content = 'hi \u20ac \u{1f600} \u2028 "q" \\ \n \u0001 <&>'
  const note = finalizeEvent({ kind: 1, created_at: Math.floor(Date.now() / 1000), tags: [['t', 'x']], content }, a)
  await ra.publish(note).catch(e => { seen.refused = e.message })
  await login(ra, a)
  await ra.publish(note)
  const back = await stored(rb, { '#t': ['x'] })
  seen.note = back.length === 1 && back[0].content === content && verifyEvent(back[0])
  for (const wrap of wrapManyEvents(a, [{ publicKey: getPublicKey(b) }], 'secret hello')) await ra.publish(wrap)
  seen.strangers = (await stored(rb, { ids: [note.id], kinds: [1, 1059] })).length
  await login(rb, b)
  const wraps = await stored(rb, { kinds: [1059] })
  seen.messages = wraps.map(w => unwrapEvent(w, b).content)
  ra.close()
  rb.close()
  console.log(JSON.stringify(seen))
}
main(process.argv[2]).then(() => process.exit(0), e => { console.error(e); process.exit(1) })
