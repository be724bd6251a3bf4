/**
 * Polls the overview of the cluster, and keeps the newest overview and the history of its values.
 *
 * There is one loop for all pages. It stops while the tab is hidden, and has at most one call in flight. Events:
 * `sample` for a new sample, `state` after every attempt and once a second.
 */

import { asApiError, call, isAbort } from './api.js';
import { History } from './history.js';

/** How long problems of prefixes are kept after their stream has ended. */
const PREFIX_PROBLEMS_MS = 5 * 60 * 1000;
/** The time after which an unanswered poll is abandoned. */
const POLL_TIMEOUT_MS = 15_000;

/**
 * @typedef {{ p50?: number | null, p99?: number | null }} Latency
 * @typedef {object} Member
 * @property {string} id
 * @property {string} name
 * @property {string} role
 * @property {string | null} error
 * @property {number | null} down_secs
 * @property {Record<string, number | null>} gauges
 * @property {Record<string, number | null>} per_sec
 * @property {Record<string, Latency> | null} stages
 * @typedef {object} Problem
 * @property {string} id
 * @property {'critical' | 'warning' | 'info'} severity
 * @property {string} title
 * @property {string} text
 * @property {string | null} member
 * @property {string | null} runbook
 * @property {string | null} runbook_url
 * @typedef {any} Overview the answer of `overview`
 */

class Store extends EventTarget {
  constructor() {
    super();
    /** @type {Overview | null} */
    this.overview = null;
    /** The time of this browser when the newest sample arrived. */
    this.sampledAt = 0;
    /** The failure of the last poll, and the time of the first failure in a row. */
    this.failure = null;
    this.failingSince = 0;
    this.history = new History(2000);
    /** The problems that a stream of prefixes reported, such as hot keys. @type {Problem[]} */
    this.prefixProblems = [];
    this.prefixProblemsAt = 0;
    /** Whether two consecutive samples have the same server time. */
    this.clockStands = false;
    this.abort = null;
    this.timer = 0;
    this.askedAt = 0;
    this.visibleSince = 0;
  }

  /** Starts polling, now and whenever the tab becomes visible. */
  start() {
    document.addEventListener('visibilitychange', () => this.onVisibility());
    this.onVisibility();
  }

  onVisibility() {
    clearInterval(this.timer);
    if (document.hidden) {
      this.abort?.abort();
      return;
    }
    this.visibleSince = now();
    this.timer = setInterval(() => this.tick(), 1000);
    this.poll();
  }

  /** The time between two polls. */
  get intervalMs() {
    return Math.max(1000, this.overview?.interval_ms ?? 2000);
  }

  tick() {
    if (this.abort === null && now() - this.askedAt >= this.intervalMs - 500) this.poll();
    this.dispatchEvent(new Event('state'));
  }

  async poll() {
    if (this.abort !== null) return;
    const abort = new AbortController();
    this.abort = abort;
    this.askedAt = now();
    try {
      const overview = await call('overview', {}, { signal: abort.signal, timeoutMs: POLL_TIMEOUT_MS });
      this.failure = null;
      this.accept(overview);
    } catch (error) {
      if (!isAbort(error)) {
        if (this.failure === null) this.failingSince = now();
        this.failure = asApiError(error);
      }
    } finally {
      if (this.abort === abort) this.abort = null;
      this.dispatchEvent(new Event('state'));
    }
  }

  accept(overview) {
    if (this.overview && overview.sequence === this.overview.sequence) return;
    if (overview.interval_ms && Math.abs(overview.interval_ms - this.history.intervalMs) > 100) {
      this.history = new History(overview.interval_ms);
    }
    this.clockStands = this.overview !== null && overview.unix_ms <= this.overview.unix_ms;
    this.overview = overview;
    this.sampledAt = now();
    const { cluster } = overview;
    this.history.add(this.sampledAt, cluster.revision, cluster.leader, values(overview));
    this.dispatchEvent(new Event('sample'));
  }

  /**
   * Sets the problems reported in a line of `keys/prefixes`.
   *
   * @param {Problem[] | undefined} problems
   */
  setPrefixProblems(problems) {
    this.prefixProblems = problems ?? [];
    this.prefixProblemsAt = now();
  }

  /** All problems that are known, in the order of the server. @returns {Problem[]} */
  get problems() {
    const isRecent = now() - this.prefixProblemsAt < PREFIX_PROBLEMS_MS;
    return [...(this.overview?.problems ?? []), ...(isRecent ? this.prefixProblems : [])];
  }

  /** The milliseconds since the newest sample arrived; `null` before the first. */
  get ageMs() {
    return this.overview === null ? null : now() - this.sampledAt;
  }

  /** Whether the shown data is too old to be trusted. */
  get isStale() {
    if (this.overview === null) return false;
    // After the tab was hidden, the first poll is given time to complete.
    return now() - Math.max(this.sampledAt, this.visibleSince) > 3 * this.intervalMs + 2000;
  }

  /** Discards all data, because another user has logged in. */
  clear() {
    this.abort?.abort();
    this.abort = null;
    this.overview = null;
    this.failure = null;
    this.prefixProblems = [];
    this.history = new History(2000);
    this.dispatchEvent(new Event('state'));
  }
}

/** Returns the time of a clock that does not jump when the machine's time is set. */
export function now() {
  return performance.timeOrigin + performance.now();
}

/**
 * Yields the values of an overview that have a chart, with the names of their series.
 *
 * @param {Overview} overview
 * @returns {Generator<[string, number | null | undefined]>}
 */
function* values(overview) {
  for (const row of overview.requests ?? []) {
    yield [`rate/${row.kind}`, row.per_sec];
    yield [`p50/${row.kind}`, row.secs?.p50];
    yield [`p99/${row.kind}`, row.secs?.p99];
  }
  for (const member of overview.members ?? []) {
    const gone = member.role === 'down';
    const name = (what) => `${what}/${member.id}`;
    const take = (value) => (gone ? null : value);
    yield [name('requests'), take(member.requests_per_sec)];
    yield [name('cpu'), take(member.cpu)];
    yield [name('lag'), take(member.lag)];
    yield [name('db'), take(member.db_bytes)];
    yield [name('memory'), take(member.gauges?.resident_bytes)];
    yield [name('watchers'), take(member.gauges?.watchers)];
    yield [name('events'), take(member.per_sec?.events)];
    yield [name('leader_changes'), take(member.leader_changes)];
    for (const quantile of ['p50', 'p99']) {
      yield [name(`fsync_${quantile}`), take(member.fsync_secs?.[quantile])];
      yield [name(`commit_${quantile}`), take(member.commit_secs?.[quantile])];
      yield [name(`round_trip_${quantile}`), take(member.round_trip_secs?.[quantile])];
      yield [name(`apply_${quantile}`), take(member.apply_secs?.[quantile])];
      for (const stage of ['queue', 'quorum', 'disk', 'apply']) {
        yield [name(`stage_${stage}_${quantile}`), take(member.stages?.[stage]?.[quantile])];
      }
    }
  }
}

/** The store of the page. */
export const store = new Store();
