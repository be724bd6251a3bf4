/**
 * Asks for the revision at which keys are shown, given as a number or as a time within the last 15 minutes.
 *
 * The store records no times. The page knows the newest revision at the time of each sample that it has received since it
 * was opened, and looks up the revision for a time in these samples.
 */

import { h, fill } from '../dom.js';
import { clock, count } from '../format.js';
import { now, store } from '../store.js';
import { openDialog } from './dialog.js';
import { button, field } from './ui.js';

/**
 * @param {number} current the revision that is shown; 0 for now
 * @param {(revision: number) => void} onchoose
 */
export function openAsOf(current, onchoose) {
  const newest = store.overview?.cluster.revision ?? null;
  const revision = field(
    'Revision',
    h('input', {
      type: 'number',
      min: '0',
      step: '1',
      inputmode: 'numeric',
      value: current > 0 ? String(current) : (newest ?? ''),
    }),
    newest === null
      ? 'The newest revision is not known.'
      : `The newest revision is ${count(newest)}. Compacted revisions cannot be shown.`,
  );
  const oldest = store.history.oldestMs;
  const time = field('Time', h('input', { type: 'time', step: '1', oninput: () => fromTime() }));
  const found = h('p', { class: 'hint', role: 'status' });
  const explain = () => {
    fill(
      found,
      oldest === null
        ? 'This page has no samples yet.'
        : `The store records no times. This page knows only the revisions since ${clock(oldest)}, while it was open and visible.`,
    );
  };
  const fromTime = () => {
    const at = timeToday(time.input.value);
    if (at === null) {
      explain();
      return;
    }
    const sample = store.history.revisionAt(at);
    if (sample === null) {
      fill(
        found,
        `This page has no sample from before that time.${oldest === null ? '' : ` Its first sample is from ${clock(oldest)}.`}`,
      );
      return;
    }
    revision.input.value = String(sample.revision);
    fill(found, `Revision ${count(sample.revision)} was the newest at ${clock(sample.timeMs)}.`);
  };
  explain();
  const ago = [1, 5, 10].filter((minutes) => oldest !== null && now() - minutes * 60_000 >= oldest);
  const quick = ago.map((minutes) =>
    button(
      `${minutes} min ago`,
      () => {
        time.input.value = clock(now() - minutes * 60_000);
        fromTime();
      },
      { small: true },
    ),
  );
  const form = h(
    'form',
    {
      onsubmit: (event) => {
        event.preventDefault();
        dialog.close();
        onchoose(Math.max(0, Math.floor(Number(revision.input.value) || 0)));
      },
    },
    revision,
    time,
    h('div', { class: 'button-row' }, quick),
    found,
    h(
      'footer',
      null,
      button('Show now', () => {
        dialog.close();
        onchoose(0);
      }),
      h('button', { type: 'submit', class: 'button primary' }, 'Show this revision'),
    ),
  );
  const dialog = openDialog('Keys as of a revision', [form]);
  revision.input.focus();
  revision.input.select();
}

/** Returns the time on today's date, or on yesterday's if it is in the future; `null` if `text` is not a time. */
function timeToday(text) {
  const [hours, minutes, seconds = '0'] = text.split(':');
  if (minutes === undefined) return null;
  const at = new Date(now());
  at.setHours(Number(hours), Number(minutes), Number(seconds), 999);
  return at.getTime() > now() + 1000 ? at.getTime() - 86_400_000 : at.getTime();
}
