/**
 * Downloads a snapshot: chooses the member, starts the browser's download, and shows its progress.
 */

import { call, isAbort } from '../api.js';
import { fill, h } from '../dom.js';
import { bytes as size, percent } from '../format.js';
import { store } from '../store.js';
import { answers } from './members.js';
import { button, errorBox, field, notice } from './ui.js';

const POLL_MS = 500;

/**
 * The form and the progress of snapshots.
 *
 * @param {AbortSignal} signal
 * @param {boolean} isAllowed
 */
export function snapshotPanel(signal, isAllowed) {
  const select = h('select', { disabled: !isAllowed });
  const status = h('div', { class: 'stack small', role: 'status' });
  const start = button('Download a snapshot', () => run(), { kind: 'primary', disabled: !isAllowed });
  const element = h(
    'div',
    { class: 'stack' },
    h(
      'p',
      { class: 'muted' },
      'A snapshot is the whole state of the cluster at one revision, as one file. It contains all keys, values, users and password hashes: store it safely.',
    ),
    h('div', { class: 'form-row' }, field('Member', select), start),
    status,
  );

  /** Lists the members that answer. */
  element.show = (overview) => {
    const members = overview.members.filter(answers);
    const key = members.map((it) => `${it.id} ${it.name}`).join();
    if (element.dataset.key === key) return;
    element.dataset.key = key;
    const chosen = select.value;
    // Followers are listed first, because they have less other work than the leader.
    members.sort((a, b) => Number(a.role === 'leader') - Number(b.role === 'leader'));
    fill(
      select,
      members.map((it) =>
        h('option', { value: it.id }, `${it.name || it.id} (${it.role}, ${size(it.db_bytes)})`),
      ),
    );
    if (members.some((it) => it.id === chosen)) select.value = chosen;
  };

  const run = async () => {
    start.disabled = true;
    fill(status, 'Starting …');
    try {
      const { id, path, file } = await call('write/snapshot', { member: select.value || null }, { signal });
      // The path comes from the server. Only a download path of this server is accepted.
      if (!/^\/download\/[\w-]+$/.test(path)) throw new TypeError('unexpected download path');
      const anchor = h('a', { href: path.slice(1), download: file, hidden: true });
      document.body.append(anchor);
      anchor.click();
      anchor.remove();
      await follow(id, file);
    } catch (error) {
      if (!isAbort(error)) fill(status, errorBox(error));
    } finally {
      start.disabled = false;
    }
  };

  const follow = async (id, file) => {
    const bar = h('progress', { max: '1', 'aria-label': `Download of ${file}` });
    const text = h('span', null);
    fill(status, h('p', { class: 'mono break' }, file), bar, text);
    for (;;) {
      const {
        state,
        sent_bytes: sent,
        total_bytes: total,
        error,
      } = await call('snapshot_progress', { id }, { signal });
      if (state === 'failed') {
        fill(
          status,
          notice(
            'critical',
            'The snapshot failed.',
            typeof error === 'string' ? error : (error?.message ?? ''),
            ' The file is incomplete: delete it.',
          ),
        );
        return;
      }
      if (state === 'done') {
        fill(
          status,
          notice(
            'good',
            'The snapshot is complete.',
            `${file}, ${size(sent)}. Check it with `,
            h('code', null, 'quorate utl snapshot status FILE'),
            '.',
          ),
        );
        return;
      }
      if (total) bar.value = sent / total;
      text.textContent =
        state === 'waiting'
          ? 'Waiting for the browser to start the download'
          : total
            ? `${size(sent)} of ${size(total)}, ${percent(sent / total)}`
            : size(sent);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  };
  if (store.overview) element.show(store.overview);
  return element;
}
