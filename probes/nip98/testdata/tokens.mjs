// Prints one token of nostr-tools for each line of {"url", "method", "payload"} on
// standard input. node tokens.mjs SECRET-HEX
import { createInterface } from 'node:readline'
import { createRequire } from 'node:module'
const require = createRequire(process.env.NOSTR_TOOLS + '/')
const { getToken } = require('nostr-tools/nip98')
const { finalizeEvent } = require('nostr-tools/pure')
const { hexToBytes } = require('nostr-tools/utils')
const key = hexToBytes(process.argv[2])
for await (const line of createInterface({ input: process.stdin })) {
  const { url, method, payload } = JSON.parse(line)
  console.log(await getToken(url, method, e => finalizeEvent(e, key), true, payload))
}
