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
 * One problem as a card.
 *
 * @param {import('../store.js').Problem} problem
 */
export function problemCard(problem) {
  const member = store.overview?.members.find((it) => it.id === problem.member);
  const url = safeUrl(problem.runbook_url);
  return h(
    'article',
    { class: `problem ${problem.severity}` },
    h(
      'header',
      null,
      badge(NAMES[problem.severity] ?? problem.severity, toneOf(problem)),
      h('h2', null, problem.title),
    ),
    h('p', null, problem.text),
    h(
      'footer',
      null,
      member ? h('span', { class: 'muted' }, `Member ${member.name || member.id}`) : null,
      url
        ? h(
            'a',
            { href: url, target: '_blank', rel: 'noopener noreferrer' },
            `Runbook: ${problem.runbook ?? 'what to do'}`,
            icon('external'),
          )
        : null,
    ),
  );
}

function toneOf(problem) {
  return problem.severity === 'info' ? 'info' : problem.severity;
}

/** Returns a link only if it leads to a web page. */
function safeUrl(text) {
  return typeof text === 'string' && /^https?:\/\//.test(text) ? text : null;
}

/** A key for a problem, so that its card is replaced only when its text changes. */
export function problemKey(problem) {
  return [problem.id, problem.member, problem.severity, problem.title, problem.text].join('\n');
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

  /** Looks for hot keys and large values, for which the server walks the keys as long as the page is open. */
  const findInKeys = async () => {
    walk.abort();
    walk = new AbortController();
    try {
      const request = { prefix: '', separator: toBase64(parseKey(getSetting('separator', '/'))), depth: 1 };
      await stream('keys/prefixes', request, (line) => store.setPrefixProblems(line.problems), walk.signal);
    } catch (error) {
      if (!isAbort(error))
        fill(note, `Hot keys and large values were not looked for: ${asApiError(error).message}`);
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
    keyed(list, problems, problemKey, problemCard, () => {});
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
