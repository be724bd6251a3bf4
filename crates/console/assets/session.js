/**
 * The server's settings and the logged-in user.
 */

import { call, setToken } from './api.js';

/** @typedef {import('./permissions.js').Who} Who */

class Session extends EventTarget {
  constructor() {
    super();
    /** The answer of `session`. @type {any} */
    this.info = null;
    /** The user who is logged in; `null` without authentication. @type {string | null} */
    this.user = null;
    /** The permissions of the user; `null` while they are unknown. @type {Who | null} */
    this.who = null;
  }

  /** @param {AbortSignal} [signal] */
  async load(signal) {
    this.info = await call('session', {}, { signal, login: false });
    this.dispatchEvent(new Event('change'));
    return this.info;
  }

  /** Whether the console's server allows operations. */
  get writes() {
    return this.info?.writes === true;
  }

  /** Whether the cluster has users. */
  get hasUsers() {
    return this.info?.authentication === 'on';
  }

  /**
   * Whether the user may operate the cluster. While the permissions are unknown, the cluster decides.
   */
  get isRoot() {
    return this.who === null || this.who.is_root;
  }

  limit(name, otherwise) {
    return this.info?.limits?.[name] ?? otherwise;
  }

  /**
   * Logs in. Returns whether the user has changed.
   *
   * @param {string} user
   * @param {string} password
   */
  async login(user, password) {
    const answer = await call('login', { user, password }, { login: false });
    setToken(answer.token);
    const isOther = this.user !== null && this.user !== answer.user;
    this.user = answer.user;
    this.who = null;
    await Promise.all([this.loadPermissions(), this.loadRest()]);
    this.dispatchEvent(new Event('change'));
    return isOther;
  }

  /** Loads the information that the server returns only to logged-in users. */
  async loadRest() {
    try {
      this.info = await call('session', {}, { login: false });
    } catch {
      // The version and the endpoints stay unknown.
    }
  }

  async loadPermissions() {
    try {
      this.who = await call('whoami', { user: this.user ?? '' }, { login: false });
    } catch {
      // The page then offers every action, and shows the refusals of the cluster.
      this.who = null;
    }
  }

  logout() {
    setToken(null);
    this.user = null;
    this.who = null;
    this.dispatchEvent(new Event('change'));
  }
}

/** The session of the page. */
export const session = new Session();
