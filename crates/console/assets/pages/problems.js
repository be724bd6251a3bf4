/**
 * The problems that the server found: what is wrong, what it means, what to do, and the section of the runbook.
 */

import { asApiError, isAbort, stream } from '../api.js';
import { parseKey, toBase64 } from '../bytes.js';
import { fill, h, keyed, setText } from '../dom.js';
import { clock, plural } from '../format.js';
import { icon } from '../parts/icons.js';
import { badge, emptyState, liveText, loading } from '../parts/ui.js';
import { getSetting } from '../settings.js';
import { store } from '../store.js';

const NAMES = { critical: 'Critical', warning: 'Warning', info: 'Note' };

/**
 * One problem as a card, with `show(problem)` for newer texts of the same problem.
 *
 * @param {import('../store.js').Problem} problem
 */
function problemCard(problem) {
  const title = h('h2', null);
  const text = h('p', null);
  const member = store.overview?.members.find((it) => it.id === problem.member);
  const url = safeUrl(problem.runbook_url);
  const runbook = `Runbook: ${problem.runbook ?? 'what to do'}`;
  const element = h(
    'article',
    { class: `problem ${problem.severity}` },
    h('header', null, badge(NAMES[problem.severity] ?? problem.severity, toneOf(problem)), title),
    text,
    h(
      'footer',
      null,
      member ? h('span', { class: 'muted' }, `Member ${member.name || member.id}`) : null,
      url
        ? h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, runbook, icon('external'))
        : null,
    ),
  );
  element.show = (newest) => {
    setText(title, newest.title);
    setText(text, newest.text);
  };
  return element;
}

/**
 * Shows problems as cards. The texts change constantly, because they contain durations. The cards are reused, so that a
 * focused link keeps the focus.
 *
 * @param {Element} list
 * @param {import('../store.js').Problem[]} problems
 */
export function showProblems(list, problems) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  const rows = problems.map((problem) => {
    const kind = `${problem.id}/${problem.member}/${problem.severity}`;
    const ordinal = seen.get(kind) ?? 0;
    seen.set(kind, ordinal + 1);
    return { key: `${kind}/${ordinal}`, problem };
  });
  keyed(
    list,
    rows,
    (row) => row.key,
    (row) => problemCard(row.problem),
    (element, row) => element.show(row.problem),
  );
}

function toneOf(problem) {
  return problem.severity === 'info' ? 'info' : problem.severity;
}

/** Returns a link only if it leads to a web page. */
function safeUrl(text) {
  return typeof text === 'string' && /^https?:\/\//.test(text) ? text : null;
}

/** @param {import('../shell.js').PageContext} context */
export function problemsPage({ signal }) {
  const list = h('div', { class: 'problems' });
  const summary = h('p', { class: 'sub' });
  const live = liveText();
  const note = h('p', { class: 'sub' });
  const element = h(
    'div',
    { class: 'page' },
    h('header', { class: 'page-head' }, h('h1', null, 'Problems'), summary),
    live,
    list,
    note,
  );
  let walk = new AbortController();

  /** Looks for hot keys and large values. The server walks through the keys while the page is open. */
  const findInKeys = async () => {
    walk.abort();
    walk = new AbortController();
    try {
      const request = { prefix: '', separator: toBase64(parseKey(getSetting('separator', '/'))), depth: 1 };
      await stream('keys/prefixes', request, (line) => store.setPrefixProblems(line.problems), walk.signal);
    } catch (error) {
      if (!isAbort(error))
        fill(note, `The check for hot keys and large values failed: ${asApiError(error).message}`);
    }
  };
  const show = () => {
    if (store.overview === null) {
      fill(list, loading('Waiting for the first sample'));
      return;
    }
    const { problems } = store;
    const { unix_ms: at } = store.overview;
    const critical = problems.filter((it) => it.severity === 'critical').length;
    const text =
      problems.length === 0 ? 'No problems' : `${plural(problems.length, 'problem')}, ${critical} critical`;
    setText(summary, `${text}. Checked at ${clock(at)}.`);
    live.say(text);
    if (problems.length === 0) {
      if (!list.querySelector('.empty')) {
        fill(
          list,
          emptyState(
            icon('check'),
            h('p', null, 'The cluster has no known problems.'),
            h(
              'p',
              { class: 'muted' },
              'The console checks leadership, disks, lag, space, compaction, watchers, clocks and certificates.',
            ),
          ),
        );
      }
      return;
    }
    for (const child of list.querySelectorAll(':scope > :not(article)')) child.remove();
    showProblems(list, problems);
  };
  store.addEventListener('sample', show, { signal });
  document.addEventListener('visibilitychange', () => (document.hidden ? walk.abort() : findInKeys()), {
    signal,
  });
  signal.addEventListener('abort', () => walk.abort());
  show();
  findInKeys();
  return { element };
}
