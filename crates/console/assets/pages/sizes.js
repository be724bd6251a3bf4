/**
 * The sizes, counts and write rates of prefixes, as `quorate ctl top` computes them: the server walks the keys slowly,
 * so that it causes little load, and sends the largest prefixes and the prefixes with the most writes.
 */

import { asApiError, isAbort, stream } from '../api.js';
import { fromBase64, fromFragment, parseKey, printable, shorten, toBase64, toFragment } from '../bytes.js';
import { fill, h, keyed, setText } from '../dom.js';
import { bytes as size, count, percent, rate } from '../format.js';
import { keysTabs } from '../parts/tabs.js';
import { badge, emptyState, errorBox, loading, segmented, table } from '../parts/ui.js';
import { link, replace } from '../router.js';
import { getSetting } from '../settings.js';
import { store } from '../store.js';

const ROWS_MAX = 200;
const RETRY_MS = 5000;
/** A prefix with this share of all bytes or writes is marked, if there are several. */
const MARKED_SHARE = 0.3;
/** A prefix with fewer writes per second than this is not marked, regardless of its share. */
const HOT_LEAST = 1;

const ORDERS = {
  bytes: (row) => row.bytes_estimated ?? 0,
  keys: (row) => row.keys ?? 0,
  writes: (row) => writesOf(row) ?? 0,
};

function writesOf(row) {
  return row.puts_per_sec == null ? null : row.puts_per_sec + (row.deletes_per_sec ?? 0);
}

/** @param {import('../shell.js').PageContext} context */
export function sizesPage({ route, signal }) {
  let prefix = route.query.get('prefix') ?? '';
  let depth = 1;
  let order = /** @type {keyof typeof ORDERS} */ ('bytes');
  /** @type {any} */
  let newest = null;
  let run = new AbortController();

  const input = h('input', {
    type: 'search',
    class: 'mono',
    placeholder: 'Prefix',
    'aria-label': 'Prefix of the keys',
    spellcheck: 'false',
    value: printable(fromFragment(prefix)),
    onchange: () => {
      prefix = toFragment(parseKey(input.value));
      replace(link('keys/sizes', { prefix }));
      tabs.replaceWith((tabs = keysTabs('keys/sizes', prefix)));
      start();
    },
  });
  let tabs = keysTabs('keys/sizes', prefix);
  const sorting = segmented(
    'Order',
    [
      ['bytes', 'Size'],
      ['keys', 'Keys'],
      ['writes', 'Writes'],
    ],
    order,
    (value) => {
      order = value;
      show();
    },
  );
  const depths = segmented(
    'Number of separators in a prefix',
    [
      ['1', '1 level'],
      ['2', '2'],
      ['3', '3'],
    ],
    '1',
    (value) => {
      depth = Number(value);
      start();
    },
  );
  const note = h('p', { class: 'sub' });
  const problem = h('div', null);
  const body = h('div', null);
  const columns = [
    { label: 'Prefix' },
    { label: 'Keys', class: 'num' },
    { label: 'Size, estimated', class: 'num' },
    { label: 'Share', class: 'share' },
    { label: 'Writes', class: 'num' },
    { label: 'Bytes written', class: 'num' },
    { label: 'Watch', hidden: true },
  ];
  const rows = table('Prefixes', columns);
  const element = h(
    'div',
    { class: 'page' },
    h('header', { class: 'page-head' }, h('h1', null, 'Keys'), tabs),
    h('div', { class: 'toolbar' }, h('div', { class: 'grow' }, input), depths, sorting),
    note,
    problem,
    body,
  );

  const show = () => {
    if (newest === null) return;
    const all = [...newest.rows].sort((a, b) => ORDERS[order](b) - ORDERS[order](a)).slice(0, ROWS_MAX);
    const omitted = newest.omitted + newest.rows.length - all.length;
    setText(
      note,
      [newest.note, omitted > 0 ? `${count(omitted)} smaller prefixes are not shown.` : '']
        .filter(Boolean)
        .join(' · '),
    );
    if (all.length === 0) {
      fill(
        body,
        newest.complete
          ? emptyState(h('p', null, 'There are no keys with this prefix.'))
          : loading('Counting'),
      );
      return;
    }
    if (!rows.isConnected) fill(body, rows);
    const total = (of) => newest.rows.reduce((sum, row) => sum + (of(row) ?? 0), 0);
    const bytesTotal = total((row) => row.bytes_estimated);
    const writesTotal = total(writesOf);
    keyed(
      rows.body,
      all,
      (row) => `${row.form}/${row.prefix}`,
      () => sizeRow(rows),
      (tr, row) => tr.show(row, bytesTotal, writesTotal, newest.rows.length),
    );
  };

  const start = async () => {
    run.abort();
    run = new AbortController();
    const own = run;
    newest = null;
    fill(note);
    fill(body, loading('Counting'));
    while (!own.signal.aborted && !document.hidden) {
      const request = {
        prefix: toBase64(fromFragment(prefix)),
        separator: toBase64(parseKey(getSetting('separator', '/'))),
        depth,
      };
      try {
        await stream(
          'keys/prefixes',
          request,
          (line) => {
            if (line.type !== 'prefixes') return;
            newest = line;
            store.setPrefixProblems(line.problems);
            fill(problem);
            show();
          },
          own.signal,
        );
      } catch (error) {
        if (isAbort(error) || own.signal.aborted) return;
        fill(problem, errorBox(error));
        if (newest === null) fill(body);
        if (['permission_denied', 'bad_request'].includes(asApiError(error).code)) return;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  };

  document.addEventListener('visibilitychange', () => (document.hidden ? run.abort() : start()), { signal });
  signal.addEventListener('abort', () => run.abort());
  start();
  return { element };
}

function sizeRow(owner) {
  const name = h('a', { class: 'mono break' });
  const marks = h('span', { class: 'marks' });
  const bar = h('span', { class: 'bar', 'aria-hidden': 'true' });
  const share = h('span', null);
  const texts = Array.from({ length: 4 }, () => h('span', null));
  const watch = h('a', null, 'Watch');
  const tr = owner.row([
    [name, marks],
    texts[0],
    texts[1],
    [h('span', { class: 'bar-cell' }, bar, share)],
    texts[2],
    texts[3],
    watch,
  ]);
  tr.show = (row, bytesTotal, writesTotal, rowCount) => {
    const bytes = fromBase64(row.prefix);
    const text = shorten(printable(bytes), 160);
    const forms = { prefix: text || 'all keys', keys: `${text} (keys at this level)`, stem: `${text}…` };
    setText(name, forms[row.form] ?? text);
    name.href = link('keys', { prefix: toFragment(bytes) });
    watch.href = link('keys/watch', { prefix: toFragment(bytes) });
    watch.setAttribute('aria-label', `Watch ${text}`);
    const part = bytesTotal > 0 ? (row.bytes_estimated ?? 0) / bytesTotal : 0;
    bar.style.setProperty('--share', String(part));
    setText(share, percent(row.bytes_estimated == null ? null : part));
    const writes = writesOf(row);
    [
      count(row.keys),
      size(row.bytes_estimated),
      rate(writes),
      row.bytes_per_sec == null ? rate(null) : `${size(row.bytes_per_sec)}/s`,
    ].forEach((it, index) => setText(texts[index], it));
    const isHot = rowCount > 1 && (writes ?? 0) >= HOT_LEAST && (writes ?? 0) / writesTotal >= MARKED_SHARE;
    const isLarge = rowCount > 1 && part >= MARKED_SHARE;
    const key = `${isHot} ${isLarge}`;
    if (marks.dataset.key !== key) {
      marks.dataset.key = key;
      fill(marks, isLarge ? badge('large', 'info') : null, isHot ? badge('hot', 'warning') : null);
    }
  };
  return tr;
}
