/** Tests of the forms of keys: base64, printable text, and fragments of URLs. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as bytes from '../assets/bytes.js';

const of = (...all) => Uint8Array.from(all);
const text = (string) => new TextEncoder().encode(string);

/** Keys that are hard to show: every byte, malformed UTF-8, escapes, direction marks, markup. */
const HARD = [
  of(),
  of(...Array(256).keys()),
  of(0xc3, 0x28, 0xf0, 0x9f, 0x98, 0xff),
  text('a\\x41\\n\\\\'),
  text('\u202egnp.exe \u200b\u00a0'),
  text('ключ/日本/😀'),
  text('<script>&"\'%23#?=&+'),
];

test('every key round-trips through its printable form, its fragment and base64', () => {
  for (const key of HARD) {
    assert.deepEqual(bytes.parseKey(bytes.printable(key)), key);
    assert.deepEqual(bytes.fromFragment(bytes.toFragment(key)), key);
    assert.deepEqual(bytes.fromBase64(bytes.toBase64(key)), key);
  }
});

test('long values round-trip through base64', () => {
  const long = new Uint8Array(300_000).map((_, index) => index * 7);
  assert.deepEqual(bytes.fromBase64(bytes.toBase64(long)), long);
});

test('invisible characters are escaped, and visible ones are not', () => {
  assert.equal(bytes.printable(text('/a/ключ 😀')), '/a/ключ 😀');
  assert.equal(bytes.printable(text('\u202ea')), '\\xe2\\x80\\xaea');
  assert.equal(bytes.printable(of(0xff, 0x00, 0x61)), '\\xff\\x00a');
});

test('a fragment contains no character that separates parts of a URL', () => {
  assert.match(bytes.toFragment(text('a b&c=d?e#f%g')), /^[\w\-.~/:%]+$/);
});

test('the end of a prefix is the first key after all keys with the prefix', () => {
  assert.deepEqual(bytes.prefixEnd(text('a/')), text('a0'));
  assert.deepEqual(bytes.prefixEnd(of(0x61, 0xff)), of(0x62));
  assert.deepEqual(bytes.prefixEnd(of(0xff, 0xff)), of(0));
  assert.deepEqual(bytes.prefixEnd(of()), of(0));
});

test('the middle of a long string is omitted', () => {
  assert.equal(bytes.shorten('abcdefghij', 7), 'abcd…ij');
  assert.equal(bytes.shorten('abc', 7), 'abc');
});

test('a line of a hexadecimal dump has an offset, two groups of bytes, and text', () => {
  const lines = bytes.hexDump(text('ABCDEFGHIJKLMNOPQ\n'), 0x20).split('\n');
  assert.deepEqual(lines, [
    '000020  41 42 43 44 45 46 47 48  49 4a 4b 4c 4d 4e 4f 50  ABCDEFGHIJKLMNOP',
    `000030  51 0a${' '.repeat(45)}Q.`,
  ]);
});
