/**
 * Decodes the envelope in which Kubernetes stores objects: the magic `k8s\0`, then the protobuf message
 * `runtime.Unknown` with the type of the object, and the object itself. Pure functions.
 *
 * Only what all objects share is decoded: type, name, namespace, uid, creation, labels and annotations. The fields of
 * each kind are left to tools that have its schema; the page shows them as hexadecimal.
 */

import { utf8 } from './bytes.js';

const MAGIC = [0x6b, 0x38, 0x73, 0x00];
const ENCRYPTED = 'k8s:enc:';
/** The maximum number of fields that are read from one message. Real objects have far fewer. */
const FIELDS_MAX = 10_000;

/**
 * @typedef {object} Envelope
 * @property {string} apiVersion
 * @property {string} kind
 * @property {string | null} name
 * @property {string | null} namespace
 * @property {string | null} uid
 * @property {number | null} generation
 * @property {number | null} createdMs
 * @property {[string, string][]} labels
 * @property {[string, string][]} annotations
 * @property {string} contentType
 * @property {Uint8Array} raw the encoded object
 */

/**
 * Whether bytes start with the magic of the envelope.
 *
 * @param {Uint8Array} bytes
 */
export function isEnvelope(bytes) {
  return MAGIC.every((byte, index) => bytes[index] === byte);
}

/**
 * Returns the provider that encrypted a Kubernetes value, such as `aescbc:v1:key1`; `null` if the value is unencrypted.
 *
 * @param {Uint8Array} bytes
 */
export function encryptedBy(bytes) {
  const head = String.fromCharCode(...bytes.subarray(0, 160));
  if (!head.startsWith(ENCRYPTED)) return null;
  const [provider, version, key] = head.slice(ENCRYPTED.length).split(':');
  return [provider, version, key].filter((part) => part && /^[\w.-]+$/.test(part)).join(':');
}

/**
 * Decodes an envelope. Returns `null` if the bytes are not an envelope, or end before the type.
 *
 * @param {Uint8Array} bytes
 * @returns {Envelope | null}
 */
export function decodeEnvelope(bytes) {
  if (!isEnvelope(bytes)) return null;
  const unknown = fields(bytes.subarray(MAGIC.length));
  const typeMeta = message(unknown, 1);
  if (!typeMeta) return null;
  const raw = bytesOf(unknown, 2) ?? new Uint8Array();
  const meta = message(fields(raw), 1) ?? [];
  const created = message(meta, 8);
  return {
    apiVersion: string(typeMeta, 1) ?? '',
    kind: string(typeMeta, 2) ?? '',
    name: string(meta, 1),
    namespace: string(meta, 3) || null,
    uid: string(meta, 5),
    generation: integer(meta, 7),
    createdMs: created ? (integer(created, 1) ?? 0) * 1000 : null,
    labels: map(meta, 11),
    annotations: map(meta, 12),
    contentType: string(unknown, 4) ?? '',
    raw,
  };
}

/**
 * @typedef {{ number: number, value: number | Uint8Array }} Field
 */

/**
 * Splits a message into its fields. Reading ends at the first malformed field; a last field that is cut off is
 * returned as far as it goes, because long values arrive truncated.
 *
 * @param {Uint8Array} bytes
 * @returns {Field[]}
 */
function fields(bytes) {
  const out = [];
  const cursor = { at: 0 };
  while (cursor.at < bytes.length && out.length < FIELDS_MAX) {
    const tag = varint(bytes, cursor);
    if (tag === null || tag < 8) break;
    const number = Math.floor(tag / 8);
    const type = tag % 8;
    if (type === 0) {
      const value = varint(bytes, cursor);
      if (value === null) break;
      out.push({ number, value });
    } else if (type === 2) {
      const length = varint(bytes, cursor);
      if (length === null) break;
      out.push({ number, value: bytes.subarray(cursor.at, cursor.at + length) });
      cursor.at += length;
    } else if (type === 1 || type === 5) {
      cursor.at += type === 1 ? 8 : 4;
    } else {
      break;
    }
  }
  return out;
}

/** Reads a varint as a number; bits above 2^53 lose precision, which no field that is shown uses. */
function varint(bytes, cursor) {
  let value = 0;
  let scale = 1;
  for (let i = 0; i < 10; i += 1) {
    const byte = bytes[cursor.at];
    if (byte === undefined) return null;
    cursor.at += 1;
    value += (byte & 0x7f) * scale;
    if (byte < 0x80) return value;
    scale *= 128;
  }
  return null;
}

function bytesOf(message, number) {
  const field = message.findLast((it) => it.number === number && it.value instanceof Uint8Array);
  return field ? field.value : null;
}

function message(of, number) {
  const bytes = bytesOf(of, number);
  return bytes ? fields(bytes) : null;
}

function string(message, number) {
  const bytes = bytesOf(message, number);
  return bytes ? utf8(bytes) : null;
}

function integer(message, number) {
  const field = message.findLast((it) => it.number === number && typeof it.value === 'number');
  return field ? field.value : null;
}

function map(message, number) {
  const out = [];
  for (const field of message) {
    if (field.number !== number || !(field.value instanceof Uint8Array)) continue;
    const entry = fields(field.value);
    out.push([string(entry, 1) ?? '', string(entry, 2) ?? '']);
  }
  return out;
}
