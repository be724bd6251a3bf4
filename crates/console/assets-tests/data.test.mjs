/**
 * Tests of the values that the pages compute: differences, envelopes, trees, the history of values, axes, routes and
 * permissions.
 */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { toBase64 } from '../assets/bytes.js';
import { diffLines, withGaps } from '../assets/diff.js';
import { History, SERIES_MAX } from '../assets/history.js';
import { isDeep, parseJson } from '../assets/json.js';
import { decodeEnvelope, encryptedBy } from '../assets/kubernetes.js';
import { may } from '../assets/permissions.js';
import { link, parseRoute } from '../assets/router.js';
import { linePath, nearest, summary, ticks } from '../assets/scale.js';
import { ENTRIES_MAX, Tree } from '../assets/tree.js';

const text = (string) => new TextEncoder().encode(string);
const b64 = (string) => toBase64(text(string));

/** Applies a difference, and returns both texts. */
function sides(lines) {
  const side = (without) =>
    lines
      .filter((line) => line.op !== without)
      .map((line) => line.text)
      .join('\n');
  return [side('add'), side('del')];
}

test('a difference contains both texts and is as short as possible', () => {
  const before = 'a\nb\nc\na\nb\nb\na';
  const after = 'c\nb\na\nb\na\nc';
  const lines = diffLines(before, after);
  assert.deepEqual(sides(lines), [before, after]);
  assert.equal(lines.filter((line) => line.op !== 'same').length, 5);
});

test('differences of random texts contain both texts', () => {
  let seed = 7;
  const random = (max) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return seed % max;
  };
  for (let round = 0; round < 200; round += 1) {
    const make = () => Array.from({ length: random(30) + 1 }, () => 'abcd'[random(4)]).join('\n');
    const [before, after] = [make(), make()];
    assert.deepEqual(sides(diffLines(before, after)), [before, after]);
  }
});

test('texts that differ in every line are shown as removed and then as added', () => {
  const make = (letter) => Array.from({ length: 3000 }, (_, index) => `${letter}${index}`).join('\n');
  const lines = diffLines(make('a'), make('b'));
  assert.equal(lines.length, 6000);
  assert.equal(lines[0].op, 'del');
  assert.equal(lines.at(-1).op, 'add');
});

test('unchanged lines far from changes are replaced by gaps', () => {
  const before = Array.from({ length: 50 }, (_, index) => `line ${index}`);
  const after = before.with(25, 'changed');
  const shown = withGaps(diffLines(before.join('\n'), after.join('\n')), 2);
  assert.deepEqual(
    shown.map((line) => line.op),
    ['gap', 'same', 'same', 'del', 'add', 'same', 'same', 'gap'],
  );
  assert.equal(shown[0].count, 23);
});

/** Encodes a field of bytes. */
function field(number, content) {
  const bytes = typeof content === 'string' ? text(content) : content;
  assert.ok(bytes.length < 128 && number < 16, 'one byte each is enough for the tag and the length');
  return Uint8Array.of(number * 8 + 2, bytes.length, ...bytes);
}

const join = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));

const ENVELOPE = join(
  text('k8s\0'),
  field(1, join(field(1, 'v1'), field(2, 'Pod'))),
  field(
    2,
    field(
      1,
      join(
        field(1, 'web-1'),
        field(3, 'shop'),
        field(5, 'some-uid'),
        Uint8Array.of(7 * 8, 3),
        field(8, Uint8Array.of(8, 100)),
        field(11, join(field(1, 'app'), field(2, 'web'))),
      ),
    ),
  ),
  field(4, 'text'),
);

test('the type, name and labels of an object are read from a Kubernetes envelope', () => {
  const envelope = decodeEnvelope(ENVELOPE);
  assert.equal(envelope.apiVersion, 'v1');
  assert.equal(envelope.kind, 'Pod');
  assert.equal(envelope.name, 'web-1');
  assert.equal(envelope.namespace, 'shop');
  assert.equal(envelope.uid, 'some-uid');
  assert.equal(envelope.generation, 3);
  assert.equal(envelope.createdMs, 100_000);
  assert.deepEqual(envelope.labels, [['app', 'web']]);
});

test('decoding a truncated or damaged envelope never throws', () => {
  assert.equal(decodeEnvelope(text('no envelope')), null);
  for (let length = 0; length < ENVELOPE.length; length += 1) decodeEnvelope(ENVELOPE.subarray(0, length));
  for (let at = 4; at < ENVELOPE.length; at += 1) decodeEnvelope(ENVELOPE.with(at, 0xff));
});

test('values encrypted by Kubernetes are recognised', () => {
  assert.equal(encryptedBy(text('k8s:enc:aescbc:v1:key1:\x01\x02')), 'aescbc:v1:key1');
  assert.equal(encryptedBy(text('other')), null);
});

test('a tree shows its open levels page by page', () => {
  const tree = new Tree('');
  assert.deepEqual(
    tree.rows().map((row) => row.type),
    ['loading'],
  );
  tree.add(
    tree.level(''),
    [
      { type: 'prefix', prefix: b64('a/'), count: 2 },
      { type: 'key', key: b64('b') },
    ],
    'more',
  );
  assert.deepEqual(
    tree.rows().map((row) => row.type),
    ['prefix', 'key', 'more'],
  );
  tree.toggle(b64('a/'));
  tree.add(tree.level(b64('a/')), [{ type: 'key', key: b64('a/1') }], null);
  assert.deepEqual(
    tree.rows().map((row) => [row.type, row.depth]),
    [
      ['prefix', 0],
      ['key', 1],
      ['key', 0],
      ['more', 0],
    ],
  );
  tree.toggle(b64('a/'));
  assert.equal(tree.size, 2, 'closing a prefix drops its keys');
});

test('the number of entries in a tree is bounded', () => {
  const tree = new Tree('');
  const page = Array.from({ length: 1000 }, (_, index) => ({ type: 'key', key: b64(String(index)) }));
  for (let i = 0; i < 7; i += 1) tree.add(tree.level(''), page, 'more');
  assert.equal(tree.size, ENTRIES_MAX);
  assert.equal(tree.rows().at(-1).type, 'full');
});

test('the history keeps a fixed number of samples and finds revisions', () => {
  const history = new History(2000);
  for (let i = 0; i < 2000; i += 1)
    history.add(i * 2000, i * 10, 'a', [
      ['x', i],
      ['y', i % 2 ? null : i],
    ]);
  assert.equal(history.length, 451);
  const { times, values } = history.since(['x', 'y', 'unknown'], 1995 * 2000);
  assert.deepEqual(
    times,
    [1995, 1996, 1997, 1998, 1999].map((at) => at * 2000),
  );
  assert.deepEqual(values[0], [1995, 1996, 1997, 1998, 1999]);
  assert.ok(Number.isNaN(values[1][0]) && values[1][1] === 1996 && Number.isNaN(values[2][0]));
  assert.deepEqual(history.revisionAt(1990 * 2000 + 5), { timeMs: 1990 * 2000, revision: 19_900 });
  assert.equal(history.revisionAt(10), null, 'the time is older than the history');
  assert.equal(history.timeOf(19_895), 1990 * 2000);
  assert.equal(history.timeOf(5), null);
});

test('the history drops the series of removed members, and the number of series is bounded', () => {
  const history = new History(2000);
  for (let i = 0; i < 2000; i += 1) history.add(i, i, null, [[`member ${i}`, i]]);
  assert.ok(history.series.size <= SERIES_MAX);
  for (let i = 0; i < 1000; i += 1) history.add(i, i, null, [['one', i]]);
  assert.deepEqual([...history.series.keys()], ['one']);
});

test('each leader change is recorded once', () => {
  const history = new History(2000);
  ['a', 'a', null, 'a', 'b', 'b'].forEach((leader, index) => history.add(index, null, leader, []));
  assert.deepEqual(history.leaderChanges, [4]);
});

test('axes have few round values', () => {
  assert.deepEqual(ticks(0), [0, 1]);
  assert.deepEqual(ticks(Number.NaN), [0, 1]);
  assert.deepEqual(ticks(300), [0, 100, 200, 300]);
  assert.deepEqual(
    ticks(3 * 1024 ** 2, 'binary'),
    [0, 1, 2, 3].map((it) => it * 1024 ** 2),
  );
  assert.deepEqual(ticks(1, 'whole'), [0, 1]);
  assert.deepEqual(ticks(7, 'whole'), [0, 3, 6, 9]);
  for (let max = 0.0001; max < 1e9; max *= 1.7) {
    const all = ticks(max);
    assert.ok(all.length >= 2 && all.length <= 5 && all.at(-1) >= max * 0.998, `${max}: ${all}`);
  }
});

test('a line has gaps at missing values and at missing samples', () => {
  const path = linePath(
    [0, 1, 2, 3, 20, 21],
    [1, 1, NaN, 1, 1, 1],
    (x) => x,
    (y) => y,
    5,
  );
  assert.equal(path, 'M0 1L1 1M3 1h.01M20 1L21 1');
});

test('a summary shows that the newest value is missing', () => {
  assert.deepEqual(summary([1, 3, NaN]), { last: null, min: 1, max: 3, mean: 2 });
  assert.deepEqual(summary([]), { last: null, min: null, max: null, mean: null });
});

test('the nearest sample is found', () => {
  assert.equal(nearest([], 5), -1);
  assert.equal(nearest([0, 10, 20], 14), 1);
  assert.equal(nearest([0, 10, 20], 16), 2);
  assert.equal(nearest([0, 10, 20], 99), 2);
});

test('routes have a path and a query', () => {
  const route = parseRoute(link('keys/watch', { prefix: '/a/%ff', at: 0, key: null, empty: '' }));
  assert.equal(route.path, 'keys/watch');
  assert.deepEqual(
    [...route.query],
    [
      ['prefix', '/a/%ff'],
      ['at', '0'],
    ],
  );
  assert.equal(parseRoute('').path, '');
});

test('permissions cover single keys, ranges, and ranges without an end', () => {
  const who = (...permissions) => ({ user: 'alice', roles: ['r'], is_root: false, permissions });
  const range = { type: 'read', key: b64('a'), range_end: b64('b') };
  assert.ok(may(who(range), 'read', text('a/1')));
  assert.ok(!may(who(range), 'write', text('a/1')));
  assert.ok(!may(who(range), 'read', text('b')));
  assert.ok(may(who({ type: 'readwrite', key: b64('k'), range_end: null }), 'write', text('k')));
  assert.ok(!may(who({ type: 'readwrite', key: b64('k'), range_end: null }), 'write', text('k2')));
  assert.ok(
    may(who({ type: 'read', key: b64('m'), range_end: toBase64(Uint8Array.of(0)) }), 'read', text('z')),
  );
  assert.ok(may(null, 'write', text('z')), 'an unknown user counts as allowed, so that the cluster decides');
});

test('the page requests all of its modules at once', () => {
  const assets = new URL('../assets/', import.meta.url);
  const modules = readdirSync(assets, { recursive: true }).filter(
    (file) => file.endsWith('.js') && file !== 'main.js',
  );
  const page = readFileSync(new URL('index.html', assets), 'utf8');
  const listed = [...page.matchAll(/rel="modulepreload" href="([^"]+)"/g)].map((found) => found[1]);
  assert.deepEqual(listed, modules.sort());
});

test('deeply nested JSON is recognised and not parsed', () => {
  const deep = (levels) => '['.repeat(levels) + ']'.repeat(levels);
  assert.deepEqual(parseJson(deep(3)), [[[]]]);
  assert.ok(parseJson(deep(500)) !== undefined);
  assert.equal(parseJson(deep(501)), undefined);
  assert.ok(isDeep(deep(100_000)));
  assert.ok(isDeep('{"a":'.repeat(100_000)));
  // Brackets in strings do not count as nesting, and closed brackets reduce the depth again.
  assert.deepEqual(parseJson(JSON.stringify(['['.repeat(1000), '\\"['.repeat(1000)])).length, 2);
  assert.equal(parseJson(`[${'[],'.repeat(10_000)}1]`).length, 10_001);
  assert.equal(parseJson('12'), undefined);
  assert.equal(parseJson('[1'), undefined);
});
