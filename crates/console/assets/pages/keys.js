/**
 * Browses the keys: as a tree by separator or as a flat list, page by page, filtered by prefix, now or as of a revision.
 *
 * The URL names the prefix, the form, the revision and the key that is shown. At most `ENTRIES_MAX` entries are in the
 * page, and only the visible rows are in the document.
 */

import { asApiError, call, isAbort } from '../api.js';
import { fromBase64, fromFragment, parseKey, printable, shorten, toBase64, toFragment } from '../bytes.js';
import { fill, h, setAttr, setText } from '../dom.js';
import { bytes as size, count, plural } from '../format.js';
import { openAsOf } from '../parts/as_of.js';
import { icon } from '../parts/icons.js';
import { keyDetail } from '../parts/key_detail.js';
import { keysTabs } from '../parts/tabs.js';
import { createKey } from '../parts/key_edit.js';
import { rowList } from '../parts/rows.js';
import { button, emptyState, errorBox, segmented, toast } from '../parts/ui.js';
import { go, link, replace } from '../router.js';
import { session } from '../session.js';
import { getSetting, setSetting } from '../settings.js';
import { addShortcut } from '../shortcuts.js';
import { ENTRIES_MAX, Tree } from '../tree.js';

const PAGE = 100;
const ROW_HEIGHT = 30;
/** The maximum length of a name in a row. The detail pane shows the whole key. */
const NAME_MAX = 200;
/** The maximum number of nested prefixes without siblings that are opened automatically. */
const CHAIN_MAX = 8;
const TYPING_MS = 300;

/** @param {import('../shell.js').PageContext} context */
export function keysPage(context) {
  const page = new KeysPage(context);
  return { element: page.element, navigate: (route) => page.navigate(route) };
}

/** Reads the state of the page from the query of the URL. */
function stateOf(query) {
  return {
    prefix: query.get('prefix') ?? '',
    view: query.get('view') === 'list' ? 'list' : 'tree',
    at: Math.max(0, Number.parseInt(query.get('at') ?? '0', 10) || 0),
    key: query.get('key') ?? null,
  };
}

class KeysPage {
  /** @param {import('../shell.js').PageContext} context */
  constructor({ route, signal }) {
    this.signal = signal;
    this.state = stateOf(route.query);
    this.separator = getSetting('separator', '/');
    this.loads = new AbortController();
    this.build();
    const shortcuts = [
      addShortcut('/', 'type a prefix', () => this.prefixInput.focus()),
      addShortcut('r', 'load the keys again', () => this.reload()),
      addShortcut('f', 'switch between tree and list', () =>
        this.setView(this.state.view === 'tree' ? 'list' : 'tree'),
      ),
    ];
    signal.addEventListener('abort', () => {
      this.loads.abort();
      this.detailAbort?.abort();
      shortcuts.forEach((remove) => remove());
    });
    this.reload();
    this.showDetail();
  }

  build() {
    this.prefixInput = h('input', {
      type: 'search',
      class: 'mono',
      placeholder: 'Prefix, such as /registry/',
      'aria-label': 'Prefix of the keys',
      spellcheck: 'false',
      autocapitalize: 'none',
      value: this.prefixText(),
      oninput: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.applyPrefix(), TYPING_MS);
      },
      onkeydown: (event) => {
        if (event.key === 'Enter') this.applyPrefix();
        else if (event.key === 'ArrowDown') this.rows.focus();
      },
    });
    this.separatorInput = h('input', {
      type: 'text',
      class: 'mono tiny',
      'aria-label': 'Separator of the tree',
      title: 'Separator of the tree',
      maxlength: '8',
      value: this.separator,
      onchange: () => {
        this.separator = this.separatorInput.value || '/';
        this.separatorInput.value = this.separator;
        setSetting('separator', this.separator);
        this.reload();
      },
    });
    this.viewChoice = segmented(
      'Form',
      [
        ['tree', 'Tree'],
        ['list', 'List'],
      ],
      this.state.view,
      (view) => this.setView(view),
    );
    this.asOf = button('Now', () => this.openAsOf(), { icon: 'leases' });
    const tools = h(
      'div',
      { class: 'toolbar' },
      h('div', { class: 'grow' }, this.prefixInput),
      this.viewChoice,
      this.separatorInput,
      this.asOf,
      button('Reload', () => this.reload(), { icon: 'refresh' }),
      session.writes
        ? button(
            'New key',
            () =>
              createKey(this.state.prefix ? printable(this.prefix()) : '', (key) => this.select(key, true)),
            { kind: 'primary', icon: 'plus' },
          )
        : null,
    );
    this.past = h('div', { class: 'past', hidden: true });
    this.rows = rowList({
      label: 'Keys',
      role: 'tree',
      rowHeight: ROW_HEIGHT,
      render: (index) => this.renderRow(index),
      onactivate: (index) => this.activate(index),
      onarrow: (index, key) => this.arrow(index, key),
    });
    this.message = h('div', { class: 'rows-message', hidden: true });
    this.status = h('p', { class: 'rows-status', role: 'status' });
    this.detail = h('section', { class: 'detail', 'aria-label': 'Selected key' });
    this.panes = h(
      'div',
      { class: 'panes' },
      h('div', { class: 'browser card' }, this.message, this.rows, this.status),
      this.detail,
    );
    this.element = h(
      'div',
      { class: 'page fills' },
      h('header', { class: 'page-head' }, h('h1', null, 'Keys'), keysTabs('keys', this.state.prefix)),
      tools,
      this.past,
      this.panes,
    );
  }

  prefix() {
    return fromFragment(this.state.prefix);
  }

  prefixText() {
    return printable(this.prefix());
  }

  /** The fragment of this page with some changes. */
  url(changes = {}) {
    const { prefix, view, at, key } = { ...this.state, ...changes };
    return link('keys', { prefix, view: view === 'list' ? view : null, at: at > 0 ? at : null, key });
  }

  navigate(route) {
    const before = this.state;
    this.state = stateOf(route.query);
    const { prefix, view, at, key } = this.state;
    if (document.activeElement !== this.prefixInput) this.prefixInput.value = this.prefixText();
    this.viewChoice.choose(view);
    if (prefix !== before.prefix || view !== before.view || at !== before.at) this.reload();
    if (key !== before.key || at !== before.at) this.showDetail();
  }

  applyPrefix() {
    clearTimeout(this.typing);
    const prefix = toFragment(parseKey(this.prefixInput.value));
    if (prefix === this.state.prefix) return;
    this.state = { ...this.state, prefix };
    replace(this.url());
    this.reload();
  }

  setView(view) {
    this.state = { ...this.state, view };
    this.viewChoice.choose(view);
    replace(this.url());
    this.reload();
  }

  openAsOf() {
    openAsOf(this.state.at, (at) => go(this.url({ at })));
  }

  /** Loads the first page again. */
  reload() {
    this.loads.abort();
    this.loads = new AbortController();
    this.tree = new Tree(toBase64(this.prefix()));
    this.total = null;
    this.revision = null;
    this.rows.scrollTop = 0;
    this.rows.active = 0;
    this.separatorInput.hidden = this.state.view === 'list';
    const { at } = this.state;
    this.past.hidden = at === 0;
    setText(this.asOf.lastChild, at === 0 ? 'Now' : `Revision ${count(at)}`);
    fill(
      this.past,
      icon('leases'),
      h('span', null, `Keys and values as of revision ${count(at)}.`),
      button('Back to now', () => go(this.url({ at: 0 })), { small: true }),
    );
    this.load(this.tree.level(this.tree.root));
  }

  /** Loads the next page of a level. */
  async load(level, chain = 0) {
    if (level.state === 'loading') return;
    const { tree } = this;
    const { signal } = this.loads;
    level.state = 'loading';
    this.show();
    const common = { prefix: level.prefix, cursor: level.next, limit: PAGE, revision: this.state.at };
    const isTree = this.state.view === 'tree';
    try {
      const answer = isTree
        ? await call('keys/tree', { ...common, separator: toBase64(parseKey(this.separator)) }, { signal })
        : await call('keys/list', common, { signal });
      // A level that was closed in the meantime is no longer part of the tree.
      if (signal.aborted || tree.levels.get(level.prefix) !== level) return;
      const entries = isTree ? answer.entries : answer.entries.map((entry) => ({ type: 'key', ...entry }));
      const isOnly = level.entries.length === 0 && entries.length === 1 && answer.next === null;
      tree.add(level, entries, answer.next);
      this.revision = answer.revision;
      if (!isTree) this.total = answer.count;
      this.show();
      if (isOnly && entries[0].type === 'prefix' && chain < CHAIN_MAX) {
        tree.toggle(entries[0].prefix);
        this.load(tree.level(entries[0].prefix), chain + 1);
      }
    } catch (error) {
      if (signal.aborted || isAbort(error)) return;
      level.state = 'failed';
      level.error = asApiError(error);
      this.show();
    }
  }

  show() {
    this.visible = this.tree.rows();
    const [first] = this.visible;
    const isAlone = this.visible.length === 1 && (first.type === 'failed' || first.type === 'empty');
    this.message.hidden = !isAlone;
    this.rows.hidden = isAlone;
    if (isAlone) {
      fill(
        this.message,
        first.type === 'failed' ? errorBox(first.level.error, () => this.retry(first.level)) : this.nothing(),
      );
    }
    this.rows.refresh(this.visible.length);
    setText(this.status, this.statusText());
  }

  nothing() {
    const prefix = this.prefixText();
    if (prefix === '') return emptyState(h('p', null, 'There are no keys that you may read.'));
    return emptyState(h('p', null, 'No key starts with ', h('code', null, shorten(prefix, NAME_MAX)), '.'));
  }

  statusText() {
    if (this.revision === null) return '';
    const loaded = plural(
      this.tree.size,
      this.state.view === 'tree' ? 'entry' : 'key',
      this.state.view === 'tree' ? 'entries' : 'keys',
    );
    const total = this.total === null ? '' : ` of ${count(this.total)}`;
    return `${loaded}${total} loaded, revision ${count(this.revision)}`;
  }

  retry(level) {
    level.state = level.entries.length === 0 ? 'new' : 'ready';
    this.load(level);
  }

  renderRow(index) {
    const row = this.visible[index];
    const isFlat = this.state.view === 'list';
    const props = {
      class: `row ${row.type}${isFlat ? ' flat' : ''}`,
      role: 'treeitem',
      'aria-level': row.depth + 1,
      'aria-posinset': row.position,
      'aria-setsize': row.siblings,
      css: { '--depth': String(row.depth) },
    };
    if (row.type === 'prefix') {
      const { entry } = row;
      return h(
        'div',
        {
          ...props,
          'aria-expanded': String(row.open),
          title: printable(fromBase64(entry.prefix)).slice(0, 1000),
        },
        h('span', { class: `twist ${row.open ? 'open' : ''}` }, icon('chevron')),
        h('span', { class: 'name' }, this.nameIn(row.level, entry.prefix)),
        h('span', { class: 'aside' }, entry.count === null ? '' : count(entry.count)),
      );
    }
    if (row.type === 'key') {
      const { entry } = row;
      const isSelected = entry.key === this.selected();
      return h(
        'div',
        {
          ...props,
          'aria-selected': String(isSelected),
          title: printable(fromBase64(entry.key)).slice(0, 1000),
        },
        h('span', { class: 'twist' }),
        h('span', { class: 'name' }, this.nameIn(row.level, entry.key)),
        entry.key_truncated ? h('span', { class: 'aside' }, `${size(entry.key_size)} long`) : null,
        entry.lease !== '0'
          ? h('span', { class: 'mark', title: `Lease ${entry.lease}` }, icon('leases'))
          : null,
        h('span', { class: 'aside' }, `rev ${count(entry.mod_revision)}`),
      );
    }
    const texts = {
      more: 'Load more',
      loading: 'Loading …',
      failed: `${row.level.error?.message ?? 'Failed'} Press Enter to try again.`,
      empty: 'No keys',
      full: `${count(ENTRIES_MAX)} entries are loaded, the most that this page keeps. Narrow the prefix to see others.`,
    };
    return h('div', props, h('span', { class: 'twist' }), h('span', { class: 'name' }, texts[row.type]));
  }

  /** The name of an entry below its level, or the whole key in the flat list. */
  nameIn(level, base64) {
    const bytes = fromBase64(base64);
    const start = this.state.view === 'tree' ? fromBase64(level.prefix).length : 0;
    const name = printable(bytes.subarray(start, start + NAME_MAX * 2));
    if (name === '') return h('em', null, bytes.length === 0 ? 'empty key' : 'this prefix itself');
    return shorten(name, NAME_MAX);
  }

  selected() {
    return this.state.key === null ? null : toBase64(fromFragment(this.state.key));
  }

  activate(index) {
    const row = this.visible[index];
    if (row.type === 'prefix') this.toggle(row);
    else if (row.type === 'key' && row.entry.key_truncated)
      toast('This key is too long for the console. Use quorate ctl get.', 'warning');
    else if (row.type === 'key') this.select(fromBase64(row.entry.key), false);
    else if (row.type === 'more') this.load(row.level);
    else if (row.type === 'failed') this.retry(row.level);
  }

  toggle(row) {
    this.tree.toggle(row.entry.prefix);
    const level = this.tree.level(row.entry.prefix);
    if (this.tree.open.has(row.entry.prefix) && level.state === 'new') this.load(level);
    else this.show();
  }

  /** Handles the left and right arrow as trees do: open, close, or move to the parent or the first child. */
  arrow(index, key) {
    const row = this.visible[index];
    if (!row) return null;
    if (key === 'ArrowRight' && row.type === 'prefix') {
      if (row.open) return index + 1;
      this.toggle(row);
    } else if (key === 'ArrowLeft') {
      if (row.open) {
        this.toggle(row);
        return null;
      }
      const parent = this.visible.findLastIndex((it, at) => at < index && it.depth < row.depth);
      return parent === -1 ? null : parent;
    }
    return null;
  }

  /**
   * Shows a key.
   *
   * @param {Uint8Array} key
   * @param {boolean} isNew whether the list has to be loaded again, because the key is new or gone
   */
  select(key, isNew) {
    const fragment = toFragment(key);
    if (isNew) this.reload();
    if (this.state.key === fragment) this.showDetail();
    else go(this.url({ key: fragment }));
  }

  unselect() {
    go(this.url({ key: null }));
    this.rows.focus();
  }

  showDetail() {
    this.detailAbort?.abort();
    this.detailAbort = new AbortController();
    const { key, at } = this.state;
    this.panes.classList.toggle('has-detail', key !== null);
    this.rows.paint(true);
    if (key === null) {
      fill(
        this.detail,
        emptyState(icon('file'), h('p', { class: 'muted' }, 'Select a key to see its value and history.')),
      );
      return;
    }
    const bytes = fromFragment(key);
    fill(
      this.detail,
      keyDetail({
        key: bytes,
        revision: at,
        signal: this.detailAbort.signal,
        onclose: () => this.unselect(),
        ongone: () => {
          this.unselect();
          this.reload();
        },
        onrevision: (revision) => go(this.url({ at: revision })),
      }),
    );
    setAttr(this.detail, 'aria-label', `Key ${shorten(printable(bytes), 80)}`);
    // On a narrow screen, the key replaces the list.
    if (matchMedia('(max-width: 900px)').matches) this.detail.querySelector('button')?.focus();
  }
}
