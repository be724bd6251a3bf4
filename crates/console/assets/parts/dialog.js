/**
 * Modal dialogs: the confirmation of an operation, and the list of shortcuts.
 *
 * A confirmation names exactly what will happen. While the operation runs, the dialog stays open and shows a failure with
 * the cluster's text, so that the reader can correct the input or cancel.
 */

import { asApiError } from '../api.js';
import { fill, h, uniqueId } from '../dom.js';
import { button, errorBox, field, iconButton, toast } from './ui.js';

/**
 * Opens a dialog and returns its element, with `close()`. Closing removes the dialog and restores the focus.
 *
 * @param {string} title
 * @param {any[]} body
 * @param {{ wide?: boolean, onclose?: () => void }} [options]
 */
export function openDialog(title, body, options = {}) {
  const id = uniqueId('dialog');
  const before = document.activeElement;
  const element = h(
    'dialog',
    { class: `dialog ${options.wide ? 'wide' : ''}`, 'aria-labelledby': id },
    h(
      'header',
      null,
      h('h2', { id }, title),
      iconButton('close', 'Close', () => element.close()),
    ),
    h('div', { class: 'dialog-body' }, body),
  );
  element.addEventListener('close', () => {
    // A message in the dialog stays visible after the dialog is closed.
    const toasts = element.querySelector('.toasts');
    if (toasts) document.body.append(toasts);
    element.remove();
    options.onclose?.();
    if (before instanceof HTMLElement && before.isConnected) before.focus();
  });
  document.body.append(element);
  element.showModal();
  return element;
}

/** Closes all dialogs of the page, because they belong to a user who is no longer logged in. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll('dialog.dialog'))
    /** @type {HTMLDialogElement} */ (dialog).close();
}

/**
 * @typedef {object} Operation
 * @property {string} title such as `Remove member m3`
 * @property {any[]} [body] what will happen, as elements
 * @property {any[]} [fields] inputs of the operation
 * @property {string} action the label of the button, a verb
 * @property {boolean} [danger] whether data or a member is lost
 * @property {string} [typed] a name that the reader must type
 * @property {(report: (text: string) => void) => Promise<any>} run
 * @property {(answer: any) => string} done the message after success
 * @property {(answer: any) => void} [after] runs after success
 */

/**
 * Asks the user to confirm an operation, and then runs it.
 *
 * @param {Operation} operation
 */
export function confirm(operation) {
  const status = h('div', { class: 'dialog-status', role: 'status' });
  const failure = h('div', null);
  const typed = operation.typed
    ? field(
        `Type ${operation.typed} to confirm`,
        h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false' }),
      )
    : null;
  const submit = h(
    'button',
    { type: 'submit', class: `button ${operation.danger ? 'danger' : 'primary'}` },
    operation.action,
  );
  const cancel = button('Cancel', () => dialog.close());
  const check = () => {
    submit.disabled = typed !== null && typed.input.value !== operation.typed;
  };
  typed?.input.addEventListener('input', check);
  check();
  let isRunning = false;
  const run = async (event) => {
    event.preventDefault();
    if (isRunning || submit.disabled) return;
    isRunning = true;
    fill(failure);
    fill(status, 'Running …');
    submit.disabled = true;
    try {
      const answer = await operation.run((text) => fill(status, text));
      dialog.close();
      toast(operation.done(answer));
      operation.after?.(answer);
    } catch (error) {
      fill(status);
      fill(failure, errorBox(asApiError(error)));
      check();
    } finally {
      isRunning = false;
    }
  };
  const form = h(
    'form',
    { onsubmit: run },
    operation.body ?? [],
    operation.fields ?? [],
    typed,
    failure,
    status,
    h('footer', null, cancel, submit),
  );
  const dialog = openDialog(operation.title, [form]);
  const first = form.querySelector('input, textarea, select');
  (first ?? (operation.danger ? cancel : submit)).focus();
  return dialog;
}

/**
 * Shows the shortcuts.
 *
 * @param {[string, string][]} shortcuts
 */
export function showShortcuts(shortcuts) {
  const keys = (text) => text.split(' ').map((key) => h('kbd', null, key));
  const rows = [
    ...shortcuts,
    ['← → ↑ ↓', 'in the tree of keys: move, open and close'],
    ['← →', 'in a chart: move the time'],
  ];
  openDialog('Keyboard shortcuts', [
    h(
      'dl',
      { class: 'shortcuts' },
      rows.map(([key, text]) => h('div', null, h('dt', null, keys(key)), h('dd', null, text))),
    ),
  ]);
}
