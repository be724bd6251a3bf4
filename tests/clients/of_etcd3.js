// Uses etcd3 of npm over gRPC, and prints its observations, which are the same in every run.
//
// of_etcd3.js plain|auth HOST PORT
// of_etcd3.js tls HOST PORT CA CERT KEY

'use strict';

const fs = require('fs');
const { Etcd3, Range, isRecoverableError } = require('etcd3');

const say = (what, ...seen) => console.log(`${what}: ${JSON.stringify(seen)}`);

async function refused(what, call) {
  try {
    say(what, await call());
  } catch (error) {
    say(what, error.constructor.name, isRecoverableError(error));
  }
}

const once = (emitter, name) => new Promise((resolve) => emitter.once(name, (...seen) => resolve(seen)));

function taken(watcher, count) {
  const seen = [];
  return new Promise((resolve, reject) => {
    const take = (kind) => (kv, previous) => {
      seen.push([kind, kv.key.toString(), kv.value.toString(), previous && previous.value.toString()]);
      if (seen.length === count) resolve(seen);
    };
    watcher.on('put', take('put')).on('delete', take('delete')).on('error', reject);
  });
}

async function keys(client) {
  await client.put('k/a').value('one');
  say('prev', (await client.put('k/a').value(Buffer.from([0, 255])).getPrevious()).value.toString('hex'));
  for (const name of ['b', 'c', 'd']) await client.put(`k/${name}`).value(name);
  say('get', await client.get('k/b').string(), await client.get('none').string(), await client.get('k/a').buffer());
  say('exists', await client.get('k/b').exists(), await client.get('none').exists());
  const all = client.getAll().prefix('k/');
  say('all', await all.keys(), await all.count(), await client.getAll().prefix('k/').sort('Mod', 'Descend').limit(2).strings());
  say('range', await client.getAll().inRange({ start: 'k/b', end: 'k/d' }).strings());
  const space = client.namespace('k/');
  say('namespace', await space.get('c').string(), await space.getAll().keys());
  say('touch', (await client.put('k/b').touch()).header !== undefined, await client.get('k/b').string());
  say('delete', (await client.delete().key('k/b')).deleted, (await client.delete().prefix('k/').getPrevious()).length);
}

async function transactions(client) {
  const claim = () => client.if('t/a', 'Create', '==', 0).then(client.put('t/a').value('first')).else(client.get('t/a')).commit();
  const [first, second] = [await claim(), await claim()];
  say('claim', first.succeeded, second.succeeded, second.responses[0].response_range.kvs[0].value.toString());
  const counted = await client.stm().transact(async (tx) => {
    await tx.put('t/n').value(Number((await tx.get('t/n').string()) || 0) + 1);
    return tx.get('t/n').string();
  });
  say('stm', counted);
  const increment = () => client.stm({ retries: 50 }).transact(async (tx) => tx.put('t/n').value((await tx.get('t/n').number()) + 1));
  await Promise.all([...Array(10)].map(increment));
  say('stm', await client.get('t/n').number());
}

async function leases(client) {
  const lease = client.lease(100);
  await lease.put('l/a').value('v');
  const kept = await lease.keepaliveOnce();
  say('lease', kept.TTL, (await client.leaseClient.leaseTimeToLive({ ID: await lease.grant(), keys: true })).keys.map(String));
  await lease.revoke();
  say('revoked', await client.get('l/a').string(), lease.revoked());
  const watcher = await client.watch().key('l/short').create();
  const events = taken(watcher, 2);
  const short = client.lease(1, { autoKeepAlive: false });
  await short.put('l/short').value('v');
  say('expires', (await events).map(([kind]) => kind));
  await watcher.cancel();
  await refused('gone', () => short.keepaliveOnce());
  const lively = client.lease(3);
  await lively.put('l/lively').value('v');
  say('kept', (await once(lively, 'keepaliveSucceeded'))[0].TTL);
  const lost = once(lively, 'lost');
  await client.leaseClient.leaseRevoke({ ID: await lively.grant() });
  say('lost', (await lost)[0].constructor.name);
}

async function watches(client) {
  const watcher = await client.watch().prefix('w/').withPreviousKV().create();
  const deletes = await client.watch().prefix('w/').only('delete').create();
  const [events, deleted] = [taken(watcher, 301), taken(deletes, 1)];
  for (let number = 0; number < 300; number += 1) await client.put(`w/${number % 3}`).value(String(number).repeat(100));
  await client.delete().key('w/0');
  const seen = await events;
  say('events', seen.length, seen.map((event) => event[2]).join('').length, seen[3][3].slice(0, 3), seen[300][0]);
  say('filtered', await deleted);
  await Promise.all([watcher.cancel(), deletes.cancel()]);
  const { header } = await client.put('w/r').value('1');
  await client.put('w/r').value('2');
  const past = await client.watch().key('w/r').startRevision(header.revision).create();
  say('from', (await taken(past, 2)).map((event) => event[2]));
  await past.cancel();
  await client.kv.compact({ revision: header.revision, physical: true });
  await refused('compacted', () => client.kv.compact({ revision: 1 }));
  const early = client.watch().key('w/r').startRevision('1').watcher();
  say('early', (await Promise.race([once(early, 'error'), once(early, 'put')])).length > 0);
}

async function locks(client) {
  const lock = await client.lock('name').ttl(30).acquire();
  say('lock', (await lock.leaseId()) !== null);
  await refused('taken', () => client.lock('name').ttl(30).acquire());
  await lock.release();
  say('do', await client.lock('name').do(() => 'done'));
  const election = client.election('e', 30);
  const one = election.campaign('one');
  await once(one, 'elected');
  const observer = await election.observe();
  if (!observer.leader()) await once(observer, 'change');
  const next = election.campaign('two');
  say('leader', await election.leader(), observer.leader());
  await next.getCampaignKey();
  const changed = new Promise((resolve) => observer.on('change', (value) => value === 'two' && resolve(value)));
  const elected = once(next, 'elected');
  await one.resign();
  await elected;
  say('next', await changed, await election.leader());
  await observer.cancel();
  await next.resign();
}

async function users(client) {
  const role = client.role('js');
  await role.create();
  await role.grant([
    { permission: 'Readwrite', range: new Range('js/', 'js0') },
    { permission: 'Read', key: 'one' },
  ]);
  say('granted', (await role.permissions()).map((one) => one.permission));
  const user = await client.user('js').create('password');
  await user.addRole('js');
  say('roles', (await user.roles()).map(({ name }) => name), (await client.getUsers()).map(({ name }) => name));
  await user.setPassword('another');
  await refused('twice', () => client.user('js').create('password'));
  await role.revoke({ permission: 'Read', key: 'one' });
  await user.removeRole('js');
  await user.delete();
  await role.delete();
  await refused('no role', () => role.permissions());
}

async function members(client) {
  const { members: all } = await client.cluster.memberList({});
  say('member', all.length, all[0].name);
  const status = await client.maintenance.status();
  say('status', status.leader === all[0].ID);
  await client.maintenance.defragment();
  const chunks = [];
  const snapshot = await client.maintenance.snapshot();
  await new Promise((resolve, reject) => snapshot.on('data', ({ blob }) => chunks.push(blob)).on('end', resolve).on('error', reject));
  say('snapshot', Buffer.concat(chunks).length > 10000);
}

async function authorized(hosts) {
  const nobody = new Etcd3({ hosts });
  await refused('nobody', () => nobody.get('app/a').string());
  nobody.close();
  const wrong = new Etcd3({ hosts, auth: { username: 'app', password: 'wrong' } });
  await refused('wrong', () => wrong.get('app/a').string());
  wrong.close();
  const client = new Etcd3({ hosts, auth: { username: 'app', password: 'secret' } });
  await client.put('app/a').value('v');
  say('own', await client.get('app/a').string());
  await refused('foreign', () => client.put('other').value('v'));
  const watcher = await client.watch().key('app/a').create();
  const events = taken(watcher, 1);
  await client.put('app/a').value('w');
  say('event', await events);
  await watcher.cancel();
  const lease = client.lease(30);
  await lease.put('app/l').value('v');
  say('lease', (await lease.keepaliveOnce()).TTL);
  await lease.revoke();
  await client.lock('app/lock').do(() => say('lock', true));
  client.close();
}

async function secured(hosts, [ca, cert, key]) {
  const read = (path) => fs.readFileSync(path);
  const client = new Etcd3({ hosts, credentials: { rootCertificate: read(ca), certChain: read(cert), privateKey: read(key) } });
  await keys(client);
  const watcher = await client.watch().key('s/a').create();
  const events = taken(watcher, 1);
  await client.put('s/a').value('v');
  say('event', await events);
  await watcher.cancel();
  client.close();
  const without = new Etcd3({ hosts, credentials: { rootCertificate: read(ca) } });
  await refused('without', () => without.get('k').string());
  without.close();
}

async function main([form, host, port, ...files]) {
  if (form === 'auth') return authorized(`http://${host}:${port}`);
  if (form === 'tls') return secured(`https://${host}:${port}`, files);
  const client = new Etcd3({ hosts: `http://${host}:${port}` });
  for (const part of [keys, transactions, leases, watches, locks, users, members]) await part(client);
  return client.close();
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
