/**
 * The history of one key: its revisions, newest first, and the difference between any two of them.
 */

import { call, isAbort } from '../api.js';
import { fromBase64, toBase64 } from '../bytes.js';
import { diffLines, withGaps } from '../diff.js';
import { fill, h, uniqueId } from '../dom.js';
import { bytes as size, clock, count } from '../format.js';
import { store } from '../store.js';
import { badge, button, errorBox, loading, notice } from './ui.js';
import { comparable } from './value.js';

const PAGE = 20;
/** The maximum number of revisions that the page keeps. */
const REVISIONS_MAX = 500;
/** The maximum number of lines of a difference that are shown. */
const LINES_MAX = 2000;

const ENDS = {
  created:
    'The key was created at the oldest revision shown. Search the whole history to find earlier changes.',
  compacted: 'Older revisions were compacted.',
  absent: 'The key does not exist at the newest revision.',
  complete: 'This is the whole history that the store keeps.',
  limit: 'There are more revisions than are shown.',
  time: 'The search was stopped because it took too long; older revisions may be missing.',
};

/**
 * @param {Uint8Array} key
 * @param {AbortSignal} signal
 * @param {(revision: number) => void} onrevision
 */
export function keyHistory(key, signal, onrevision) {
  const name = uniqueId('revision');
  const list = h('ol', { class: 'revisions', 'aria-label': 'Revisions, newest first' });
  const foot = h('div', { class: 'stack small' });
  const comparison = h('div', { class: 'comparison' });
  /** @type {any[]} */
  let entries = [];
  /** The revisions that are compared. */
  let from = 0;
  let to = 0;

  const load = async (request) => {
    fill(foot, loading(request.search ? 'Searching the history' : 'Loading'));
    try {
      const answer = await call(
        'keys/history',
        { key: toBase64(key), limit: PAGE, ...request },
        { signal, timeoutMs: 120_000 },
      );
      entries = request.before ? [...entries, ...answer.entries] : answer.entries;
      if (entries.length > REVISIONS_MAX) {
        entries = entries.slice(0, REVISIONS_MAX);
        answer.next = null;
        answer.end = 'limit';
      }
      show();
      showFoot(answer);
      if (!request.before) compareNewest();
    } catch (error) {
      if (!isAbort(error))
        fill(
          foot,
          errorBox(error, () => load(request)),
        );
    }
  };

  const showFoot = ({ next, end }) => {
    const search = end === 'created' || end === 'absent' || end === 'compacted';
    fill(
      foot,
      next !== null && next !== undefined
        ? button('Load older revisions', () => load({ before: next }))
        : null,
      end ? h('p', { class: 'hint' }, ENDS[end] ?? end) : null,
      search && end !== 'compacted'
        ? button('Search the whole history', () => load({ search: true, limit: 200 }))
        : null,
    );
  };

  const show = () => {
    const choose = (which, entry) =>
      h(
        'label',
        { class: 'pick', title: which === 'from' ? 'Compare from' : 'Compare to' },
        h('input', {
          type: 'radio',
          name: `${name}-${which}`,
          'aria-label': `Compare ${which} revision ${entry.mod_revision}`,
          checked: entry.mod_revision === (which === 'from' ? from : to),
          onchange: () => {
            if (which === 'from') from = entry.mod_revision;
            else to = entry.mod_revision;
            compare();
          },
        }),
      );
    fill(
      list,
      h(
        'li',
        { class: 'revisions-head', 'aria-hidden': 'true' },
        h('span', null, 'from'),
        h('span', null, 'to'),
        h('span', null, 'Revision'),
      ),
      entries.map((entry) =>
        h(
          'li',
          null,
          choose('from', entry),
          choose('to', entry),
          h(
            'button',
            {
              type: 'button',
              class: 'link',
              title: 'Show all keys as of this revision',
              onclick: () => onrevision(entry.mod_revision),
            },
            count(entry.mod_revision),
          ),
          entry.type === 'delete'
            ? badge('deleted', 'critical')
            : h(
                'span',
                { class: 'muted' },
                `version ${count(entry.version)}, ${size(entry.size)}${entry.lease !== '0' ? `, lease ${entry.lease}` : ''}`,
              ),
          timeOf(entry.mod_revision),
        ),
      ),
    );
  };

  const compareNewest = () => {
    to = entries[0]?.mod_revision ?? 0;
    from = entries[1]?.mod_revision ?? to;
    show();
    compare();
  };

  const compare = async () => {
    const [a, b] = [from, to].map((revision) => entries.find((it) => it.mod_revision === revision));
    if (!a || !b || a === b) {
      fill(
        comparison,
        entries.length > 1
          ? h('p', { class: 'hint' }, 'Choose two different revisions to compare them.')
          : null,
      );
      return;
    }
    fill(comparison, loading('Comparing'));
    try {
      const [before, after] = await Promise.all([a, b].map((entry) => whole(key, entry, signal)));
      if (from === a.mod_revision && to === b.mod_revision) fill(comparison, diffView(a, b, before, after));
    } catch (error) {
      if (!isAbort(error)) fill(comparison, errorBox(error, compare));
    }
  };

  load({ before: null });
  return h('div', { class: 'history' }, list, foot, comparison);
}

/** Returns when the revision was written, if this page has received a sample from that time. */
function timeOf(revision) {
  const timeMs = store.history.timeOf(revision);
  return timeMs === null ? null : h('span', { class: 'muted' }, `about ${clock(timeMs)}`);
}

/** Returns the part of a revision's value that the server shows; nothing for a deletion. */
async function whole(key, entry, signal) {
  if (entry.type === 'delete') return { value: '', size: 0, truncated: false };
  if (!entry.truncated && entry.value !== null) return entry;
  return call('keys/get', { key: toBase64(key), revision: entry.mod_revision }, { signal });
}

function diffView(a, b, before, after) {
  if (before.value === null || after.value === null)
    return notice('info', null, 'One of the values is too large to be compared.');
  const [left, right] = [before, after].map((it) => comparable(fromBase64(it.value)));
  const cut = before.truncated || after.truncated;
  if (left === right) {
    return notice(
      'info',
      null,
      cut ? 'The shown parts of the values are equal.' : 'The values are equal.',
    );
  }
  const lines = diffLines(left, right);
  const added = lines.filter((line) => line.op === 'add').length;
  const removed = lines.filter((line) => line.op === 'del').length;
  const shown = withGaps(lines);
  const signs = { same: ' ', del: '−', add: '+' };
  const rows = shown
    .slice(0, LINES_MAX)
    .map((line) =>
      line.op === 'gap'
        ? h('div', { class: 'diff-gap' }, `${count(line.count)} equal ${line.count === 1 ? 'line' : 'lines'}`)
        : h(
            'div',
            { class: `diff-line ${line.op}` },
            h('span', { class: 'no', 'aria-hidden': 'true' }, String(line.a ?? '')),
            h('span', { class: 'no', 'aria-hidden': 'true' }, String(line.b ?? '')),
            h('span', { class: 'sign' }, signs[line.op]),
            h('span', { class: 'text' }, line.text),
          ),
    );
  return [
    h(
      'h3',
      null,
      `From revision ${count(a.mod_revision)} to ${count(b.mod_revision)}: `,
      h('span', { class: 'added' }, `+${count(added)}`),
      ' ',
      h('span', { class: 'removed' }, `−${count(removed)}`),
    ),
    cut ? notice('info', null, 'Only the beginnings of the values are compared.') : null,
    h('div', { class: 'diff', tabindex: '0', role: 'group', 'aria-label': 'Difference by lines' }, rows),
    shown.length > LINES_MAX
      ? h('p', { class: 'hint' }, `${count(shown.length - LINES_MAX)} more lines are not shown.`)
      : null,
  ];
}
