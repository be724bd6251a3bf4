/** The part of `node:test` that the tests of the page's modules use. The browser test runs what is registered here. */

/** @type {[string, () => unknown][]} */
const registered = [];

export function test(name, run) {
  registered.push([name, run]);
}

/** Runs all tests. Returns the names of those that passed, and the failures. */
export async function runAll() {
  const passed = [];
  const failed = [];
  for (const [name, run] of registered) {
    try {
      await run();
      passed.push(name);
    } catch (error) {
      failed.push(`${name}: ${error?.stack ?? error}`);
    }
  }
  return { passed, failed };
}
