/** The part of `node:assert/strict` that the tests of the page's modules use. */

function fail(message, actual, expected) {
  const shown = (value) => {
    try {
      return JSON.stringify(value)?.slice(0, 2000) ?? String(value);
    } catch {
      return String(value);
    }
  };
  throw new Error(`${message ?? 'an assertion failed'}: ${shown(actual)} is not ${shown(expected)}`);
}

function isSame(one, other) {
  if (Object.is(one, other)) return true;
  if (typeof one !== 'object' || typeof other !== 'object' || one === null || other === null) return false;
  if (Object.getPrototypeOf(one) !== Object.getPrototypeOf(other)) return false;
  if (one instanceof Map || one instanceof Set) return isSame([...one], [...other]);
  const names = Object.keys(one);
  return (
    names.length === Object.keys(other).length &&
    names.every((name) => Object.hasOwn(other, name) && isSame(one[name], other[name]))
  );
}

export default {
  equal(actual, expected, message) {
    if (!Object.is(actual, expected)) fail(message, actual, expected);
  },
  deepEqual(actual, expected, message) {
    if (!isSame(actual, expected)) fail(message, actual, expected);
  },
  ok(value, message) {
    if (!value) fail(message, value, true);
  },
  match(text, pattern, message) {
    if (!pattern.test(text)) fail(message, text, String(pattern));
  },
};
