/**
 * Reads JSON of any depth safely. Pure functions.
 *
 * The browser's functions that write JSON are recursive, and run out of stack for a value with a few thousand levels. Such
 * a value is shown as text.
 */

/** The maximum nesting depth that is parsed. Hand-written JSON has at most a few dozen levels. */
const DEPTH_MAX = 500;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPENING = new Set([0x5b, 0x7b]);
const CLOSING = new Set([0x5d, 0x7d]);

/**
 * Whether arrays and objects are nested deeper than `most`. The text need not be JSON.
 *
 * @param {string} text
 */
export function isDeep(text, most = DEPTH_MAX) {
  let depth = 0;
  let inString = false;
  for (let at = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (inString) {
      if (code === BACKSLASH) at += 1;
      else if (code === QUOTE) inString = false;
    } else if (code === QUOTE) {
      inString = true;
    } else if (OPENING.has(code)) {
      depth += 1;
      if (depth > most) return true;
    } else if (CLOSING.has(code)) {
      depth -= 1;
    }
  }
  return false;
}

/** Returns whether text looks like an array or an object. @param {string} text */
export function looksLikeJson(text) {
  return /^\s*[[{]/.test(text);
}

/**
 * Parses an array or an object. Returns `undefined` if the text is neither, or is nested too deeply.
 *
 * @param {string} text
 */
export function parseJson(text) {
  if (!looksLikeJson(text) || isDeep(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
