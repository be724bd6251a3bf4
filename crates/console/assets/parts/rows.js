/**
 * A long list of rows of equal height, as the element `q-rows`: only the visible rows are in the document.
 *
 * The list has the focus and names its active row (`aria-activedescendant`), so that the keyboard works the same for
 * rows that are not in the document yet.
 */

import { h, setAttr, uniqueId } from '../dom.js';

const OVERSCAN = 8;

class Rows extends HTMLElement {
  /**
   * @param {object} options
   * @param {string} options.label
   * @param {'tree' | 'listbox'} options.role
   * @param {number} options.rowHeight
   * @param {(index: number) => HTMLElement} options.render creates the row
   * @param {(index: number) => void} options.onactivate runs on a click and on Enter
   * @param {(index: number, key: string) => number | null} [options.onarrow] handles left and right; returns the new
   *   active row
   */
  setUp(options) {
    this.options = options;
    this.count = 0;
    this.active = 0;
    this.stem = uniqueId('row');
    this.className = 'rows';
    this.tabIndex = 0;
    setAttr(this, 'role', options.role);
    setAttr(this, 'aria-label', options.label);
    this.style.setProperty('--row', `${options.rowHeight}px`);
    this.inner = h('div', { class: 'rows-inner', role: 'presentation' });
    this.append(this.inner);
    this.addEventListener('scroll', () => this.paint(), { passive: true });
    this.addEventListener('keydown', (event) => this.onKey(event));
    this.addEventListener('click', (event) => this.onClick(event));
    return this;
  }

  connectedCallback() {
    this.observer = new ResizeObserver(() => this.paint());
    this.observer.observe(this);
  }

  disconnectedCallback() {
    this.observer?.disconnect();
  }

  /**
   * Shows `count` rows, all of which may have changed.
   *
   * @param {number} count
   */
  refresh(count) {
    this.count = count;
    this.active = Math.min(this.active, Math.max(0, count - 1));
    this.inner.style.setProperty('height', `${count * this.options.rowHeight}px`);
    this.paint(true);
  }

  paint(isNew = false) {
    const { rowHeight, render } = this.options;
    const from = Math.max(0, Math.floor(this.scrollTop / rowHeight) - OVERSCAN);
    const to = Math.min(this.count, Math.ceil((this.scrollTop + this.clientHeight) / rowHeight) + OVERSCAN);
    if (!isNew && from === this.from && to === this.to) return;
    const kept = new Map();
    if (!isNew) for (const row of this.inner.children) kept.set(row.index, row);
    const rows = [];
    for (let index = from; index < to; index += 1) {
      const row = kept.get(index) ?? render(index);
      row.index = index;
      row.id = `${this.stem}-${index}`;
      row.style.setProperty('top', `${index * rowHeight}px`);
      row.classList.toggle('active', index === this.active);
      rows.push(row);
    }
    this.inner.replaceChildren(...rows);
    this.from = from;
    this.to = to;
    setAttr(
      this,
      'aria-activedescendant',
      this.active >= from && this.active < to ? `${this.stem}-${this.active}` : null,
    );
  }

  /** @param {number} index */
  setActive(index) {
    if (this.count === 0) return;
    this.active = Math.min(this.count - 1, Math.max(0, index));
    const { rowHeight } = this.options;
    const top = this.active * rowHeight;
    if (top < this.scrollTop) this.scrollTop = top;
    else if (top + rowHeight > this.scrollTop + this.clientHeight)
      this.scrollTop = top + rowHeight - this.clientHeight;
    this.from = -1;
    this.paint();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.clientHeight / this.options.rowHeight) - 1);
    const moves = {
      ArrowUp: -1,
      ArrowDown: 1,
      PageUp: -page,
      PageDown: page,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key in moves) {
      event.preventDefault();
      this.setActive(this.active + moves[event.key]);
    } else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      if (this.count > 0) this.options.onactivate(this.active);
    } else if ((event.key === 'ArrowLeft' || event.key === 'ArrowRight') && this.options.onarrow) {
      event.preventDefault();
      const to = this.options.onarrow(this.active, event.key);
      if (to !== null) this.setActive(to);
    }
  }

  onClick(event) {
    const row = /** @type {any} */ (event.target).closest?.('.rows-inner > *');
    if (!row) return;
    this.setActive(row.index);
    this.options.onactivate(row.index);
  }
}

customElements.define('q-rows', Rows);

/** @param {Parameters<Rows['setUp']>[0]} options */
export function rowList(options) {
  return /** @type {Rows} */ (document.createElement('q-rows')).setUp(options);
}
