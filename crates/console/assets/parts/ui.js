/**
 * Small parts that every page uses: buttons, badges, notices, meters, fields and short messages.
 */

import { asApiError } from '../api.js';
import { fill, h, setAttr, setText, uniqueId } from '../dom.js';
import { count } from '../format.js';
import { icon } from './icons.js';

/**
 * @param {string} label
 * @param {() => void} onclick
 * @param {{ kind?: 'primary' | 'danger' | 'quiet' | '', icon?: any, title?: string, disabled?: boolean, small?: boolean }} [options]
 */
export function button(label, onclick, options = {}) {
  const classes = ['button', options.kind ?? '', options.small ? 'small' : ''].filter(Boolean).join(' ');
  return h(
    'button',
    {
      type: 'button',
      class: classes,
      onclick,
      title: options.title ?? null,
      disabled: options.disabled ?? false,
    },
    options.icon ? icon(options.icon) : null,
    label,
  );
}

/**
 * A button that shows only an icon.
 *
 * @param {any} name
 * @param {string} label
 * @param {(event: Event) => void} onclick
 */
export function iconButton(name, label, onclick) {
  return h(
    'button',
    { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick },
    icon(name),
  );
}

/**
 * @param {string} text
 * @param {'' | 'good' | 'warning' | 'critical' | 'info' | 'accent'} [tone]
 */
export function badge(text, tone = '') {
  return h('span', { class: `badge ${tone}` }, text);
}

/**
 * A boxed remark.
 *
 * @param {'info' | 'warning' | 'critical' | 'good'} tone
 * @param {string | null} title
 * @param {...any} body
 */
export function notice(tone, title, ...body) {
  return h(
    'div',
    { class: `notice ${tone}` },
    title ? h('strong', null, title) : null,
    h('div', null, ...body),
  );
}

/**
 * Shows a failure: the server's text, its advice, and a button that tries again.
 *
 * @param {unknown} thrown
 * @param {(() => void) | null} [retry]
 */
export function errorBox(thrown, retry = null) {
  const error = asApiError(thrown);
  const tone = error.code === 'permission_denied' || error.code === 'read_only' ? 'warning' : 'critical';
  const box = notice(
    tone,
    error.message,
    adviceOf(error),
    retry ? h('p', null, button('Try again', retry, { small: true })) : null,
  );
  box.setAttribute('role', 'alert');
  box.dataset.code = error.code;
  return box;
}

function adviceOf(error) {
  if (error.code !== 'changed') return error.advice ?? '';
  const { current } = error.extra;
  const state = current
    ? `It was changed at revision ${count(current.mod_revision)}.`
    : 'It no longer exists.';
  return `${state} Close this dialog and load the key again.`;
}

/** @param {string} [text] */
export function loading(text = 'Loading') {
  return h('p', { class: 'loading' }, h('span', { class: 'spinner', 'aria-hidden': 'true' }), `${text} …`);
}

/** @param {...any} body */
export function emptyState(...body) {
  return h('div', { class: 'empty' }, ...body);
}

/**
 * A labelled input. Returns the wrapper; its input is `.input`.
 *
 * @param {string} label
 * @param {any} control an input, select or textarea
 * @param {string} [hint]
 */
export function field(label, control, hint) {
  const id = control.id || uniqueId('field');
  control.id = id;
  const hintId = `${id}-hint`;
  if (hint) control.setAttribute('aria-describedby', hintId);
  const wrapper = h(
    'div',
    { class: 'field' },
    h('label', { htmlFor: id }, label),
    control,
    hint ? h('p', { class: 'hint', id: hintId }, hint) : null,
  );
  wrapper.input = control;
  return wrapper;
}

/**
 * A labelled check box.
 *
 * @param {string} label
 * @param {boolean} checked
 * @param {(checked: boolean) => void} [onchange]
 */
export function checkbox(label, checked, onchange) {
  const input = h('input', { type: 'checkbox', checked, onchange: () => onchange?.(input.checked) });
  const wrapper = h('label', { class: 'check' }, input, label);
  wrapper.input = input;
  return wrapper;
}

/**
 * A choice between a few values, as a group of radio buttons that look like one bar.
 *
 * @template {string} T
 * @param {string} label
 * @param {[T, string][]} choices values with their labels
 * @param {T} chosen
 * @param {(value: T) => void} onchange
 */
export function segmented(label, choices, chosen, onchange) {
  const name = uniqueId('choice');
  const group = h('div', { class: 'segmented', role: 'radiogroup', 'aria-label': label });
  for (const [value, text] of choices) {
    const input = h('input', {
      type: 'radio',
      name,
      value,
      checked: value === chosen,
      onchange: () => onchange(value),
    });
    group.append(h('label', null, input, h('span', null, text)));
  }
  group.choose = (value) => {
    for (const input of group.querySelectorAll('input')) input.checked = input.value === value;
  };
  return group;
}

/**
 * A bar that shows a part of a whole. Its text stands beside it, so the bar itself is decoration.
 */
export function meter() {
  const bar = h('span', { class: 'meter', 'aria-hidden': 'true' }, h('i', null), h('b', null));
  /** @param {number | null} inner @param {number | null} outer @param {string} tone */
  bar.show = (inner, outer, tone = '') => {
    bar.hidden = outer === null;
    bar.style.setProperty('--inner', String(Math.min(1, inner ?? 0)));
    bar.style.setProperty('--outer', String(Math.min(1, outer ?? 0)));
    setAttr(bar, 'class', `meter ${tone}`);
  };
  return bar;
}

/**
 * A button that copies text.
 *
 * @param {() => string} text
 * @param {string} what
 */
export function copyButton(text, what) {
  return iconButton('copy', `Copy ${what}`, async () => {
    try {
      await navigator.clipboard.writeText(text());
      toast(`Copied ${what}.`);
    } catch {
      toast(`The browser did not allow ${what} to be copied.`, 'warning');
    }
  });
}

/** The maximum number of messages that are shown at once. */
const TOASTS_MAX = 3;
const TOAST_MS = 6000;
/** @type {HTMLElement | null} */
let toasts = null;

/**
 * Shows a message for a few seconds. Screen readers announce it when they are idle.
 *
 * @param {string} text
 * @param {'good' | 'warning' | 'critical'} [tone]
 */
export function toast(text, tone = 'good') {
  if (!toasts) {
    toasts = h('div', { class: 'toasts', role: 'status' });
    document.body.append(toasts);
  }
  while (toasts.children.length >= TOASTS_MAX) toasts.firstChild?.remove();
  // An open dialog makes everything outside it inert, so the message goes into the dialog.
  (document.querySelector('dialog[open]') ?? document.body).append(toasts);
  const item = h('p', { class: `toast ${tone}` }, text);
  toasts.append(item);
  setTimeout(() => item.remove(), TOAST_MS);
}

/**
 * A list of names and values.
 *
 * @param {[string, any][]} pairs
 */
export function facts(pairs) {
  return h(
    'dl',
    { class: 'facts' },
    pairs.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))),
  );
}

/**
 * A table that becomes a list of cards on narrow screens. The explicit roles keep its meaning for screen readers,
 * because the narrow layout does not look like a table.
 *
 * @param {string} label
 * @param {{ label: string, class?: string, title?: string, hidden?: boolean }[]} columns `hidden` labels are only for screen
 *   readers, because the content of the column explains itself
 * @param {string} [classes]
 */
export function table(label, columns, classes = '') {
  const head = columns.map((column) =>
    h(
      'th',
      { scope: 'col', role: 'columnheader', class: column.class ?? null, title: column.title ?? null },
      column.hidden ? h('span', { class: 'visually-hidden' }, column.label) : column.label,
    ),
  );
  const body = h('tbody', { role: 'rowgroup' });
  const element = h(
    'table',
    { class: `table cards ${classes}`, role: 'table', 'aria-label': label },
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, head)),
    body,
  );
  element.body = body;
  /** @param {any[]} cells @param {object} [props] */
  element.row = (cells, props = {}) =>
    h(
      'tr',
      { role: 'row', ...props },
      cells.map((cell, index) =>
        h(
          index === 0 ? 'th' : 'td',
          {
            role: index === 0 ? 'rowheader' : 'cell',
            scope: index === 0 ? 'row' : null,
            class: columns[index].class ?? null,
            'data-label': columns[index].hidden ? '' : columns[index].label,
          },
          // One element for all parts of a cell, because the narrow layout puts the label beside it.
          Array.isArray(cell) && index > 0 ? h('div', null, cell) : cell,
        ),
      ),
    );
  /** @param {any[][]} rows */
  element.fillRows = (rows) =>
    fill(
      body,
      rows.map((cells) => element.row(cells)),
    );
  return element;
}

/**
 * A region that announces changes of its text politely.
 */
export function liveText() {
  const element = h('p', { class: 'visually-hidden', role: 'status' });
  element.say = (text) => setText(element, text);
  return element;
}
