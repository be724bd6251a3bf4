/**
 * The leases of the cluster, page by page, and the keys attached to each lease.
 */

import { call, isAbort } from '../api.js';
import { fromBase64, printable, shorten, toFragment } from '../bytes.js';
import { fill, h, setText } from '../dom.js';
import { clock, count, plural, span } from '../format.js';
import { confirm } from '../parts/dialog.js';
import { badge, button, emptyState, errorBox, field, loading, table } from '../parts/ui.js';
import { link } from '../router.js';
import { session } from '../session.js';
import { addShortcut } from '../shortcuts.js';
import { now } from '../store.js';

const PAGE = 50;
/** The maximum number of leases that the page shows. */
const LEASES_MAX = 1000;

/** @param {import('../shell.js').PageContext} context */
export function leasesPage({ route, signal }) {
  const columns = [
    { label: 'Lease' },
    { label: 'Time left', class: 'num' },
    { label: 'Granted for', class: 'num' },
    { label: 'Keys', class: 'num' },
    { label: 'Operations', hidden: true, class: 'actions' },
  ];
  const rows = table('Leases', columns);
  const note = h('p', { class: 'sub', role: 'status' });
  const body = h('div', null);
  const foot = h('div', { class: 'more' });
  const single = h('div', null);
  const element = h(
    'div',
    { class: 'page' },
    h('header', { class: 'page-head' }, h('h1', null, 'Leases'), note),
    h(
      'div',
      { class: 'toolbar' },
      button('Reload', () => load(null), { icon: 'refresh' }),
      session.writes ? button('Grant a lease', () => grantLease(() => load(null)), { icon: 'plus' }) : null,
    ),
    single,
    body,
    foot,
  );
  let loaded = 0;

  const load = async (cursor) => {
    if (cursor === null) {
      loaded = 0;
      fill(body, loading());
    }
    fill(foot);
    try {
      const answer = await call('leases/list', { cursor, limit: PAGE }, { signal });
      if (cursor === null) fill(rows.body);
      if (!rows.isConnected) fill(body, rows);
      rows.body.append(
        ...answer.entries.map((entry) => leaseRow(rows, entry, signal, () => load(null))).flat(),
      );
      loaded += answer.entries.length;
      setText(note, `${count(loaded)} of ${plural(answer.total, 'lease')} shown, as of ${clock(now())}.`);
      if (answer.total === 0) fill(body, emptyState(h('p', null, 'There are no leases.')));
      if (answer.next !== null) {
        fill(
          foot,
          loaded < LEASES_MAX
            ? button('Load more', () => load(answer.next))
            : h('p', { class: 'muted' }, `The page shows at most ${count(LEASES_MAX)} leases.`),
        );
      }
    } catch (error) {
      if (isAbort(error)) return;
      if (cursor === null)
        fill(
          body,
          errorBox(error, () => load(null)),
        );
      else
        fill(
          foot,
          errorBox(error, () => load(cursor)),
        );
    }
  };

  const showSingle = (id) => {
    fill(single);
    if (id === null) return;
    const keys = h('div', null);
    fill(
      single,
      h(
        'section',
        { class: 'card pad' },
        h(
          'div',
          { class: 'section-head' },
          h('h2', { class: 'mono' }, `Lease ${id}`),
          h('a', { href: link('leases') }, 'Show all'),
        ),
        keys,
      ),
    );
    showKeys(id, keys, signal);
  };

  const remove = addShortcut('r', 'load the leases again', () => load(null));
  signal.addEventListener('abort', remove);
  showSingle(route.query.get('id') ?? null);
  load(null);
  return { element, navigate: (to) => showSingle(to.query.get('id') ?? null) };
}

function leaseRow(owner, entry, signal, reload) {
  const keys = h('td', { role: 'cell', colspan: '5' });
  const detail = h('tr', { role: 'row', class: 'row-detail', hidden: true }, keys);
  const toggle = h(
    'button',
    {
      type: 'button',
      class: 'link',
      'aria-expanded': 'false',
      onclick: () => {
        detail.hidden = !detail.hidden;
        toggle.setAttribute('aria-expanded', String(!detail.hidden));
        if (!detail.hidden) showKeys(entry.id, keys, signal);
      },
    },
    entry.keys === null ? 'show' : count(entry.keys),
    h('span', { class: 'visually-hidden' }, ` keys of lease ${entry.id}`),
  );
  const left = entry.error ? h('span', { class: 'tone-critical' }, entry.error) : span(entry.ttl_secs);
  const low =
    entry.ttl_secs !== null && entry.granted_ttl_secs > 0 && entry.ttl_secs / entry.granted_ttl_secs < 0.25;
  const row = owner.row([
    h('span', { class: 'mono' }, entry.id),
    low && !entry.error ? badge(span(entry.ttl_secs), 'warning') : left,
    span(entry.granted_ttl_secs),
    toggle,
    session.writes
      ? button('Revoke', () => revokeLease(entry, reload), {
          kind: 'danger',
          small: true,
          title: `Revoke lease ${entry.id}`,
        })
      : '',
  ]);
  return [row, detail];
}

async function showKeys(id, into, signal) {
  fill(into, loading());
  try {
    const answer = await call('leases/get', { id }, { signal });
    const rest = answer.key_count - answer.keys.length;
    fill(
      into,
      h(
        'p',
        { class: 'muted' },
        `${span(answer.ttl_secs)} of ${span(answer.granted_ttl_secs)} left, ${plural(answer.key_count, 'key')}.`,
      ),
      h(
        'ul',
        { class: 'plain keys' },
        answer.keys.map((key) => {
          const bytes = fromBase64(key);
          return h(
            'li',
            null,
            h(
              'a',
              { class: 'mono break', href: link('keys', { key: toFragment(bytes) }) },
              shorten(printable(bytes), 200),
            ),
          );
        }),
      ),
      rest > 0 ? h('p', { class: 'muted' }, `${count(rest)} more keys are not shown.`) : null,
    );
  } catch (error) {
    if (!isAbort(error))
      fill(
        into,
        errorBox(error, () => showKeys(id, into, signal)),
      );
  }
}

function revokeLease(entry, done) {
  const keys =
    entry.keys === null
      ? 'All keys that are attached to it are deleted.'
      : entry.keys === 0
        ? 'No keys are attached to it.'
        : `${plural(entry.keys, 'key')} attached to it ${entry.keys === 1 ? 'is' : 'are'} deleted.`;
  confirm({
    title: 'Revoke the lease',
    body: [h('p', { class: 'mono target' }, entry.id), h('p', null, `The lease is revoked. ${keys}`)],
    danger: true,
    typed: entry.keys === 0 ? undefined : entry.id,
    action: 'Revoke the lease',
    run: () => call('write/lease_revoke', { id: entry.id }),
    done: () => `Revoked lease ${entry.id}.`,
    after: done,
  });
}

function grantLease(done) {
  const ttl = field(
    'Time to live in seconds',
    h('input', { type: 'number', min: '1', step: '1', required: true, value: '60' }),
  );
  confirm({
    title: 'Grant a lease',
    body: [
      h(
        'p',
        null,
        'The lease expires after this time, unless a client renews it. The console does not renew it.',
      ),
    ],
    fields: [ttl],
    action: 'Grant the lease',
    run: () => call('write/lease_grant', { ttl_secs: Number(ttl.input.value) }),
    done: (answer) => `Granted lease ${answer.id}.`,
    after: done,
  });
}
