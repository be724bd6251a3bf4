// Uses etcd3 of npm to write, watch and hold a lease while members are stopped and restarted.
//
// of_etcd3_members.js PORT PORT PORT
//
// The script runs until it reads a line from standard input, and then prints the results.

'use strict';

const { Etcd3, isRecoverableError } = require('etcd3');

const say = (what, ...seen) => console.log(`${what}: ${JSON.stringify(seen)}`);
const pause = (millis) => new Promise((resolve) => setTimeout(resolve, millis));

async function main(ports) {
  const client = new Etcd3({ hosts: ports.map((port) => `http://127.0.0.1:${port}`) });
  const seen = [];
  const lost = [];
  const watcher = await client.watch().key('number').create();
  watcher.on('put', (kv) => seen.push(Number(kv.value.toString())));
  const lease = client.lease(60);
  lease.on('lost', (error) => lost.push(error.constructor.name));
  await lease.put('held').value('v');

  // A failed call may have succeeded, so a retry may write the same number twice. That is not an error.
  const once = async (call) => {
    for (;;) {
      try {
        return await call();
      } catch (error) {
        if (!isRecoverableError(error) && error.code === undefined && !error.isBrokenCircuitError) throw error;
        await pause(20);
      }
    }
  };
  let number = 0;
  let isEnding = false;
  process.stdin.once('data', () => {
    isEnding = true;
  });
  while (!isEnding) {
    number += 1;
    await once(() => client.put('number').value(number));
    if (number === 20) say('going');
  }
  while (seen[seen.length - 1] !== number) await pause(20);

  const order = seen.filter((value, place) => value !== seen[place - 1]);
  say('seen', order.length === number, order.every((value, place) => value === place + 1));
  say('read', (await once(() => client.get('number').number())) === number);
  say('lease', lost, await once(() => client.get('held').string()));
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
