/**
 * Maps the fragment of the URL to a page: `#/keys/watch?prefix=a` has the path `keys/watch` and a query.
 *
 * The fragment never contains credentials or values. It does contain the key that is shown, so that the back button
 * and links work.
 */

/**
 * @typedef {{ path: string, query: URLSearchParams }} Route
 */

/**
 * @param {string} fragment
 * @returns {Route}
 */
export function parseRoute(fragment) {
  const text = fragment.replace(/^#?\/?/, '');
  const [path, query = ''] = text.split(/\?(.*)/s);
  return { path: path.replace(/\/+$/, ''), query: new URLSearchParams(query) };
}

/**
 * Returns the fragment of a path and a query; empty and missing parameters are left out.
 *
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function link(path, query = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== '' && value !== null && value !== undefined) params.set(name, String(value));
  }
  const text = params.toString();
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
