/**
 * Creates, changes and deletes a key. Every change is a compare-and-swap on the revision that the page shows, so a change
 * made by another client in the meantime is never overwritten unnoticed.
 */

import { ApiError, call } from '../api.js';
import { fromBase64, isPlainText, parseKey, printable, shorten, toBase64, utf8 } from '../bytes.js';
import { h } from '../dom.js';
import { bytes as size, count } from '../format.js';
import { session } from '../session.js';
import { confirm } from './dialog.js';
import { checkbox, field } from './ui.js';

const NAME_MAX = 120;

/** Values are edited as text if they are text, else in base64. */
function editor(value) {
  const text = utf8(value);
  const isText = text !== null && isPlainText(text) && !text.includes('\r');
  const control = h('textarea', {
    class: 'mono',
    rows: '12',
    spellcheck: 'false',
    value: isText ? text : toBase64(value),
  });
  const wrapper = field(
    isText ? 'Value' : 'Value in base64',
    control,
    isText ? undefined : 'The value is not plain text, so it is shown in base64.',
  );
  /** @type {any} */ (wrapper).read = () => {
    const bytes = isText ? new TextEncoder().encode(control.value) : decode(control.value);
    const most = session.limit('value_bytes_put', 1024 * 1024);
    if (bytes.length > most)
      throw new ApiError(
        'bad_request',
        `The value is ${size(bytes.length)}; the console accepts at most ${size(most)}.`,
      );
    return toBase64(bytes);
  };
  return /** @type {any} */ (wrapper);
}

function decode(text) {
  try {
    return fromBase64(text.replace(/\s/g, ''));
  } catch {
    throw new ApiError('bad_request', 'The text is not valid base64.');
  }
}

/**
 * @param {string} prefix the text that the input starts with
 * @param {(key: Uint8Array) => void} done
 */
export function createKey(prefix, done) {
  const name = field(
    'Key',
    h('input', {
      type: 'text',
      class: 'mono',
      required: true,
      spellcheck: 'false',
      autocapitalize: 'none',
      autocomplete: 'off',
      value: prefix,
    }),
    'Write \\xNN for a byte that is not text, and \\\\ for a backslash.',
  );
  const value = editor(new Uint8Array());
  const lease = field(
    'Lease',
    h('input', {
      type: 'text',
      class: 'mono',
      spellcheck: 'false',
      autocomplete: 'off',
      placeholder: 'none',
    }),
    'The id of a lease. The key is deleted when the lease expires.',
  );
  /** @type {Uint8Array} */
  let key = new Uint8Array();
  confirm({
    title: 'New key',
    body: [h('p', null, 'The key is written only if it does not exist yet.')],
    fields: [name, value, lease],
    action: 'Create the key',
    run: () => {
      key = parseKey(name.input.value);
      return call('write/put', {
        key: toBase64(key),
        value: value.read(),
        lease: lease.input.value.trim() || '0',
        if_mod_revision: 0,
      });
    },
    done: (answer) => `Created the key at revision ${count(answer.revision)}.`,
    after: () => done(key),
  });
}

/**
 * @param {Uint8Array} key
 * @param {any} entry what was shown
 * @param {() => void} done
 */
export function editKey(key, entry, done) {
  const value = editor(fromBase64(entry.value));
  const keeps = entry.lease === '0' ? null : checkbox(`Keep the lease ${entry.lease}`, true);
  confirm({
    title: 'Change the value',
    body: [
      named(key),
      h(
        'p',
        null,
        `The value is written only if the key has not changed since revision ${count(entry.mod_revision)}, which is shown here.`,
      ),
    ],
    fields: [value, keeps],
    action: 'Write the value',
    run: () =>
      call('write/put', {
        key: toBase64(key),
        value: value.read(),
        ...(keeps?.input.checked ? { keep_lease: true } : { lease: '0' }),
        if_mod_revision: entry.mod_revision,
      }),
    done: (answer) => `Wrote the value at revision ${count(answer.revision)}.`,
    after: done,
  });
}

/**
 * @param {Uint8Array} key
 * @param {any} entry what was shown
 * @param {() => void} done
 */
export function deleteKey(key, entry, done) {
  const text = printable(key);
  // A very long key cannot be typed, so the user confirms it by typing its end.
  const typed = text.length <= 60 ? text : text.slice(-20);
  confirm({
    title: 'Delete the key',
    body: [
      named(key),
      h(
        'p',
        null,
        `The key and its value of ${size(entry.size)} are deleted if the key has not changed since revision ${count(entry.mod_revision)}.`,
      ),
      text.length <= 60 ? null : h('p', null, 'The text to type is the end of the key.'),
    ],
    typed: typed === '' ? undefined : typed,
    danger: true,
    action: 'Delete the key',
    run: () => call('write/delete', { key: toBase64(key), if_mod_revision: entry.mod_revision }),
    done: (answer) => `Deleted the key at revision ${count(answer.revision)}.`,
    after: done,
  });
}

function named(key) {
  return h('p', { class: 'mono break target' }, shorten(printable(key), NAME_MAX));
}
