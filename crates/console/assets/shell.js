/**
 * The frame around every page: navigation, the state of the data, and the page selected by the URL.
 *
 * A page is a function that receives `{ route, signal }` and returns its element, with an optional `navigate` for changes
 * of the query. The signal is aborted when the page is left; calls, streams and listeners of the page end with it.
 */

import { h, setAttr, setText } from './dom.js';
import { logo } from './gate.js';
import { clock, count, span } from './format.js';
import { clusterPage } from './pages/cluster.js';
import { keysPage } from './pages/keys.js';
import { sizesPage } from './pages/sizes.js';
import { watchPage } from './pages/watch.js';
import { leasesPage } from './pages/leases.js';
import { problemsPage } from './pages/problems.js';
import { operatePage } from './pages/operate.js';
import { accessPage } from './pages/access.js';
import { showShortcuts } from './parts/dialog.js';
import { icon } from './parts/icons.js';
import { iconButton, toast } from './parts/ui.js';
import { currentRoute, go, link, listen } from './router.js';
import { session } from './session.js';
import { nextTheme, theme } from './settings.js';
import { addShortcut, listShortcuts, startShortcuts } from './shortcuts.js';
import { store } from './store.js';

/**
 * @typedef {{ route: import('./router.js').Route, signal: AbortSignal }} PageContext
 * @typedef {{ element: HTMLElement, navigate?: (route: import('./router.js').Route) => void }} Page
 */

/** The pages by path. @type {Record<string, { title: string, section: string, open: (context: PageContext) => Page }>} */
const PAGES = {
  cluster: { title: 'Cluster', section: 'cluster', open: clusterPage },
  keys: { title: 'Keys', section: 'keys', open: keysPage },
  'keys/sizes': { title: 'Key sizes', section: 'keys', open: sizesPage },
  'keys/watch': { title: 'Watch', section: 'keys', open: watchPage },
  leases: { title: 'Leases', section: 'leases', open: leasesPage },
  problems: { title: 'Problems', section: 'problems', open: problemsPage },
  operate: { title: 'Operate', section: 'operate', open: operatePage },
  'operate/access': { title: 'Users and roles', section: 'operate', open: accessPage },
};

/** The entries of the navigation. @type {[string, string, any, string][]} */
const SECTIONS = [
  ['cluster', 'Cluster', 'cluster', 'c'],
  ['keys', 'Keys', 'keys', 'k'],
  ['leases', 'Leases', 'leases', 'l'],
  ['problems', 'Problems', 'problems', 'p'],
  ['operate', 'Operate', 'operate', 'o'],
];

const THEME_ICONS = { system: 'system', light: 'sun', dark: 'moon' };

export class Shell {
  constructor() {
    this.onLogout = () => {};
    this.path = '';
    /** @type {Page | null} */
    this.page = null;
    this.abort = new AbortController();
    this.build();
  }

  build() {
    this.main = h('main', { id: 'content', tabindex: '-1' });
    this.banner = h('div', { class: 'banner', role: 'alert', hidden: true });
    this.live = h('p', { class: 'live' }, h('i', { 'aria-hidden': 'true' }), h('span', null, 'Connecting'));
    this.problemCount = h('span', { class: 'count', hidden: true });
    this.links = new Map();
    const items = SECTIONS.map(([path, label, image]) => {
      const anchor = h(
        'a',
        { href: link(path), onclick: () => this.setMenu(false) },
        icon(image),
        h('span', null, label),
      );
      if (path === 'problems') anchor.append(this.problemCount);
      this.links.set(path, anchor);
      return h('li', null, anchor);
    });
    this.clusterName = h('span', { class: 'brand-sub mono' });
    this.userRow = h('div', { class: 'side-user' });
    this.themeButton = iconButton(THEME_ICONS[theme()], 'Theme', () => this.changeTheme());
    this.menuButton = h(
      'button',
      {
        type: 'button',
        class: 'icon-button menu-button',
        'aria-label': 'Navigation',
        'aria-expanded': 'false',
        'aria-controls': 'navigation',
        onclick: () => this.setMenu(!this.menuIsOpen),
      },
      icon('menu'),
    );
    const help = h(
      'button',
      {
        type: 'button',
        class: 'icon-button',
        'aria-label': 'Keyboard shortcuts (?)',
        title: 'Keyboard shortcuts (?)',
        onclick: () => showShortcuts(listShortcuts()),
      },
      '?',
    );
    this.versionText = h('span', { class: 'muted small' });
    this.side = h(
      'div',
      { class: 'side', id: 'navigation' },
      h('nav', { 'aria-label': 'Pages' }, h('ul', null, items)),
      h(
        'footer',
        { class: 'side-foot' },
        this.live,
        this.userRow,
        h('div', { class: 'side-tools' }, this.themeButton, help, this.versionText),
      ),
    );
    this.head = h(
      'header',
      { class: 'brand' },
      this.menuButton,
      h(
        'a',
        { class: 'brand-name', href: link('cluster') },
        logo(),
        h('span', null, h('strong', null, 'Quorate'), this.clusterName),
      ),
    );
    const skip = h('a', { class: 'skip', href: '#content' }, 'Skip to the content');
    skip.addEventListener('click', (event) => {
      // The fragment names the page, so the link must not change it.
      event.preventDefault();
      this.main.focus();
    });
    this.element = h(
      'div',
      { class: 'shell' },
      skip,
      h('div', { class: 'rail' }, this.head, this.side),
      h('div', { class: 'view' }, this.banner, this.main),
    );
  }

  /** Starts to follow the URL. */
  open() {
    session.addEventListener('change', () => this.showUser());
    store.addEventListener('state', () => this.showState());
    store.addEventListener('sample', () => this.showSample());
    startShortcuts();
    for (const [path, label, , key] of SECTIONS)
      addShortcut(`g ${key}`, `open ${label}`, () => go(link(path)));
    addShortcut('t', 'change the theme', () => this.changeTheme());
    addShortcut('?', 'show this list', () => showShortcuts(listShortcuts()));
    listen((route) => this.show(route, true));
    this.element.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.menuIsOpen) {
        this.setMenu(false);
        this.menuButton.focus();
      }
    });
    this.showUser();
    this.show(currentRoute(), false);
  }

  /** Leaves the page, and removes all of its elements from the document. */
  close() {
    this.abort.abort();
    this.page = null;
    this.path = '';
    this.main.replaceChildren();
  }

  /** Opens the page of the URL again from scratch. */
  reopen() {
    this.close();
    this.show(currentRoute(), false);
  }

  /**
   * @param {import('./router.js').Route} route
   * @param {boolean} moveFocus
   */
  show(route, moveFocus) {
    const path = Object.hasOwn(PAGES, route.path) ? route.path : 'cluster';
    if (path === this.path && this.page?.navigate) {
      this.page.navigate(route);
      return;
    }
    this.abort.abort();
    this.abort = new AbortController();
    this.path = path;
    const { open, section } = PAGES[path];
    this.page = open({ route, signal: this.abort.signal });
    this.main.replaceChildren(this.page.element);
    setAttr(this.main, 'data-page', path);
    for (const [name, anchor] of this.links)
      setAttr(anchor, 'aria-current', name === section ? 'page' : null);
    this.showTitle();
    this.setMenu(false);
    if (moveFocus) {
      scrollTo(0, 0);
      this.main.focus({ preventScroll: true });
    }
  }

  showTitle() {
    const problems = this.urgent ?? 0;
    document.title = `${problems > 0 ? `(${problems}) ` : ''}${PAGES[this.path]?.title ?? ''} · Quorate`;
  }

  setMenu(isOpen) {
    this.menuIsOpen = isOpen;
    this.element.classList.toggle('menu-open', isOpen);
    setAttr(this.menuButton, 'aria-expanded', String(isOpen));
  }

  changeTheme() {
    const name = nextTheme();
    this.themeButton.replaceChildren(icon(THEME_ICONS[name]));
    toast(`Theme: ${name === 'system' ? 'as in the system' : name}.`);
  }

  showUser() {
    setText(this.versionText, session.info?.version ? `v${session.info.version}` : '');
    if (session.user === null) {
      this.userRow.replaceChildren(
        h('span', { class: 'muted' }, session.hasUsers ? 'Not logged in' : 'No authentication'),
      );
      return;
    }
    const roles =
      session.who === null ? '' : session.who.is_root ? 'root' : session.who.roles.join(', ') || 'no roles';
    this.userRow.replaceChildren(
      icon('user'),
      h(
        'span',
        { class: 'who' },
        h('strong', null, session.user),
        roles === session.user ? null : h('span', { class: 'muted' }, roles),
      ),
      h('button', { type: 'button', class: 'link', onclick: () => this.onLogout() }, 'Log out'),
    );
  }

  showSample() {
    const { problems } = store;
    const { cluster } = store.overview;
    setText(this.clusterName, cluster.id ?? '');
    const urgent = problems.filter((it) => it.severity !== 'info').length;
    this.urgent = urgent;
    this.problemCount.hidden = problems.length === 0;
    setText(this.problemCount, count(problems.length));
    const isCritical = problems.some((it) => it.severity === 'critical');
    setAttr(this.problemCount, 'class', `count ${isCritical ? 'critical' : urgent > 0 ? 'warning' : ''}`);
    setAttr(this.menuButton, 'data-alert', isCritical ? 'critical' : urgent > 0 ? 'warning' : null);
    this.showTitle();
  }

  /** Shows whether the data is current. */
  showState() {
    const age = store.ageMs;
    const text = store.failure?.message ?? 'No new sample has arrived';
    const stale = store.isStale;
    const failing = store.failure !== null && store.overview === null;
    if (stale || failing) {
      const since = stale ? `No data since ${clock(store.sampledAt)}.` : '';
      this.showBanner('critical', `${since} ${text}`.trim(), store.failure?.advice ?? null);
    } else if (store.clockStands) {
      this.showBanner(
        'warning',
        'The clock of the console has stopped.',
        'Rates and ages may be wrong until it runs again.',
      );
    } else {
      this.banner.hidden = true;
    }
    this.element.classList.toggle('stale', stale);
    setAttr(this.live, 'class', `live ${stale || failing ? 'bad' : store.overview === null ? '' : 'good'}`);
    const every = store.intervalMs / 1000;
    setText(
      this.live.lastChild,
      stale
        ? `No data for ${span((age ?? 0) / 1000)}`
        : failing
          ? 'No data'
          : store.overview === null
            ? 'Connecting'
            : `Live, every ${every} s`,
    );
  }

  /** Shows a banner. Its text does not change with every second, because each change is announced. */
  showBanner(tone, title, advice) {
    const text = `${title} ${advice ?? ''}`;
    setAttr(this.banner, 'class', `banner ${tone}`);
    if (this.banner.hidden || this.bannerText !== text) {
      this.bannerText = text;
      this.banner.replaceChildren(h('strong', null, title), ` ${advice ?? ''}`);
    }
    this.banner.hidden = false;
  }
}
