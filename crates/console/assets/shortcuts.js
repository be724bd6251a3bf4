/**
 * Keyboard shortcuts. A shortcut is one key, or two keys in a row such as `g` and `k`.
 *
 * Shortcuts have no effect while the user types, while a dialog is open, or with a modifier key.
 */

/** The maximum time between the two keys of a shortcut. */
const SEQUENCE_MS = 1200;

/** @type {Map<string, { text: string, run: () => void }>} */
const shortcuts = new Map();
let first = '';
let firstAt = 0;

/**
 * Adds a shortcut, and returns a function that removes it.
 *
 * @param {string} keys such as `?` or `g k`
 * @param {string} text what it does, for the list
 * @param {() => void} run
 */
export function addShortcut(keys, text, run) {
  const entry = { text, run };
  shortcuts.set(keys, entry);
  return () => {
    if (shortcuts.get(keys) === entry) shortcuts.delete(keys);
  };
}

/** Returns the active shortcuts, as pairs of keys and text. */
export function listShortcuts() {
  return [...shortcuts].map(([keys, { text }]) => /** @type {[string, string]} */ ([keys, text]));
}

export function startShortcuts() {
  addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isTyping(event.target) || document.querySelector('dialog[open], .gate')) return;
    const isFollowing = first !== '' && event.timeStamp - firstAt < SEQUENCE_MS;
    const keys = isFollowing ? `${first} ${event.key}` : event.key;
    first = '';
    const shortcut = shortcuts.get(keys);
    if (shortcut) {
      event.preventDefault();
      shortcut.run();
    } else if (!isFollowing && [...shortcuts.keys()].some((it) => it.startsWith(`${event.key} `))) {
      first = event.key;
      firstAt = event.timeStamp;
    }
  });
}

function isTyping(target) {
  return target instanceof HTMLElement && target.matches('input, textarea, select, [contenteditable]');
}
