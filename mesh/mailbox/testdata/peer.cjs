// Plays a user of nostr-tools who talks to a box: node peer.cjs URL SECRET BOX.
// Reads the private messages for it, then writes one to the box. Prints one line of
// JSON with what it has read.
const { createRequire } = require('node:module')
const load = createRequire(process.env.NOSTR_TOOLS + '/')
const { getPublicKey, finalizeEvent } = load('nostr-tools/pure')
const { Relay, useWebSocketImplementation } = load('nostr-tools/relay')
const { wrapEvent, unwrapEvent } = load('nostr-tools/nip17')
useWebSocketImplementation(load('ws'))

async function main(url, secret, box) {
  const key = Uint8Array.from(Buffer.from(secret, 'hex'))
  const relay = await Relay.connect(url)
  while (!relay.challenge) await new Promise(r => setTimeout(r, 10))
  await relay.auth(async e => finalizeEvent(e, key))
  const wraps = await new Promise(resolve => {
    const events = []
    relay.subscribe([{ kinds: [1059], '#p': [getPublicKey(key)] }], { onevent: e => events.push(e), oneose: () => resolve(events) })
  })
  const messages = wraps.map(w => unwrapEvent(w, key)).map(({ kind, pubkey, content }) => ({ kind, pubkey, content }))
  await relay.publish(wrapEvent(key, { publicKey: box }, 'hello box \u20ac \u{1f600} \u2028 "q" \\ \n'))
  relay.close()
  console.log(JSON.stringify(messages))
}
main(...process.argv.slice(2)).then(() => process.exit(0), e => { console.error(e); process.exit(1) })
