/**
 * Determines which actions the page offers, from the permissions of the user. Pure functions.
 *
 * The result only guides the user. The cluster itself checks every request, and the page shows its refusals.
 */

import { compare, fromBase64 } from './bytes.js';

/**
 * @typedef {{ type: 'read' | 'write' | 'readwrite', key: string, range_end: string | null, role?: string }} Permission
 * @typedef {{ user: string | null, roles: string[], is_root: boolean, permissions: Permission[] }} Who
 */

/**
 * Whether the user may read or write a key. An unknown user counts as allowed, so that the cluster decides.
 *
 * @param {Who | null} who
 * @param {'read' | 'write'} what
 * @param {Uint8Array} key
 */
export function may(who, what, key) {
  if (who === null || who.is_root) return true;
  return who.permissions.some((it) => (it.type === what || it.type === 'readwrite') && covers(it, key));
}

/**
 * Whether the range of a permission contains a key. An end of one NUL byte means "no end".
 *
 * @param {Permission} permission
 * @param {Uint8Array} key
 */
export function covers(permission, key) {
  const start = fromBase64(permission.key);
  if (permission.range_end === null || permission.range_end === '') return compare(start, key) === 0;
  const end = fromBase64(permission.range_end);
  if (compare(key, start) < 0) return false;
  return (end.length === 1 && end[0] === 0) || compare(key, end) < 0;
}
