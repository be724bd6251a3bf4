/**
 * The links between related pages.
 */

import { h } from '../dom.js';
import { link } from '../router.js';

/** @type {[string, string][]} */
const KEYS = [
  ['keys', 'Browse'],
  ['keys/sizes', 'Sizes'],
  ['keys/watch', 'Watch'],
];

/** @type {[string, string][]} */
const OPERATIONS = [
  ['operate', 'Cluster'],
  ['operate/access', 'Users and roles'],
];

/**
 * The views of the keys. They keep the prefix.
 *
 * @param {string} current the path of the page
 * @param {string} prefix as in the URL
 */
export function keysTabs(current, prefix) {
  return tabs('Views of the keys', KEYS, current, { prefix });
}

/** @param {string} current the path of the page */
export function operateTabs(current) {
  return tabs('Operations', OPERATIONS, current, {});
}

function tabs(label, entries, current, query) {
  const links = entries.map(([path, text]) =>
    h('a', { href: link(path, query), 'aria-current': path === current ? 'page' : null }, text),
  );
  return h('nav', { class: 'tabs', 'aria-label': label }, links);
}
