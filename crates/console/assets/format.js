/**
 * Formats numbers, sizes, durations and times for people. Pure functions.
 *
 * An unknown value (`null`, `undefined` or not a number) is always shown as a dash, never as 0.
 */

/** The text of an unknown value. */
export const UNKNOWN = '–';

/**
 * @param {unknown} value
 * @returns {value is number}
 */
export function known(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

/**
 * Formats a whole number with thousands separators: `12,345`.
 *
 * @param {number | null | undefined} value
 */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ',');
}

/**
 * Formats a number with about three significant digits: `0.42`, `12.5`, `1,240`.
 *
 * @param {number | null | undefined} value
 */
export function number(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e9) return `${short(value / 1e9)} G`;
  if (size >= 1e7) return `${short(value / 1e6)} M`;
  if (size >= 100) return count(value);
  if (size < 0.005) return '<0.01';
  return short(value);
}

/** Rounds to three significant digits, without trailing zeros. */
function short(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  const text = value.toFixed(digits);
  return digits === 0 ? text : text.replace(/\.?0+$/, '');
}

/**
 * Formats a rate: `12.5/s`.
 *
 * @param {number | null | undefined} value
 */
export function rate(value) {
  return known(value) ? `${number(value)}/s` : UNKNOWN;
}

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/**
 * Formats a size in bytes: `12.5 MiB`.
 *
 * @param {number | null | undefined} value
 */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= 1023.5 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(size) : short(size)} ${BYTE_UNITS[unit]}`;
}

/**
 * Formats a short duration, such as a latency: `250 µs`, `1.2 ms`, `3.4 s`.
 *
 * @param {number | null | undefined} secs
 */
export function latency(secs) {
  if (!known(secs)) return UNKNOWN;
  if (secs === 0) return '0 ms';
  if (secs < 0.001) return `${Math.max(1, Math.round(secs * 1e6))} µs`;
  if (secs < 1) return `${short(secs * 1e3)} ms`;
  if (secs < 120) return `${short(secs)} s`;
  return span(secs);
}

/**
 * Formats a long duration by its two largest units: `3 d 4 h`, `12 min 5 s`.
 *
 * @param {number | null | undefined} secs
 */
export function span(secs) {
  if (!known(secs)) return UNKNOWN;
  const whole = Math.max(0, Math.floor(secs));
  const parts = [
    [Math.floor(whole / 86400), 'd'],
    [Math.floor(whole / 3600) % 24, 'h'],
    [Math.floor(whole / 60) % 60, 'min'],
    [whole % 60, 's'],
  ];
  const first = parts.findIndex(([amount]) => amount !== 0);
  if (first === -1) return '0 s';
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount !== 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(' ');
}

/**
 * Formats a share of 1 as a percentage: `12 %`.
 *
 * @param {number | null | undefined} share
 */
export function percent(share) {
  if (!known(share)) return UNKNOWN;
  const value = share * 100;
  if (value !== 0 && Math.abs(value) < 0.1) return '<0.1 %';
  return `${value.toFixed(Math.abs(value) < 10 ? 1 : 0).replace(/\.0$/, '')} %`;
}

/**
 * Formats the time of day in the zone of the browser: `14:03:22`.
 *
 * @param {number} unixMs
 */
export function clock(unixMs) {
  const at = new Date(unixMs);
  return [at.getHours(), at.getMinutes(), at.getSeconds()]
    .map((part) => String(part).padStart(2, '0'))
    .join(':');
}

/**
 * Formats a date: `2026-11-26`.
 *
 * @param {number | null | undefined} unixMs
 */
export function date(unixMs) {
  if (!known(unixMs)) return UNKNOWN;
  const at = new Date(unixMs);
  if (Number.isNaN(at.getTime())) return UNKNOWN;
  const two = (part) => String(part).padStart(2, '0');
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/**
 * Formats the distance of a time from now: `in 12 d`, `3 h ago`.
 *
 * @param {number | null | undefined} unixMs
 * @param {number} nowMs
 */
export function distance(unixMs, nowMs) {
  if (!known(unixMs)) return UNKNOWN;
  const secs = (unixMs - nowMs) / 1000;
  const largest = span(Math.abs(secs)).split(' ').slice(0, 2).join(' ');
  return secs >= 0 ? `in ${largest}` : `${largest} ago`;
}

/**
 * Formats a number with its noun: `1 key`, `12 keys`.
 *
 * @param {number} value
 * @param {string} noun
 * @param {string} [plural]
 */
export function plural(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}
