/**
 * Calls the API of the console's server.
 *
 * - The user's token exists only in a variable of this module, and is lost on reload.
 * - If a call needs a login, the call waits until the user has logged in, and is then sent again, unnoticed by the caller.
 * - Every failure is an [`ApiError`]. Its `code` is stable, and its `message` is the server's text.
 */

/** The time after which an unanswered call fails. */
const TIMEOUT_MS = 30_000;
/** The server sends a line of a stream at least every 15 s. After this time without a line, the connection is dead. */
const SILENCE_MS = 40_000;
/** The maximum length of a line of a stream. */
const LINE_CHARS_MAX = 8 * 1024 * 1024;

/** @type {string | null} */
let token = null;
/** @type {((error: ApiError) => Promise<void>) | null} */
let askLogin = null;
/** @type {((error: ApiError) => void) | null} */
let noteAccessChange = null;
/** Incremented when the user changes, so that no call of one user is sent again as another user. */
let userNumber = 0;

/** The key of the secret in the session storage of this tab, which survives a reload. */
const SECRET = 'quorate-console-secret';

/**
 * Removes the secret from the address of the page, and stores it in the session storage. `quorate console` adds the
 * secret to the address if authentication is off and the console's listener does not restrict access.
 *
 * @returns {boolean} whether the address had a secret
 */
export function takeSecret() {
  if (!location.hash.startsWith('#s=')) return false;
  sessionStorage.setItem(SECRET, location.hash.slice('#s='.length));
  history.replaceState(null, '', location.pathname);
  return true;
}

/** Ends the calls of the previous user that wait for a login. */
export function noteOtherUser() {
  userNumber += 1;
}

/** A failed call. */
export class ApiError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {{ status?: number, grpc?: string | null, advice?: string | null, [extra: string]: any }} [rest]
   */
  constructor(code, message, rest = {}) {
    super(message);
    this.name = 'ApiError';
    this.code = code;
    this.status = rest.status ?? 0;
    this.grpc = rest.grpc ?? null;
    this.advice = rest.advice ?? null;
    /** Additional fields of the error, such as `current` of `changed`. */
    this.extra = rest;
  }
}

/** @param {string | null} value */
export function setToken(value) {
  token = value;
}

/**
 * Sets the function that asks the user to log in, and resolves after a successful login.
 *
 * @param {(error: ApiError) => Promise<void>} handler
 */
export function onLoginNeeded(handler) {
  askLogin = handler;
}

/**
 * Sets the function that is called when authentication was turned off in the cluster.
 *
 * @param {(error: ApiError) => void} handler
 */
export function onAccessChange(handler) {
  noteAccessChange = handler;
}

/** @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === 'AbortError';
}

/**
 * Makes any thrown value an [`ApiError`].
 *
 * @param {unknown} error
 * @returns {ApiError}
 */
export function asApiError(error) {
  if (error instanceof ApiError) return error;
  if (error instanceof DOMException && error.name === 'TimeoutError') {
    return new ApiError('timeout', `The console did not respond within ${TIMEOUT_MS / 1000} s.`, {
      advice: 'Check whether the console process is still running, and whether its machine is overloaded.',
    });
  }
  if (error instanceof TypeError) {
    return new ApiError('disconnected', 'The page cannot reach the console.', {
      advice: 'Check whether the console process is still running. The page keeps trying to reach it.',
    });
  }
  return new ApiError('bug', `The page failed: ${error instanceof Error ? error.message : String(error)}`);
}

/**
 * Calls the API and returns the answer.
 *
 * @param {string} name such as `keys/get`
 * @param {object} [body]
 * @param {{ signal?: AbortSignal, timeoutMs?: number, login?: boolean }} [options] `login: false` makes a call that
 *   needs a login fail instead of asking for it
 * @returns {Promise<any>}
 */
export async function call(name, body = {}, options = {}) {
  const { signal, timeoutMs = TIMEOUT_MS, login = true } = options;
  return withLogin(login, signal, async () => {
    const signals = [AbortSignal.timeout(timeoutMs), ...(signal ? [signal] : [])];
    const response = await send(name, body, AbortSignal.any(signals));
    return response.json();
  });
}

/**
 * Reads a stream of the API line by line, until it ends. Resolves if the server ended it without an error, and rejects
 * if the connection broke. The next line is read only after `onLine` has returned, so a slow page slows the server.
 *
 * @param {string} name
 * @param {object} body
 * @param {(line: any) => void} onLine
 * @param {AbortSignal} signal
 */
export async function stream(name, body, onLine, signal) {
  await withLogin(true, signal, async () => {
    const silence = new AbortController();
    let timer = 0;
    const rearm = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
    };
    rearm();
    try {
      const response = await send(name, body, AbortSignal.any([signal, silence.signal]));
      await readLines(response.body, (line) => {
        rearm();
        if (line.type === 'end' && line.error) throw errorOf(line.error, 0);
        if (line.type !== 'end') onLine(line);
        return line.type === 'end';
      });
    } catch (error) {
      if (silence.signal.aborted && !signal.aborted) throw broken('nothing arrived for 40 s');
      throw error;
    } finally {
      clearTimeout(timer);
    }
  });
}

function broken(why) {
  return new ApiError('disconnected', `The connection to the console broke: ${why}.`);
}

/** Calls `onLine` for each line until it returns true, and fails if the stream ends before that. */
async function readLines(body, onLine) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw broken('the stream ended unexpectedly');
      const lines = (rest + value).split('\n');
      rest = lines.pop() ?? '';
      if (rest.length > LINE_CHARS_MAX) throw broken('a line is too long');
      for (const line of lines) {
        if (line !== '' && onLine(JSON.parse(line))) return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function withLogin(login, signal, attempt) {
  const user = userNumber;
  for (;;) {
    const used = token;
    try {
      return await attempt();
    } catch (error) {
      if (error instanceof ApiError && error.code === 'authentication_changed') noteAccessChange?.(error);
      const needsLogin =
        error instanceof ApiError && (error.code === 'login_required' || error.code === 'token_expired');
      if (!needsLogin || !login || !askLogin) throw error;
      // If another call has led to a new login in the meantime, this call is only sent again.
      if (token === used) {
        token = null;
        await askLogin(error);
      }
      signal?.throwIfAborted();
      if (user !== userNumber) throw new DOMException('Another user has logged in.', 'AbortError');
    }
  }
}

async function send(name, body, signal) {
  const headers = { 'Content-Type': 'application/json', 'X-Quorate-Console': '1' };
  if (token !== null) headers['X-Quorate-Token'] = token;
  const secret = sessionStorage.getItem(SECRET);
  if (secret !== null) headers['X-Quorate-Secret'] = secret;
  const response = await fetch(`api/v1/${name}`, {
    method: 'POST',
    headers,
    body: JSON.stringify(body),
    signal,
    cache: 'no-store',
    credentials: 'omit',
    redirect: 'error',
  });
  if (response.ok) return response;
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // The answer was not sent by the console but by a proxy in front of it.
  }
  if (error) throw errorOf(error, response.status);
  throw new ApiError('unavailable', `The console responded with HTTP status ${response.status}.`, {
    status: response.status,
    advice: 'If there is a proxy in front of the console, check whether it can reach the console.',
  });
}

function errorOf(error, status) {
  return new ApiError(error.code ?? 'cluster', error.message ?? 'The request failed.', { ...error, status });
}
