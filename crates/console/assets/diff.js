/**
 * Computes the line difference between two texts with Myers's algorithm. Pure functions.
 *
 * The work is bounded: texts that differ in more than `DISTANCE_MAX` lines, after the common start and end, are shown
 * as one block removed and one block added.
 */

/** The maximum number of changed lines for which the shortest difference is computed. */
export const DISTANCE_MAX = 1000;
/** A run of more unchanged lines than this is replaced by a gap. */
const GAP_LEAST = 2;

/**
 * @typedef {{ op: 'same' | 'del' | 'add', text: string, a: number | null, b: number | null }} Line
 * `a` and `b` are the line numbers in the two texts, from 1.
 */

/**
 * Returns the lines of both texts in order, each marked as unchanged, removed or added.
 *
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function diffLines(before, after) {
  const a = split(before);
  const b = split(after);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (
    end < a.length - start &&
    end < b.length - start &&
    a[a.length - 1 - end] === b[b.length - 1 - end]
  ) {
    end += 1;
  }
  const midA = a.slice(start, a.length - end);
  const midB = b.slice(start, b.length - end);
  const ops = shortest(midA, midB) ?? [...midA.map(() => 'del'), ...midB.map(() => 'add')];
  const all = [...Array(start).fill('same'), ...ops, ...Array(end).fill('same')];
  const lines = [];
  let i = 0;
  let j = 0;
  for (const op of all) {
    if (op === 'same') {
      lines.push({ op, text: a[i], a: i + 1, b: j + 1 });
      i += 1;
      j += 1;
    } else if (op === 'del') {
      lines.push({ op, text: a[i], a: i + 1, b: null });
      i += 1;
    } else {
      lines.push({ op, text: b[j], a: null, b: j + 1 });
      j += 1;
    }
  }
  return lines;
}

function split(text) {
  return text === '' ? [] : text.split('\n');
}

/**
 * Returns the shortest list of operations that makes `a` into `b`, removals before additions; `null` if it is longer
 * than `DISTANCE_MAX`.
 */
function shortest(a, b) {
  const max = Math.min(a.length + b.length, DISTANCE_MAX);
  const reach = new Int32Array(2 * max + 3);
  const at = (k) => k + max + 1;
  const trace = [];
  for (let d = 0; d <= max; d += 1) {
    // Only the diagonals -d to d have changed since the previous step, so only these are kept.
    trace.push(reach.slice(at(-d) - 1, at(d) + 2));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && reach[at(k - 1)] < reach[at(k + 1)]);
      let x = down ? reach[at(k + 1)] : reach[at(k - 1)] + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) {
        x += 1;
        y += 1;
      }
      reach[at(k)] = x;
      if (x >= a.length && y >= b.length) return walkBack(trace, a.length, b.length);
    }
  }
  return null;
}

function walkBack(trace, lengthA, lengthB) {
  const ops = [];
  let x = lengthA;
  let y = lengthB;
  for (let d = trace.length - 1; d >= 0; d -= 1) {
    const reach = trace[d];
    const at = (k) => k + d + 1;
    const k = x - y;
    const down = k === -d || (k !== d && reach[at(k - 1)] < reach[at(k + 1)]);
    const fromK = down ? k + 1 : k - 1;
    const fromX = d === 0 ? 0 : reach[at(fromK)];
    const fromY = d === 0 ? 0 : fromX - fromK;
    while (x > fromX && y > fromY) {
      ops.push('same');
      x -= 1;
      y -= 1;
    }
    if (d > 0) ops.push(down ? 'add' : 'del');
    x = fromX;
    y = fromY;
  }
  return ops.reverse();
}

/**
 * @typedef {Line | { op: 'gap', count: number }} Shown
 */

/**
 * Replaces long runs of unchanged lines by gaps, and keeps `context` lines around each change. A run that would not
 * become shorter is kept.
 *
 * @param {Line[]} lines
 * @param {number} [context]
 * @returns {Shown[]}
 */
export function withGaps(lines, context = 3) {
  const keep = new Uint8Array(lines.length);
  lines.forEach((line, index) => {
    if (line.op === 'same') return;
    const from = Math.max(0, index - context);
    const to = Math.min(lines.length - 1, index + context);
    keep.fill(1, from, to + 1);
  });
  /** @type {Shown[]} */
  const shown = [];
  for (let i = 0; i < lines.length;) {
    let end = i;
    while (end < lines.length && keep[end] === keep[i]) end += 1;
    if (keep[i] || end - i <= GAP_LEAST) shown.push(...lines.slice(i, end));
    else shown.push({ op: 'gap', count: end - i });
    i = end;
  }
  return shown;
}
