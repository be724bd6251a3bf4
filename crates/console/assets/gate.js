/**
 * Covers the page while the user may not see it: before login, after a token has expired, and while the cluster or the
 * console refuses or does not answer.
 *
 * The gate is a modal dialog that fills the window, so it also covers dialogs of the page, and the page below is hidden.
 * The page and its dialogs keep their state, so that a login in the middle of an operation loses no input.
 */

import { asApiError } from './api.js';
import { fill, h, svg } from './dom.js';
import { field } from './parts/ui.js';
import { session } from './session.js';

/** The explanation shown with the login, by the code of the refusal. */
const WHY = {
  token_expired: ['Your login is no longer valid.', 'Log in again to continue where you were.'],
  login_required: [
    'Authentication was turned on in this cluster.',
    'Log in to continue where you were.',
  ],
};

/** The sign of Quorate: three members that are connected. */
export function logo() {
  return svg(
    'svg',
    { class: 'logo', viewBox: '0 0 32 32', 'aria-hidden': 'true' },
    svg('rect', { width: 32, height: 32, rx: 8 }),
    svg('path', { d: 'M16 10.5 10 20.5M16 10.5l6 10M10.5 21.5h11' }),
    svg('circle', { cx: 16, cy: 9.5, r: 3.6 }),
    svg('circle', { cx: 9.5, cy: 21.5, r: 3 }),
    svg('circle', { cx: 22.5, cy: 21.5, r: 3 }),
  );
}

export class Gate {
  /**
   * @param {HTMLElement} app
   * @param {HTMLElement} shell the element of the page below
   */
  constructor(app, shell) {
    this.app = app;
    this.shell = shell;
    /** @type {'hidden' | 'waiting' | 'login'} */
    this.state = 'hidden';
    this.card = h('main', { class: 'gate-card' });
    this.element = h('dialog', { class: 'gate', 'aria-label': 'Access to the cluster' }, this.card);
    this.element.addEventListener('cancel', (event) => event.preventDefault());
    // Some browsers close a dialog anyway when Escape is pressed a second time.
    this.element.addEventListener('close', () => this.state !== 'hidden' && this.element.showModal());
  }

  show(state) {
    this.state = state;
    this.shell.hidden = true;
    if (!this.element.isConnected) this.app.append(this.element);
    if (!this.element.open) this.element.showModal();
  }

  hide() {
    this.state = 'hidden';
    this.shell.hidden = false;
    this.element.close();
    this.element.remove();
  }

  /**
   * Shows that the cluster or the console does not answer, or refuses this page.
   *
   * @param {import('./api.js').ApiError} error
   * @param {string[]} endpoints
   */
  showWaiting(error, endpoints) {
    if (this.state === 'login') return;
    const text = `${error.message}\n${error.advice}\n${endpoints}`;
    if (this.state === 'waiting' && this.text === text) return;
    this.text = text;
    fill(
      this.card,
      head('Quorate console'),
      h(
        'div',
        { class: 'notice critical', role: 'alert' },
        h('strong', null, error.message),
        h('div', null, error.advice ?? 'The page tries again every 2 s.'),
      ),
      endpoints.length > 0
        ? [
            h('p', { class: 'muted' }, 'Endpoints:'),
            h(
              'ul',
              { class: 'plain mono' },
              endpoints.map((it) => h('li', null, it)),
            ),
          ]
        : null,
    );
    this.show('waiting');
  }

  hideWaiting() {
    if (this.state === 'waiting') this.hide();
  }

  /**
   * Shows the login, and resolves after a successful login. The result tells whether the user has changed.
   *
   * @param {import('./api.js').ApiError | null} reason
   * @returns {Promise<boolean>}
   */
  login(reason) {
    return new Promise((resolve) => {
      const user = field(
        'User',
        h('input', {
          type: 'text',
          name: 'user',
          autocomplete: 'username',
          autocapitalize: 'none',
          spellcheck: 'false',
          required: true,
          value: session.user ?? '',
        }),
      );
      const password = field(
        'Password',
        h('input', { type: 'password', name: 'password', autocomplete: 'current-password' }),
      );
      const status = h('div', { role: 'alert' });
      const submit = h('button', { type: 'submit', class: 'button primary block' }, 'Log in');
      const [title, text] = WHY[reason?.code ?? ''] ?? [];
      if (title) {
        fill(
          status,
          h('div', { class: 'notice info' }, h('strong', null, title), h('div', null, text)),
        );
      }
      const onsubmit = async (event) => {
        event.preventDefault();
        submit.disabled = true;
        fill(status);
        try {
          const isOther = await session.login(user.input.value, password.input.value);
          password.input.value = '';
          this.hide();
          resolve(isOther);
        } catch (thrown) {
          const error = asApiError(thrown);
          fill(
            status,
            h(
              'div',
              { class: 'notice critical' },
              h('strong', null, error.message),
              error.advice ? h('div', null, error.advice) : null,
            ),
          );
          submit.disabled = false;
          password.input.select();
        }
      };
      const endpoints = session.info?.endpoints ?? [];
      const refused = session.info?.login_refused ?? null;
      if (refused !== null) {
        fill(
          status,
          h(
            'div',
            { class: 'notice critical' },
            h('strong', null, refused.message),
            h('div', null, refused.advice ?? ''),
          ),
        );
      }
      fill(
        this.card,
        head('Log in to the cluster'),
        status,
        refused === null ? h('form', { onsubmit }, user, password, submit) : null,
        endpoints.length > 0
          ? h(
              'p',
              { class: 'muted small' },
              'Endpoints: ',
              h('span', { class: 'mono' }, endpoints.join(', ')),
            )
          : null,
        h('p', { class: 'muted small' }, 'The login is kept only in this page, and is lost on reload.'),
      );
      this.show('login');
      if (refused === null) (user.input.value === '' ? user : password).input.focus();
    });
  }
}

function head(title) {
  return h('header', { class: 'gate-head' }, logo(), h('h1', null, title));
}
