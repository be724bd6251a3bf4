/**
 * Converts bytes between base64 (the form of the API), arrays, printable text and the fragment of a URL. Pure functions.
 *
 * Keys are arbitrary bytes. Their printable form escapes everything that is not visible text, including characters that
 * change the direction of text, so two different keys never look the same. [`parseKey`] reverses the conversion exactly.
 */

/** Characters that are not shown as they are: controls, separators, joiners, direction marks, private and unassigned. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]/u;
/** Spaces that look like the ordinary space, and invisible fillers. */
const LOOKS_BLANK = /[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u115f\u1160\u3164\uffa0\u2800]/u;

/**
 * @param {string | null | undefined} base64
 * @returns {Uint8Array}
 */
export function fromBase64(base64) {
  const binary = atob(base64 ?? '');
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) out[i] = binary.charCodeAt(i);
  return out;
}

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function toBase64(bytes) {
  let binary = '';
  const step = 8192;
  for (let i = 0; i < bytes.length; i += step) {
    binary += String.fromCharCode(...bytes.subarray(i, i + step));
  }
  return btoa(binary);
}

/**
 * Returns the text of bytes that are valid UTF-8, else `null`.
 *
 * @param {Uint8Array} bytes
 */
export function utf8(bytes) {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

/**
 * Returns whether text can be shown unchanged: it has no control characters except line ends and tabs.
 *
 * @param {string} text
 */
export function isPlainText(text) {
  return !/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text);
}

const hex = (byte) => byte.toString(16).padStart(2, '0');

/**
 * Returns the printable form of a key: visible UTF-8 text, with `\xNN` for all other bytes and `\\` for a backslash.
 *
 * @param {Uint8Array} bytes
 */
export function printable(bytes) {
  let out = '';
  let i = 0;
  while (i < bytes.length) {
    const length = sequenceLength(bytes[i]);
    const part = bytes.subarray(i, i + length);
    const character = length > 0 && part.length === length ? utf8(part) : null;
    if (character === null) {
      out += `\\x${hex(bytes[i])}`;
      i += 1;
    } else {
      if (character === '\\') out += '\\\\';
      else if (HIDDEN.test(character) || LOOKS_BLANK.test(character)) {
        out += [...part].map((byte) => `\\x${hex(byte)}`).join('');
      } else out += character;
      i += length;
    }
  }
  return out;
}

/** The length of the UTF-8 sequence that starts with this byte; 0 if no sequence can start with it. */
function sequenceLength(byte) {
  if (byte < 0x80) return 1;
  if (byte >= 0xc2 && byte < 0xe0) return 2;
  if (byte >= 0xe0 && byte < 0xf0) return 3;
  if (byte >= 0xf0 && byte < 0xf5) return 4;
  return 0;
}

/**
 * Returns the bytes of a printable form. `\xNN`, `\\`, `\n`, `\r` and `\t` are escapes; a backslash before anything
 * else stands for itself.
 *
 * @param {string} text
 * @returns {Uint8Array}
 */
export function parseKey(text) {
  const out = [];
  const encoder = new TextEncoder();
  const pattern = /\\x([0-9a-fA-F]{2})|\\([\\nrt])|[\s\S]/gu;
  const named = { '\\': 92, n: 10, r: 13, t: 9 };
  for (const [all, code, name] of text.matchAll(pattern)) {
    if (code !== undefined) out.push(Number.parseInt(code, 16));
    else if (name !== undefined) out.push(named[name]);
    else out.push(...encoder.encode(all));
  }
  return Uint8Array.from(out);
}

/**
 * Shortens text to `max` characters. The middle is omitted, because both ends of a key matter.
 *
 * @param {string} text
 * @param {number} max
 */
export function shorten(text, max) {
  if (text.length <= max) return text;
  const head = Math.ceil((max - 1) * 0.6);
  const tail = max - 1 - head;
  return `${text.slice(0, head)}…${text.slice(text.length - tail)}`;
}

/**
 * Compares bytes as the store orders keys.
 *
 * @param {Uint8Array} a
 * @param {Uint8Array} b
 */
export function compare(a, b) {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i += 1) {
    if (a[i] !== b[i]) return a[i] - b[i];
  }
  return a.length - b.length;
}

/**
 * @param {Uint8Array} bytes
 * @param {Uint8Array} prefix
 */
export function startsWith(bytes, prefix) {
  return bytes.length >= prefix.length && compare(bytes.subarray(0, prefix.length), prefix) === 0;
}

/**
 * Returns the end of the range of all keys with this prefix. An empty prefix, or one of 0xff bytes only, gives one
 * NUL byte, which means "no end".
 *
 * @param {Uint8Array} prefix
 * @returns {Uint8Array}
 */
export function prefixEnd(prefix) {
  for (let i = prefix.length - 1; i >= 0; i -= 1) {
    if (prefix[i] < 0xff) {
      const end = prefix.slice(0, i + 1);
      end[i] += 1;
      return end;
    }
  }
  return Uint8Array.of(0);
}

/**
 * Encodes bytes for the fragment of a URL: unreserved characters and slashes stay readable.
 *
 * @param {Uint8Array} bytes
 */
export function toFragment(bytes) {
  let out = '';
  for (const byte of bytes) {
    const character = String.fromCharCode(byte);
    out += /[A-Za-z0-9\-._~/:]/.test(character) ? character : `%${hex(byte)}`;
  }
  return out;
}

/**
 * Decodes [`toFragment`].
 *
 * @param {string} text
 * @returns {Uint8Array}
 */
export function fromFragment(text) {
  const out = [];
  for (const [all, code] of text.matchAll(/%([0-9a-fA-F]{2})|[\s\S]/gu)) {
    if (code !== undefined) out.push(Number.parseInt(code, 16));
    else out.push(...new TextEncoder().encode(all));
  }
  return Uint8Array.from(out);
}

/**
 * Formats bytes as lines of offset, hexadecimal and text.
 *
 * @param {Uint8Array} bytes
 * @param {number} [offset] the offset of the first byte
 */
export function hexDump(bytes, offset = 0, width = 16) {
  const lines = [];
  for (let i = 0; i < bytes.length; i += width) {
    const row = [...bytes.subarray(i, i + width)];
    const codes = row.map(hex);
    const left = codes
      .slice(0, width / 2)
      .join(' ')
      .padEnd(width * 1.5 - 1);
    const right = codes
      .slice(width / 2)
      .join(' ')
      .padEnd(width * 1.5 - 1);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${(offset + i).toString(16).padStart(6, '0')}  ${left}  ${right}  ${text}`);
  }
  return lines.join('\n');
}
