/**
 * The values of the last 15 minutes, for the charts and for looking up the revision at a given time.
 *
 * Each series is a ring of fixed length with one slot for each sample, so the memory of a page does not grow while it is
 * open. A value that was not reported is NaN, and a chart has a gap there. Nothing is stored outside the page.
 */

/** The time span that the charts show. */
export const SPAN_MS = 15 * 60 * 1000;
/** The maximum number of series that are kept: about 40 members with 20 series each. */
export const SERIES_MAX = 800;
/** The maximum number of samples that are kept, regardless of the polling interval. */
const SLOTS_MAX = 1000;

export class History {
  /** @param {number} intervalMs the time between two samples */
  constructor(intervalMs) {
    this.slots = Math.min(SLOTS_MAX, Math.ceil(SPAN_MS / Math.max(intervalMs, 1)) + 1);
    this.intervalMs = intervalMs;
    /** The number of samples so far. */
    this.total = 0;
    this.times = new Float64Array(this.slots);
    this.revisions = new Float64Array(this.slots);
    /** @type {Map<string, Float64Array>} */
    this.series = new Map();
    /** The times at which the leader changed, oldest first. */
    this.leaderChanges = [];
    this.lastLeader = null;
  }

  /** The number of samples that are kept. */
  get length() {
    return Math.min(this.total, this.slots);
  }

  /**
   * Adds a sample.
   *
   * @param {number} timeMs
   * @param {number | null} revision
   * @param {string | null} leader
   * @param {Iterable<[string, number | null | undefined]>} values
   */
  add(timeMs, revision, leader, values) {
    const slot = this.total % this.slots;
    this.times[slot] = timeMs;
    this.revisions[slot] = revision ?? Number.NaN;
    for (const ring of this.series.values()) ring[slot] = Number.NaN;
    for (const [name, value] of values) {
      let ring = this.series.get(name);
      if (!ring) {
        if (this.series.size >= SERIES_MAX) this.dropEmpty();
        if (this.series.size >= SERIES_MAX) continue;
        ring = new Float64Array(this.slots).fill(Number.NaN);
        this.series.set(name, ring);
      }
      ring[slot] = typeof value === 'number' ? value : Number.NaN;
    }
    this.noteLeader(timeMs, leader);
    this.total += 1;
    if (slot === this.slots - 1) this.dropEmpty();
  }

  noteLeader(timeMs, leader) {
    if (leader === null) return;
    if (this.lastLeader !== null && this.lastLeader !== leader) this.leaderChanges.push(timeMs);
    this.lastLeader = leader;
    while (this.leaderChanges.length > 0 && this.leaderChanges[0] < timeMs - SPAN_MS)
      this.leaderChanges.shift();
    if (this.leaderChanges.length > 100) this.leaderChanges.shift();
  }

  /** Drops series without any value, such as the series of removed members. */
  dropEmpty() {
    for (const [name, ring] of this.series) {
      if (ring.every(Number.isNaN)) this.series.delete(name);
    }
  }

  /**
   * Returns the times of the samples since `from`, oldest first, and the values of the named series at these times.
   *
   * @param {string[]} names
   * @param {number} from
   * @returns {{ times: number[], values: number[][] }}
   */
  since(names, from) {
    const times = [];
    const rings = names.map((name) => this.series.get(name));
    const values = names.map(() => /** @type {number[]} */ ([]));
    for (let i = this.total - this.length; i < this.total; i += 1) {
      const slot = i % this.slots;
      if (this.times[slot] < from) continue;
      times.push(this.times[slot]);
      rings.forEach((ring, index) => values[index].push(ring ? ring[slot] : Number.NaN));
    }
    return { times, values };
  }

  /**
   * Returns the latest sample at or before a time that has a revision; `null` if there is none.
   *
   * @param {number} timeMs
   * @returns {{ timeMs: number, revision: number } | null}
   */
  revisionAt(timeMs) {
    for (let i = this.total - 1; i >= this.total - this.length; i -= 1) {
      const slot = i % this.slots;
      if (this.times[slot] <= timeMs && !Number.isNaN(this.revisions[slot])) {
        return { timeMs: this.times[slot], revision: this.revisions[slot] };
      }
    }
    return null;
  }

  /**
   * Returns the time of the first sample that has a revision; `null` if the revision is older or newer than all samples.
   *
   * @param {number} revision
   */
  timeOf(revision) {
    let isNewer = false;
    for (let i = this.total - this.length; i < this.total; i += 1) {
      const slot = i % this.slots;
      const newest = this.revisions[slot];
      if (newest >= revision) return isNewer ? this.times[slot] : null;
      if (newest < revision) isNewer = true;
    }
    return null;
  }

  /** The time of the oldest sample; `null` if there is none. */
  get oldestMs() {
    if (this.total === 0) return null;
    return this.times[(this.total - this.length) % this.slots];
  }
}
