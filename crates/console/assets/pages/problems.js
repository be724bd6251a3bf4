/**
 * The problems that the server found: what is wrong, what it means, what to do, and the section of the runbook.
 */

import { fill, h, keyed, setText } from '../dom.js';
import { clock, plural } from '../format.js';
import { icon } from '../parts/icons.js';
import { badge, emptyState, liveText, loading } from '../parts/ui.js';
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
    h('header', null, badge(NAMES[problem.severity] ?? problem.severity, toneOf(problem)), h('h2', null, problem.title)),
    h('p', null, problem.text),
    h(
      'footer',
      null,
      member ? h('span', { class: 'muted' }, `Member ${member.name || member.id}`) : null,
      url ? h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, `Runbook: ${problem.runbook ?? 'what to do'}`, icon('external')) : null,
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
  const element = h('div', { class: 'page' }, h('header', { class: 'page-head' }, h('h1', null, 'Problems'), summary), live, list);
  const show = () => {
    if (store.overview === null) {
      fill(list, loading('Waiting for the first sample'));
      return;
    }
    const { problems, unix_ms: at } = store.overview;
    const critical = problems.filter((it) => it.severity === 'critical').length;
    const text = problems.length === 0 ? 'No problems' : `${plural(problems.length, 'problem')}, ${critical} critical`;
    setText(summary, `${text}. Checked at ${clock(at)}.`);
    live.say(text);
    if (problems.length === 0) {
      if (!list.querySelector('.empty')) {
        fill(list, emptyState(icon('check'), h('p', null, 'The cluster has no known problems.'), h('p', { class: 'muted' }, 'The console checks leadership, disks, lag, space, compaction, watchers, clocks and certificates.')));
      }
      return;
    }
    for (const child of list.querySelectorAll(':scope > :not(article)')) child.remove();
    keyed(list, problems, problemKey, problemCard, () => {});
  };
  store.addEventListener('sample', show, { signal });
  show();
  return { element };
}
