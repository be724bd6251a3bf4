/**
 * The rows of the key browser: a tree of prefixes, or a flat list, loaded page by page. No I/O and no elements.
 *
 * A tree holds at most `ENTRIES_MAX` entries. When it is full, a level shows that it has more entries, and the user can
 * narrow the prefix.
 */

import { fromBase64 } from './bytes.js';

/** The maximum number of entries that a tree holds. */
export const ENTRIES_MAX = 5000;

/**
 * @typedef {object} Level one level below a prefix
 * @property {string} prefix base64
 * @property {any[]} entries entries of the API
 * @property {string | null} next the cursor of the next page
 * @property {'new' | 'loading' | 'ready' | 'failed'} state
 * @property {any} error
 *
 * @typedef {object} Row
 * @property {'prefix' | 'key' | 'more' | 'loading' | 'failed' | 'empty' | 'full'} type
 * @property {number} depth
 * @property {any} [entry]
 * @property {Level} level the level that the row belongs to
 * @property {boolean} [open]
 * @property {number} position from 1, among its siblings
 * @property {number} siblings
 */

export class Tree {
  /** @param {string} prefix the root, base64 */
  constructor(prefix) {
    this.root = prefix;
    /** @type {Map<string, Level>} */
    this.levels = new Map();
    /** The open prefixes. @type {Set<string>} */
    this.open = new Set([prefix]);
    this.size = 0;
    this.level(prefix);
  }

  /**
   * Returns the level below a prefix, and creates it if it is new.
   *
   * @param {string} prefix
   * @returns {Level}
   */
  level(prefix) {
    let level = this.levels.get(prefix);
    if (!level) {
      level = { prefix, entries: [], next: null, state: 'new', error: null };
      this.levels.set(prefix, level);
    }
    return level;
  }

  /**
   * Adds a page of entries to a level.
   *
   * @param {Level} level
   * @param {any[]} entries
   * @param {string | null} next
   */
  add(level, entries, next) {
    const room = ENTRIES_MAX - this.size;
    const taken = entries.slice(0, Math.max(0, room));
    level.entries.push(...taken);
    this.size += taken.length;
    level.next = next;
    level.state = 'ready';
    level.error = null;
  }

  get isFull() {
    return this.size >= ENTRIES_MAX;
  }

  /**
   * Opens or closes a prefix. Closing a prefix drops the entries below it, which makes room in the tree.
   *
   * @param {string} prefix
   */
  toggle(prefix) {
    if (!this.open.delete(prefix)) {
      this.open.add(prefix);
      return;
    }
    const gone = fromBase64(prefix);
    for (const [key, level] of this.levels) {
      if (key !== this.root && begins(fromBase64(key), gone)) {
        this.size -= level.entries.length;
        this.levels.delete(key);
        this.open.delete(key);
      }
    }
  }

  /**
   * Returns the visible rows in order.
   *
   * @returns {Row[]}
   */
  rows() {
    /** @type {Row[]} */
    const out = [];
    this.collect(this.level(this.root), 0, out);
    return out;
  }

  collect(level, depth, out) {
    const siblings = level.entries.length;
    level.entries.forEach((entry, index) => {
      const isPrefix = entry.type === 'prefix';
      const open = isPrefix && this.open.has(entry.prefix);
      out.push({
        type: isPrefix ? 'prefix' : 'key',
        depth,
        entry,
        level,
        open,
        position: index + 1,
        siblings,
      });
      if (open) this.collect(this.level(entry.prefix), depth + 1, out);
    });
    const tail = (type) => out.push({ type, depth, level, position: siblings + 1, siblings: siblings + 1 });
    if (level.state === 'failed') tail('failed');
    else if (level.state !== 'ready') tail('loading');
    else if (level.next !== null) tail(this.isFull ? 'full' : 'more');
    else if (siblings === 0) tail('empty');
  }
}

function begins(bytes, prefix) {
  return bytes.length >= prefix.length && prefix.every((byte, index) => bytes[index] === byte);
}
