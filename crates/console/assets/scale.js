/**
 * Computes axes and paths of charts. Pure functions.
 */

/**
 * Returns evenly spaced round values from 0 to at least `max`.
 *
 * @param {number} max
 * @param {'decimal' | 'binary' | 'whole'} [base] `binary` gives powers of two, for sizes in bytes; `whole` gives whole numbers
 * @returns {number[]} two to five values, the first of which is 0
 */
export function ticks(max, base = 'decimal') {
  if (!(max > 0) || !Number.isFinite(max)) return [0, 1];
  const least = base === 'whole' ? Math.max(1, max / 3) : max / 3;
  const exact = base === 'binary' ? 2 ** Math.ceil(Math.log2(least)) : decimalStep(least);
  const step = base === 'whole' ? Math.ceil(exact) : exact;
  const out = [0];
  // Each value is a product, not a sum, so that no rounding errors add up. A maximum slightly above the last line needs
  // no further line.
  for (let i = 1; i < 5 && out[out.length - 1] < max * 0.999; i += 1) out.push(i * step);
  return out;
}

function decimalStep(least) {
  const magnitude = 10 ** Math.floor(Math.log10(least));
  const factor = [1, 2, 2.5, 5].find((it) => it * magnitude >= least * 0.999) ?? 10;
  return factor * magnitude;
}

/**
 * Returns the path data of a line. The line is interrupted at missing values, and where two samples are more than
 * `gapMs` apart. A value without neighbours becomes a dot.
 *
 * @param {number[]} times
 * @param {number[]} values
 * @param {(time: number) => number} x
 * @param {(value: number) => number} y
 * @param {number} gapMs
 */
export function linePath(times, values, x, y, gapMs) {
  let out = '';
  let isDrawing = false;
  for (let i = 0; i < times.length; i += 1) {
    if (Number.isNaN(values[i])) {
      isDrawing = false;
      continue;
    }
    if (isDrawing && times[i] - times[i - 1] > gapMs) isDrawing = false;
    const point = `${round(x(times[i]))} ${round(y(values[i]))}`;
    if (isDrawing) {
      out += `L${point}`;
    } else {
      const hasNext =
        i + 1 < times.length && !Number.isNaN(values[i + 1]) && times[i + 1] - times[i] <= gapMs;
      out += hasNext ? `M${point}` : `M${point}h.01`;
      isDrawing = true;
    }
  }
  return out;
}

/**
 * Returns the path data of the area below a line, with the interruptions of [`linePath`].
 */
export function areaPath(times, values, x, y, gapMs) {
  let out = '';
  let start = -1;
  const close = (end) => {
    if (start >= 0)
      out += `L${round(x(times[end]))} ${round(y(0))}L${round(x(times[start]))} ${round(y(0))}Z`;
    start = -1;
  };
  for (let i = 0; i < times.length; i += 1) {
    const isMissing = Number.isNaN(values[i]);
    if (start >= 0 && (isMissing || times[i] - times[i - 1] > gapMs)) close(i - 1);
    if (isMissing) continue;
    out += `${start < 0 ? 'M' : 'L'}${round(x(times[i]))} ${round(y(values[i]))}`;
    if (start < 0) start = i;
  }
  close(times.length - 1);
  return out;
}

function round(value) {
  return Math.round(value * 10) / 10;
}

/**
 * Summarizes the known values.
 *
 * @param {number[]} values
 * @returns {{ last: number | null, min: number | null, max: number | null, mean: number | null }}
 *   `last` is null if the newest value is missing
 */
export function summary(values) {
  const present = values.filter((value) => !Number.isNaN(value));
  const newest = values.at(-1);
  if (present.length === 0) return { last: null, min: null, max: null, mean: null };
  return {
    last: newest === undefined || Number.isNaN(newest) ? null : newest,
    min: present.reduce((a, b) => Math.min(a, b)),
    max: present.reduce((a, b) => Math.max(a, b)),
    mean: present.reduce((a, b) => a + b) / present.length,
  };
}

/**
 * Returns the index of the time that is nearest to `time`; -1 if there are no times.
 *
 * @param {number[]} times in ascending order
 * @param {number} time
 */
export function nearest(times, time) {
  let low = 0;
  let high = times.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && time - times[low - 1] < times[low] - time) return low - 1;
  return high < 0 ? -1 : low;
}
