/**
 * Starts the page: reads the session, shows the login if the cluster has users, and then shows the shell and its pages.
 */

import { ApiError, asApiError, noteOtherUser, onAccessChange, onLoginNeeded, takeSecret } from './api.js';
import { Gate } from './gate.js';
import { closeDialogs } from './parts/dialog.js';
import { toast } from './parts/ui.js';
import { session } from './session.js';
import { restoreTheme } from './settings.js';
import { Shell } from './shell.js';
import { store } from './store.js';

/** The time between two attempts to reach a cluster that does not answer. */
const RETRY_MS = 2000;
/** The codes with which the server refuses the whole page. No call succeeds until the cause is removed. */
const REFUSALS = new Set(['authentication_off', 'refused_host', 'refused_origin', 'missing_header']);

const app = /** @type {HTMLElement} */ (document.getElementById('app'));
const shell = new Shell();
const gate = new Gate(app, shell.element);

/** Resolves when the page can show the cluster to its user. */
async function enter() {
  for (;;) {
    try {
      const info = await session.load();
      if (info.authentication === 'on') {
        await askLogin(null);
        return;
      }
      if (info.authentication === 'off') {
        await session.loadPermissions();
        return;
      }
      gate.showWaiting(
        new ApiError('unavailable', 'No member of the cluster is responding.', {
          advice: 'Check the endpoints with which the console was started. The page tries again every 2 s.',
        }),
        info.endpoints ?? [],
      );
    } catch (error) {
      gate.showWaiting(asApiError(error), []);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

/** @type {Promise<void> | null} */
let asking = null;

/**
 * Shows the login once, even if several calls wait for it. The page below keeps its state, and continues after the login.
 * If another user logs in, everything that the previous user saw is discarded.
 *
 * @param {ApiError | null} reason
 */
function askLogin(reason) {
  asking ??= gate
    .login(reason)
    .then((isOther) => {
      if (isOther) {
        noteOtherUser();
        closeDialogs();
        store.clear();
        shell.reopen();
      }
    })
    .finally(() => {
      asking = null;
    });
  return asking;
}

/** @type {Promise<void> | null} */
let changing = null;

/** Starts again without a user, because authentication was turned off in the cluster. */
function enterAgain() {
  changing ??= (async () => {
    noteOtherUser();
    session.logout();
    closeDialogs();
    store.clear();
    shell.close();
    await enter();
    gate.hideWaiting();
    shell.reopen();
    toast('Authentication was turned off in this cluster.');
  })().finally(() => {
    changing = null;
  });
}

async function start() {
  takeSecret();
  addEventListener('hashchange', () => {
    if (takeSecret()) location.reload();
  });
  restoreTheme();
  onLoginNeeded(askLogin);
  onAccessChange(enterAgain);
  store.addEventListener('sample', () => {
    // The other listeners see the sample first.
    if (session.user !== null && store.overview?.authentication === 'off') queueMicrotask(enterAgain);
  });
  shell.onLogout = () => {
    session.logout();
    closeDialogs();
    store.clear();
    shell.close();
    askLogin(null).then(() => shell.reopen());
  };
  await enter();
  app.append(shell.element);
  gate.hide();
  store.addEventListener('state', () => {
    if (store.failure && REFUSALS.has(store.failure.code)) gate.showWaiting(store.failure, []);
    else gate.hideWaiting();
  });
  store.start();
  shell.open();
}

start();
