// Opens every session of a folder of logs with the upstream's own persistence, as a
// process that goes on with it would, and prints one line of JSON for each.
// Arguments: the folder of the installed set, the folder of logs.
import { createRequire } from 'node:module'

const [set, root] = process.argv.slice(2)
const { resolve } = createRequire(set + '/package.json')
const load = (name) => import(resolve('@deepseek-ai/' + name))
const { Context } = await load('cordis')
const ctx = new Context()
ctx.plugin((await load('dsh-session')).default)
const { JsonlSessionPersistence } = await load('dsh-session-persistence-jsonl')
let logs
ctx.plugin(class extends JsonlSessionPersistence {
  constructor(...args) {
    super(...args)
    logs = this
  }
}, { root, compression: 'none', packChunks: true, preparedSessionCacheSize: 5, writeBatchMaxDelayMs: 200 })
while (!logs) await new Promise((go) => setImmediate(go))
for (const { id } of await logs.list()) {
  const stored = await logs.inspect(id)
  const { session } = await logs.prepare(id)
  console.log(JSON.stringify({ id, events: stored.events, grown: session.events.length }))
}
process.exit(0)
