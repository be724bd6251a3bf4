/**
 * Shows the changes of a prefix as they happen, with a pause and a filter.
 *
 * The newest `EVENTS_MAX` events are kept. Events that do not fit, or that arrive faster than they can be shown, are
 * counted as dropped, so memory use is bounded. After the connection breaks, the watch continues at the revision after
 * the last event.
 */

import { asApiError, isAbort, stream } from '../api.js';
import {
  fromBase64,
  fromFragment,
  isPlainText,
  parseKey,
  printable,
  shorten,
  toBase64,
  toFragment,
  utf8,
} from '../bytes.js';
import { fill, h, setText } from '../dom.js';
import { bytes as size, clock, count, plural } from '../format.js';
import { keysTabs } from '../parts/tabs.js';
import { badge, button, emptyState, errorBox, notice, segmented } from '../parts/ui.js';
import { link, replace } from '../router.js';
import { addShortcut } from '../shortcuts.js';
import { now } from '../store.js';

const EVENTS_MAX = 300;
const PREVIEW_BYTES = 256;
const PREVIEW_CHARS = 160;
const RETRY_FIRST_MS = 1000;
const RETRY_MAX_MS = 10_000;

/** @param {import('../shell.js').PageContext} context */
export function watchPage({ route, signal }) {
  const page = new WatchPage(route.query.get('prefix') ?? '');
  const remove = addShortcut('p', 'pause or continue the watch', () => page.togglePause());
  const focus = addShortcut('/', 'type a filter', () => page.filterInput.focus());
  signal.addEventListener('abort', () => {
    page.stop();
    remove();
    focus();
  });
  page.start();
  return { element: page.element };
}

class WatchPage {
  /** @param {string} prefix as in the URL */
  constructor(prefix) {
    this.prefix = prefix;
    this.kind = 'all';
    this.filter = '';
    this.paused = false;
    /** Events that have not been shown yet, oldest first. @type {any[]} */
    this.waiting = [];
    this.counts = { received: 0, dropped: 0, hidden: 0 };
    this.frame = 0;
    this.run = new AbortController();
    this.build();
  }

  build() {
    this.prefixInput = h('input', {
      type: 'search',
      class: 'mono',
      placeholder: 'All keys',
      'aria-label': 'Prefix to watch',
      spellcheck: 'false',
      value: printable(fromFragment(this.prefix)),
      onchange: () => this.changePrefix(),
    });
    this.filterInput = h('input', {
      type: 'search',
      placeholder: 'Filter keys and values',
      'aria-label': 'Filter of keys and values',
      spellcheck: 'false',
      oninput: () => this.applyFilter(),
    });
    this.pauseButton = button('Pause', () => this.togglePause(), { icon: 'pause' });
    this.tabs = keysTabs('keys/watch', this.prefix);
    this.state = h('p', { class: 'sub', role: 'status' });
    this.numbers = h('p', { class: 'sub' });
    this.problem = h('div', null);
    this.list = h('ol', { class: 'events card', 'aria-label': 'Changes, newest first', hidden: true });
    this.empty = emptyState(
      h('p', null, 'No changes yet.'),
      h('p', { class: 'muted' }, 'Changes appear here as they happen.'),
    );
    this.element = h(
      'div',
      { class: 'page' },
      h('header', { class: 'page-head' }, h('h1', null, 'Keys'), this.tabs),
      h(
        'div',
        { class: 'toolbar' },
        h('div', { class: 'grow' }, this.prefixInput),
        h('div', { class: 'grow' }, this.filterInput),
        segmented(
          'Type of change',
          [
            ['all', 'All'],
            ['put', 'Puts'],
            ['delete', 'Deletes'],
          ],
          this.kind,
          (kind) => {
            this.kind = kind;
            this.applyFilter();
          },
        ),
        this.pauseButton,
        button('Clear', () => this.clear()),
      ),
      h('div', { class: 'line' }, this.state, this.numbers),
      this.problem,
      this.empty,
      this.list,
    );
  }

  changePrefix() {
    this.prefix = toFragment(parseKey(this.prefixInput.value));
    replace(link('keys/watch', { prefix: this.prefix }));
    const tabs = keysTabs('keys/watch', this.prefix);
    this.tabs.replaceWith(tabs);
    this.tabs = tabs;
    this.clear();
    this.start();
  }

  stop() {
    this.run.abort();
    cancelAnimationFrame(this.frame);
  }

  /** Watches until the user leaves the page. Reconnects after failures. */
  async start() {
    this.run.abort();
    this.run = new AbortController();
    const { signal } = this.run;
    let next = 0;
    let wait = RETRY_FIRST_MS;
    fill(this.problem);
    while (!signal.aborted) {
      setText(this.state, 'Connecting …');
      try {
        const request = {
          prefix: toBase64(fromFragment(this.prefix)),
          start_revision: next,
          value_bytes: PREVIEW_BYTES,
          previous: false,
        };
        await stream(
          'keys/watch',
          request,
          (line) => {
            if (line.type === 'created') {
              wait = RETRY_FIRST_MS;
              fill(this.problem);
              setText(this.state, `Watching since revision ${count(next || line.revision)}`);
            }
            if (line.type === 'dropped') this.drop(line);
            if (line.type === 'events') this.receive(line.events);
            if (line.revision) next = line.revision + 1;
            this.showSoon();
          },
          signal,
        );
      } catch (thrown) {
        if (isAbort(thrown) || signal.aborted) return;
        const error = asApiError(thrown);
        fill(
          this.problem,
          errorBox(error, () => this.start()),
        );
        if (error.code === 'permission_denied' || error.code === 'bad_request') {
          setText(this.state, 'Not watching');
          return;
        }
        // Changes up to the compacted revision are lost to this watch, which continues with the newest changes.
        if (error.code === 'compacted') next = 0;
      }
      setText(this.state, `Not connected; trying again in ${wait / 1000} s`);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(RETRY_MAX_MS, wait * 2);
    }
  }

  /** Counts events that the server could not send. */
  drop(line) {
    this.counts.dropped += line.count ?? 1;
    if (line.reason) fill(this.problem, notice('warning', 'Changes are missing here.', line.reason));
  }

  receive(events) {
    const at = now();
    for (const event of events) {
      this.counts.received += 1;
      const shown = describe(event, at);
      if (this.matches(shown)) this.waiting.push(shown);
      else this.counts.hidden += 1;
    }
    const excess = this.waiting.length - EVENTS_MAX;
    if (excess > 0) {
      this.waiting.splice(0, excess);
      this.counts.dropped += excess;
    }
  }

  matches({ event, key, preview }) {
    if (this.kind !== 'all' && event.type !== this.kind) return false;
    return (
      this.filter === '' ||
      key.toLowerCase().includes(this.filter) ||
      preview.toLowerCase().includes(this.filter)
    );
  }

  showSoon() {
    if (this.frame === 0) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.show();
      });
    }
  }

  show() {
    if (!this.paused && this.waiting.length > 0) {
      const items = this.waiting.map(eventItem).reverse();
      this.waiting = [];
      this.list.prepend(...items);
      while (this.list.children.length > EVENTS_MAX) {
        this.list.lastChild.remove();
        this.counts.dropped += 1;
      }
    }
    const { received, dropped, hidden } = this.counts;
    const parts = [plural(received, 'change')];
    if (hidden > 0) parts.push(`${count(hidden)} filtered out`);
    if (dropped > 0) parts.push(`${count(dropped)} dropped`);
    if (this.paused) parts.push(`${count(this.waiting.length)} waiting`);
    setText(this.numbers, parts.join(' · '));
    this.empty.hidden = this.list.children.length > 0;
    this.list.hidden = !this.empty.hidden;
  }

  applyFilter() {
    this.filter = this.filterInput.value.trim().toLowerCase();
    for (const item of this.list.children) item.hidden = !this.matches(item.shown);
  }

  togglePause() {
    this.paused = !this.paused;
    const next = button(this.paused ? 'Continue' : 'Pause', () => this.togglePause(), {
      icon: this.paused ? 'play' : 'pause',
      kind: this.paused ? 'primary' : '',
    });
    const hadFocus = document.activeElement === this.pauseButton;
    this.pauseButton.replaceWith(next);
    this.pauseButton = next;
    if (hadFocus) next.focus();
    this.show();
  }

  clear() {
    this.list.replaceChildren();
    this.waiting = [];
    this.counts = { received: 0, dropped: 0, hidden: 0 };
    this.show();
  }
}

function describe(event, at) {
  const key = shorten(printable(fromBase64(event.key).subarray(0, 2048)), 400);
  return { event, key, preview: event.type === 'put' ? preview(event) : '', at };
}

/** The start of a value on one line. */
function preview(event) {
  const bytes = fromBase64(event.value).subarray(0, PREVIEW_BYTES);
  const text = utf8(bytes);
  const shown = text !== null && isPlainText(text) ? text.replace(/\s+/g, ' ') : printable(bytes);
  return shorten(shown, PREVIEW_CHARS);
}

function eventItem(shown) {
  const { event, key, preview: text, at } = shown;
  const isCreation = event.type === 'put' && event.version === 1;
  const label =
    event.type === 'delete'
      ? badge('delete', 'critical')
      : isCreation
        ? badge('create', 'good')
        : badge('put', 'info');
  const item = h(
    'li',
    null,
    label,
    h('a', { class: 'mono key', href: link('keys', { key: toFragment(fromBase64(event.key)) }) }, key),
    h('span', { class: 'mono preview' }, text),
    h(
      'span',
      { class: 'aside' },
      event.type === 'put' ? `${size(event.size)} · ` : '',
      `rev ${count(event.mod_revision)} · ${clock(at)}`,
    ),
  );
  item.shown = shown;
  return item;
}
