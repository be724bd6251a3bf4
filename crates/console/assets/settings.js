/**
 * The user's settings, such as the theme and the separator of keys. They are kept in localStorage if the browser allows it.
 * Tokens, keys and values are never stored there.
 */

const PREFIX = 'quorate-console-';

/**
 * @param {string} name
 * @param {string} otherwise
 */
export function getSetting(name, otherwise) {
  try {
    return localStorage.getItem(PREFIX + name) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
export function setSetting(name, value) {
  try {
    localStorage.setItem(PREFIX + name, value);
  } catch {
    // The setting lasts until the page is closed.
  }
}

const THEMES = ['system', 'light', 'dark'];

/** The chosen theme: `system`, `light` or `dark`. */
export function theme() {
  const chosen = document.documentElement.dataset.theme ?? 'system';
  return THEMES.includes(chosen) ? chosen : 'system';
}

/** @param {string} name */
export function setTheme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setSetting('theme', name);
}

/** Applies the stored theme. */
export function restoreTheme() {
  const stored = getSetting('theme', 'system');
  if (THEMES.includes(stored)) setTheme(stored);
}

/** Chooses the next theme, and returns its name. */
export function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  setTheme(next);
  return next;
}
