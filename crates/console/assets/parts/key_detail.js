/**
 * Shows one key: its value, its metadata, and its history. While the newest value is shown, the page watches the key and
 * shows a notice when the key changes.
 */

import { asApiError, call, isAbort, stream } from '../api.js';
import { printable, shorten, toBase64 } from '../bytes.js';
import { fill, h } from '../dom.js';
import { count, span } from '../format.js';
import { may } from '../permissions.js';
import { link } from '../router.js';
import { session } from '../session.js';
import { keyHistory } from './history.js';
import { deleteKey, editKey } from './key_edit.js';
import { button, copyButton, errorBox, facts, iconButton, loading, notice, segmented } from './ui.js';
import { valueView } from './value.js';

/** The longest key that is shown whole. */
const KEY_SHOWN = 4096;

/**
 * @param {object} options
 * @param {Uint8Array} options.key
 * @param {number} options.revision 0 for the newest
 * @param {AbortSignal} options.signal
 * @param {() => void} options.onclose
 * @param {() => void} options.ongone runs after the key was deleted
 * @param {(revision: number) => void} options.onrevision shows all keys as of a revision
 */
export function keyDetail({ key, revision, signal, onclose, ongone, onrevision }) {
  const text = printable(key);
  const actions = h('div', { class: 'button-row' });
  const changed = h('div', { role: 'status' });
  const body = h('div', { class: 'detail-body' });
  const panel = h('div', { class: 'detail-panel' });
  let tab = 'value';
  const tabChoice = segmented(
    'View of the key',
    [
      ['value', 'Value'],
      ['history', 'History'],
    ],
    tab,
    (value) => {
      tab = value;
      showPanel();
    },
  );
  /** @type {any} */
  let entry = null;

  const showPanel = () => {
    if (tab === 'history') fill(panel, keyHistory(key, signal, onrevision));
    else if (entry !== null) fill(panel, valueView(entry));
    else fill(panel);
  };

  const load = async () => {
    fill(changed);
    fill(body, loading());
    try {
      entry = await call('keys/get', { key: toBase64(key), revision }, { signal });
      fill(body, metadata(entry, signal), h('div', { class: 'detail-bar' }, tabChoice, actions), panel);
      showActions();
      showPanel();
    } catch (error) {
      if (isAbort(error)) return;
      entry = null;
      fill(actions);
      const isGone = asApiError(error).code === 'not_found';
      if (isGone) {
        const when = revision > 0 ? `at revision ${count(revision)}` : 'now';
        fill(
          body,
          notice(
            'info',
            `The key does not exist ${when}.`,
            'Its history shows earlier values that have not been compacted.',
          ),
          tabChoice,
          panel,
        );
        tab = 'history';
        tabChoice.choose('history');
        showPanel();
      } else {
        fill(body, errorBox(error, load));
      }
    }
  };

  const showActions = () => {
    if (!session.writes || revision > 0) {
      fill(actions);
      return;
    }
    const mayWrite = may(session.who, 'write', key);
    const cannotEdit = entry.truncated || entry.too_large;
    fill(
      actions,
      button('Edit', () => editKey(key, entry, load), { disabled: !mayWrite || cannotEdit }),
      button('Delete', () => deleteKey(key, entry, ongone), { kind: 'danger', disabled: !mayWrite }),
      mayWrite ? null : h('p', { class: 'hint' }, `The user ${session.user} may not write this key.`),
      mayWrite && cannotEdit ? h('p', { class: 'hint' }, 'The value is too large to be edited here.') : null,
    );
  };

  load();
  if (revision === 0)
    watchForChanges(
      key,
      signal,
      () => entry,
      (line) => fill(changed, changeNotice(line, load)),
    );
  return h(
    'div',
    { class: 'card detail-card' },
    h(
      'header',
      { class: 'detail-head' },
      iconButton('back', 'Back to the list', onclose),
      h('h2', { class: 'mono break' }, text === '' ? h('em', null, 'empty key') : shorten(text, KEY_SHOWN)),
      copyButton(() => text, 'the key'),
    ),
    changed,
    body,
  );
}

function metadata(entry, signal) {
  const lease = h('span', null, 'none');
  if (entry.lease !== '0') {
    fill(lease, h('a', { href: link('leases', { id: entry.lease }), class: 'mono' }, entry.lease));
    call('leases/get', { id: entry.lease }, { signal })
      .then((answer) => lease.append(`, ${span(answer.ttl_secs)} left`))
      .catch(() => {});
  }
  return facts([
    ['Create revision', count(entry.create_revision)],
    ['Mod revision', count(entry.mod_revision)],
    ['Version', count(entry.version)],
    ['Lease', lease],
  ]);
}

/** Calls `onchange` when the key is changed or deleted after the shown revision. */
async function watchForChanges(key, signal, shown, onchange) {
  try {
    await stream(
      'keys/watch',
      { key: toBase64(key), start_revision: 0, value_bytes: 0, previous: false },
      (line) => {
        const event = line.type === 'events' ? line.events.at(-1) : null;
        if (event && event.mod_revision > (shown()?.mod_revision ?? 0)) onchange(event);
      },
      signal,
    );
  } catch {
    // The notice of changes is only a convenience, because compare-and-swap protects against lost changes anyway.
  }
}

function changeNotice(event, load) {
  const what = event.type === 'delete' ? 'deleted' : 'changed';
  return notice(
    'info',
    null,
    `The key was ${what} at revision ${count(event.mod_revision)}. `,
    button('Show the new state', load, { small: true }),
  );
}
