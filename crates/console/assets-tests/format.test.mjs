/** Tests of the formats of numbers, sizes, durations and times. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as format from '../assets/format.js';

test('an unknown value is shown as a dash in every format, never as 0', () => {
  for (const name of ['count', 'number', 'rate', 'bytes', 'latency', 'span', 'percent', 'date']) {
    for (const value of [null, undefined, Number.NaN]) assert.equal(format[name](value), '–', name);
  }
});

test('counts have thousands separators', () => {
  assert.equal(format.count(0), '0');
  assert.equal(format.count(999), '999');
  assert.equal(format.count(1234567), '1,234,567');
});

test('numbers have three significant digits', () => {
  assert.equal(format.number(0.42), '0.42');
  assert.equal(format.number(12.54), '12.5');
  assert.equal(format.number(10), '10');
  assert.equal(format.number(1240.4), '1,240');
  assert.equal(format.number(0.001), '<0.01');
  assert.equal(format.number(12_000_000), '12 M');
});

test('sizes use binary units', () => {
  assert.equal(format.bytes(0), '0 B');
  assert.equal(format.bytes(1023), '1023 B');
  assert.equal(format.bytes(1024), '1 KiB');
  assert.equal(format.bytes(1536), '1.5 KiB');
  assert.equal(format.bytes(2 * 1024 ** 3), '2 GiB');
  assert.equal(format.bytes(1024 ** 2 - 1), '1 MiB');
});

test('latencies are shown in the unit that fits', () => {
  assert.equal(format.latency(0.00025), '250 µs');
  assert.equal(format.latency(0.0012), '1.2 ms');
  assert.equal(format.latency(3.4), '3.4 s');
  assert.equal(format.latency(600), '10 min');
});

test('durations have at most two units', () => {
  assert.equal(format.span(0), '0 s');
  assert.equal(format.span(59.9), '59 s');
  assert.equal(format.span(3661), '1 h 1 min');
  assert.equal(format.span(86_400 * 3 + 7200 + 59), '3 d 2 h');
  assert.equal(format.span(86_400), '1 d');
});

test('distances show whether a time is in the past or in the future', () => {
  assert.equal(format.distance(86_400_000 * 12, 0), 'in 12 d');
  assert.equal(format.distance(0, 3_600_000 * 3), '3 h ago');
});

test('shares are shown as percentages', () => {
  assert.equal(format.percent(0.5), '50 %');
  assert.equal(format.percent(0.012), '1.2 %');
  assert.equal(format.percent(0.0001), '<0.1 %');
  assert.equal(format.percent(0), '0 %');
});
