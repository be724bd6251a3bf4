/**
 * Maps the fragment of the URL to a page: `#/keys/watch?prefix=a` has the path `keys/watch` and a query.
 *
 * Values in the query are encoded by `bytes.js`, which escapes all bytes that have a meaning in a URL. They are not
 * encoded again, so the URL of a key is readable.
 *
 * The fragment never contains credentials or values. It does contain the key that is shown, so that the back button
 * and links work.
 */

/**
 * @typedef {{ path: string, query: Map<string, string> }} Route
 */

/**
 * @param {string} fragment
 * @returns {Route}
 */
export function parseRoute(fragment) {
  const text = fragment.replace(/^#?\/?/, '');
  const [path, query = ''] = text.split(/\?(.*)/s);
  const pairs = query.split('&').filter((pair) => pair.includes('='));
  return {
    path: path.replace(/\/+$/, ''),
    query: new Map(pairs.map((pair) => /** @type {[string, string]} */ (pair.split(/=(.*)/s, 2)))),
  };
}

/**
 * Returns the fragment of a path and a query, whose values are fragments or numbers; missing parameters are left out.
 *
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function link(path, query = {}) {
  const pairs = Object.entries(query).filter(
    ([, value]) => value !== '' && value !== null && value !== undefined,
  );
  const text = pairs.map(([name, value]) => `${name}=${value}`).join('&');
  return `#/${path}${text === '' ? '' : `?${text}`}`;
}

/** @returns {Route} */
export function currentRoute() {
  return parseRoute(location.hash);
}

/**
 * Opens a fragment as a new entry of the browser's history.
 *
 * @param {string} fragment
 */
export function go(fragment) {
  location.hash = fragment;
}

/**
 * Replaces the fragment of the current entry, without opening a page.
 *
 * @param {string} fragment
 */
export function replace(fragment) {
  history.replaceState(null, '', fragment);
}

/** @param {(route: Route) => void} onRoute */
export function listen(onRoute) {
  addEventListener('hashchange', () => onRoute(currentRoute()));
}
