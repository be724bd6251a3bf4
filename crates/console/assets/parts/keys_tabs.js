/**
 * The links between the pages about keys: browser, sizes and watch. They keep the prefix.
 */

import { h } from '../dom.js';
import { link } from '../router.js';

const TABS = [
  ['keys', 'Browse'],
  ['keys/sizes', 'Sizes'],
  ['keys/watch', 'Watch'],
];

/**
 * @param {string} current the path of the page
 * @param {string} prefix as in the URL
 */
export function keysTabs(current, prefix) {
  return tabs('Views of the keys', TABS, current, { prefix });
}

/**
 * @param {string} label
 * @param {string[][]} entries
 * @param {string} current
 * @param {object} [query]
 */
export function tabs(label, entries, current, query = {}) {
  return h(
    'nav',
    { class: 'tabs', 'aria-label': label },
    entries.map(([path, text]) => h('a', { href: link(path, query), 'aria-current': path === current ? 'page' : null }, text)),
  );
}
