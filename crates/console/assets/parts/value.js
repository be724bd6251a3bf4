/**
 * Shows a value as text, JSON, hexadecimal, or the envelope of Kubernetes, and chooses the form that fits the bytes.
 *
 * Only a part of a long value is shown at first, so that the page stays responsive.
 */

import { fromBase64, hexDump, isPlainText, utf8 } from '../bytes.js';
import { fill, h } from '../dom.js';
import { bytes as size, date, clock, count } from '../format.js';
import { isDeep, looksLikeJson, parseJson } from '../json.js';
import { decodeEnvelope, encryptedBy, isEnvelope } from '../kubernetes.js';
import { button, copyButton, facts, notice, segmented } from './ui.js';

/** The characters of text, and the bytes of hexadecimal, that are shown before the reader asks for more. */
const TEXT_FIRST = 64 * 1024;
const HEX_FIRST = 4 * 1024;
/** JSON up to this length is shown in colours. */
const COLOURED_MAX = 48 * 1024;

/** @typedef {'text' | 'json' | 'hex' | 'kubernetes'} Form */

/**
 * Returns the forms that fit the bytes, the best first.
 *
 * @param {Uint8Array} bytes
 * @param {boolean} isTruncated
 * @returns {Form[]}
 */
export function formsOf(bytes, isTruncated) {
  if (isEnvelope(bytes)) return ['kubernetes', 'hex'];
  const text = utf8(isTruncated ? wholeCharacters(bytes) : bytes);
  if (text === null) return ['hex'];
  /** @type {Form[]} */
  const forms = isPlainText(text) ? ['text', 'hex'] : ['hex', 'text'];
  if (parseJson(text) !== undefined) forms.unshift('json');
  return forms;
}

/** Drops an incomplete character at the end. */
function wholeCharacters(bytes) {
  let end = bytes.length;
  while (end > 0 && end > bytes.length - 4 && (bytes[end - 1] & 0xc0) === 0x80) end -= 1;
  return end > 0 && bytes[end - 1] >= 0xc0 ? bytes.subarray(0, end - 1) : bytes;
}

/**
 * Returns the text of a value for a comparison: JSON on several lines, text as it is, else hexadecimal.
 *
 * @param {Uint8Array} bytes
 */
export function comparable(bytes) {
  const text = isEnvelope(bytes) ? null : utf8(bytes);
  if (text === null || !isPlainText(text)) return hexDump(bytes);
  const parsed = parseJson(text);
  return parsed === undefined ? text : JSON.stringify(parsed, null, 2);
}

/**
 * @param {{ value: string | null, size: number | null, truncated: boolean, too_large: boolean }} entry
 */
export function valueView(entry) {
  if (entry.too_large || entry.value === null) {
    const text =
      entry.size === null
        ? 'The value is too large to be shown.'
        : `The value is about ${size(entry.size)}, which is too large to be shown.`;
    return notice(
      'info',
      null,
      `${text} Use `,
      h('code', null, 'quorate ctl get KEY --print-value-only > FILE'),
      '.',
    );
  }
  const value = fromBase64(entry.value);
  const forms = formsOf(value, entry.truncated);
  const body = h('div', { class: 'value-body' });
  const names = { text: 'Text', json: 'JSON', hex: 'Hex', kubernetes: 'Kubernetes' };
  const show = (form) =>
    fill(body, value.length === 0 ? h('p', { class: 'muted' }, 'The value is empty.') : views[form](value));
  show(forms[0]);
  const choice = segmented(
    'Format of the value',
    forms.map((form) => [form, names[form]]),
    forms[0],
    show,
  );
  return h(
    'div',
    { class: 'value' },
    h(
      'div',
      { class: 'value-bar' },
      choice,
      h('span', { class: 'muted' }, size(entry.size ?? value.length)),
      utf8(value) === null ? null : copyButton(() => utf8(value) ?? '', 'the value'),
    ),
    entry.truncated
      ? notice('info', null, `Only the first ${size(value.length)} of ${size(entry.size)} are shown.`)
      : null,
    isDeepJson(value)
      ? notice('info', null, 'The value is nested too deeply to be shown as JSON.')
      : null,
    encryptedBy(value) === null
      ? null
      : notice('info', null, `Kubernetes encrypted this value (${encryptedBy(value)}).`),
    body,
  );
}

function isDeepJson(value) {
  const text = utf8(value);
  return text !== null && looksLikeJson(text) && isDeep(text);
}

/** @type {Record<Form, (value: Uint8Array) => any>} */
const views = {
  text: (value) => textBlock(new TextDecoder('utf-8', { ignoreBOM: true }).decode(value)),
  json: (value) => {
    const text = JSON.stringify(JSON.parse(utf8(value) ?? 'null'), null, 2);
    return text.length > COLOURED_MAX
      ? textBlock(text)
      : h('pre', { class: 'code', tabindex: '0' }, coloured(text));
  },
  hex: (value) => hexBlock(value),
  kubernetes: (value) => kubernetesView(value),
};

/** Shows the start of a text, with a button that shows the rest. */
function textBlock(text) {
  const block = h('pre', { class: 'code', tabindex: '0' }, text.slice(0, TEXT_FIRST));
  if (text.length <= TEXT_FIRST) return block;
  const more = button(`Show all ${count(text.length)} characters`, () => {
    block.textContent = text;
    more.remove();
  });
  return [block, more];
}

function hexBlock(value) {
  const width = matchMedia('(max-width: 560px)').matches ? 8 : 16;
  const block = h(
    'pre',
    { class: 'code hex', tabindex: '0' },
    hexDump(value.subarray(0, HEX_FIRST), 0, width),
  );
  if (value.length <= HEX_FIRST) return block;
  const more = button(`Show all ${size(value.length)}`, () => {
    block.textContent = hexDump(value, 0, width);
    more.remove();
  });
  return [block, more];
}

/** Splits JSON text into elements with a class for each kind of token. */
function coloured(text) {
  const pattern = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;
  const out = [];
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    out.push(text.slice(end, found.index));
    const [all, string, colon, word] = found;
    if (string && colon) out.push(h('span', { class: 'json-name' }, string), colon);
    else out.push(h('span', { class: string ? 'json-string' : word ? 'json-word' : 'json-number' }, all));
    end = found.index + all.length;
  }
  out.push(text.slice(end));
  return out;
}

function kubernetesView(value) {
  const envelope = decodeEnvelope(value);
  if (envelope === null)
    return [notice('info', null, 'The envelope is cut off before the type of the object.'), hexBlock(value)];
  const pairs = (map) =>
    h(
      'ul',
      { class: 'pairs' },
      map.map(([name, text]) => h('li', null, h('code', null, `${name}=${text}`))),
    );
  const created =
    envelope.createdMs === null ? null : `${date(envelope.createdMs)} ${clock(envelope.createdMs)}`;
  /** @type {[string, any][]} */
  const all = [
    ['Kind', envelope.kind],
    ['API version', envelope.apiVersion],
    ['Namespace', envelope.namespace],
    ['Name', envelope.name],
    ['UID', envelope.uid],
    ['Generation', envelope.generation],
    ['Created', created],
    ['Labels', envelope.labels.length > 0 ? pairs(envelope.labels) : null],
    ['Annotations', envelope.annotations.length > 0 ? pairs(envelope.annotations) : null],
  ];
  return [
    facts(all.filter(([, text]) => text !== null && text !== '')),
    h('h3', null, `Encoded object, ${size(envelope.raw.length)}`),
    hexBlock(envelope.raw),
  ];
}
