/**
 * A chart of lines over time, as the element `q-chart`.
 *
 * - All charts share one time cursor: pointing at a chart, or pressing the arrow keys in it, shows the values of all
 *   charts at that time.
 * - The text alternative is the value of the cursor, which a screen reader reads, and a table of the series, which the
 *   reader can show instead of the lines.
 * - A missing value is a gap in the line and a dash in the text, never 0.
 */

import { bytes, clock, latency, number, percent, rate } from '../format.js';
import { h, setAttr, setText, svg } from '../dom.js';
import { areaPath, linePath, nearest, summary, ticks } from '../scale.js';

const HEIGHT = 132;
const TOP = 14;
const BOTTOM = 18;
/** The number of colours; further series are dashed. */
const COLOURS = 8;

/** The text instead of a value that no member reports. */
const UNAVAILABLE = 'not available';

/** The formats of values by unit. @type {Record<string, (value: number | null) => string>} */
const FORMATS = { rate, latency, bytes, percent, count: number };

/** The axes of units whose steps are not decimal. @type {Record<string, 'binary' | 'whole'>} */
const BASES = { bytes: 'binary', count: 'whole' };

/** The cursor that all charts share. */
class Cursor extends EventTarget {
  /** The time under the user's pointer; `null` for the newest time. @type {number | null} */
  timeMs = null;

  /** @param {number | null} timeMs */
  set(timeMs) {
    if (timeMs === this.timeMs) return;
    this.timeMs = timeMs;
    this.dispatchEvent(new Event('move'));
  }
}

/** The cursor of the page's charts. */
export const cursor = new Cursor();

/**
 * @typedef {object} Series
 * @property {string} name the name in the history
 * @property {string} label
 * @property {number} colour from 0
 * @property {boolean} [isUnavailable] whether the legend lists the series as not available, because no member reports it
 *
 * @typedef {object} ChartSpec
 * @property {string} title
 * @property {string} [note] what the values mean
 * @property {'rate' | 'latency' | 'bytes' | 'percent' | 'count'} unit
 * @property {string} [missing] what is shown if no member reports the values
 * @property {boolean} [hidesZeros] whether a series of zeros is left out
 * @property {'sum' | 'max' | null} headline how the values of the series become the number beside the title
 */

class Chart extends HTMLElement {
  /** @param {ChartSpec} spec */
  setUp(spec) {
    this.spec = spec;
    this.format = FORMATS[spec.unit];
    /** @type {{ times: number[], values: number[][] }} */
    this.data = { times: [], values: [] };
    /** @type {Series[]} */
    this.series = [];
    this.hasValues = false;
    this.range = { from: 0, to: 1, gapMs: 1 };
    this.leaderChanges = [];
    this.asTable = false;
    this.build();
    return this;
  }

  build() {
    this.headline = h('output', { class: 'chart-headline' });
    this.plot = svg('svg', { class: 'chart-plot', 'aria-hidden': 'true' });
    this.grid = svg('g', { class: 'chart-grid' });
    this.lines = svg('g', {});
    this.marks = svg('g', { class: 'chart-marks' });
    this.pointer = svg('g', { class: 'chart-pointer', hidden: true });
    this.empty = svg('text', { class: 'chart-empty' });
    this.plot.append(this.grid, this.marks, this.lines, this.pointer, this.empty);
    this.slider = h(
      'div',
      {
        class: 'chart-slider',
        role: 'slider',
        tabindex: '0',
        'aria-label': `${this.spec.title}: time`,
        'aria-valuemin': '0',
        'aria-valuemax': '0',
        'aria-valuenow': '0',
        onpointermove: (event) => this.point(event),
        onpointerleave: () => cursor.set(null),
        onkeydown: (event) => this.onKey(event),
        onblur: () => cursor.set(null),
      },
      this.plot,
    );
    this.legend = h('ul', { class: 'chart-legend' });
    this.table = h('div', { class: 'chart-table', hidden: true });
    const caption = h('figcaption', { title: this.spec.note ?? null }, this.spec.title);
    this.append(
      h(
        'figure',
        { class: 'chart card' },
        h('div', { class: 'chart-head' }, caption, this.headline),
        this.slider,
        this.legend,
        this.table,
      ),
    );
  }

  connectedCallback() {
    this.onMove = () => this.showCursor();
    cursor.addEventListener('move', this.onMove);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this);
  }

  disconnectedCallback() {
    cursor.removeEventListener('move', this.onMove);
    this.observer?.disconnect();
  }

  /**
   * Shows new data.
   *
   * @param {import('../history.js').History} history
   * @param {Series[]} series
   * @param {{ from: number, to: number }} range
   */
  show(history, series, range) {
    this.data = history.since(
      series.map((it) => it.name),
      range.from,
    );
    // Series without values, and kinds of requests that never occur, have no line and would only fill the legend.
    const having = (isShown) => this.data.values.map((line) => line.some(isShown));
    const positive = having((value) => value > 0);
    const hidesZeros = this.spec.hidesZeros && positive.includes(true);
    const present = having((value) => !Number.isNaN(value));
    this.hasValues = present.includes(true);
    const used = series.map((it, index) => (hidesZeros ? positive : present)[index] || it.isUnavailable);
    this.series = series.filter((_, index) => used[index]);
    this.data.values = this.data.values.filter((_, index) => used[index]);
    this.range = { ...range, gapMs: history.intervalMs * 3.5 };
    this.leaderChanges = history.leaderChanges;
    this.draw();
  }

  /** @param {boolean} asTable whether the table is shown instead of the lines */
  setTable(asTable) {
    this.asTable = asTable;
    this.slider.hidden = asTable;
    this.legend.hidden = asTable;
    this.table.hidden = !asTable;
    this.draw();
  }

  draw() {
    if (!this.isConnected) return;
    if (this.asTable) {
      this.drawTable();
      this.showCursor();
      return;
    }
    const width = this.slider.clientWidth;
    if (width === 0) return;
    const { times, values } = this.data;
    const { from, to, gapMs } = this.range;
    const top = values.reduce((most, line) => line.reduce((a, b) => (b > a ? b : a), most), 0);
    const steps = ticks(top, BASES[this.spec.unit] ?? 'decimal');
    const max = steps[steps.length - 1];
    this.x = (time) => ((time - from) / (to - from)) * width;
    this.y = (value) => HEIGHT - BOTTOM - (value / max) * (HEIGHT - TOP - BOTTOM);
    setAttr(this.plot, 'viewBox', `0 0 ${width} ${HEIGHT}`);
    this.drawGrid(steps, width);
    this.drawLines(times, values, gapMs);
    this.marks.replaceChildren(
      ...this.leaderChanges
        .filter((time) => time >= from)
        .map((time) => svg('line', { x1: this.x(time), x2: this.x(time), y1: TOP - 6, y2: HEIGHT - BOTTOM })),
    );
    setText(
      this.empty,
      // Rates and latencies are computed from two samples.
      this.hasValues ? '' : times.length < 2 ? 'Waiting for the first samples' : this.missing(),
    );
    setAttr(this.empty, 'x', String(width / 2));
    setAttr(this.empty, 'y', String((HEIGHT - BOTTOM + TOP) / 2 + 4));
    setAttr(this.slider, 'aria-valuemax', String(Math.max(0, times.length - 1)));
    this.showCursor();
  }

  missing() {
    return this.spec.missing ?? 'Not reported by these members';
  }

  drawGrid(steps, width) {
    const { from, to } = this.range;
    const minutes = Math.round((to - from) / 60_000);
    const ends = [
      svg('text', { class: 'chart-end', x: 0, y: HEIGHT - 4 }, `${minutes} min ago`),
      svg('text', { class: 'chart-end', x: width, y: HEIGHT - 4, 'text-anchor': 'end' }, 'now'),
    ];
    const rows = steps.flatMap((value, index) => [
      svg('line', {
        x1: 0,
        x2: width,
        y1: this.y(value),
        y2: this.y(value),
        class: index === 0 ? 'axis' : null,
      }),
      // The top line has a label. The zero line needs no label.
      index > 0 && (index === steps.length - 1 || steps.length < 5 || index % 2 === 0)
        ? svg('text', { x: 0, y: this.y(value) - 3.5 }, this.format(value))
        : svg('g', {}),
    ]);
    this.grid.replaceChildren(...rows, ...ends);
  }

  drawLines(times, values, gapMs) {
    const paths = this.series.flatMap((series, index) => {
      const tone = `tone-${series.colour % COLOURS}`;
      const line = svg('path', {
        class: `chart-line ${tone}${series.colour >= COLOURS ? ' dashed' : ''}`,
        d: linePath(times, values[index], this.x, this.y, gapMs),
      });
      if (this.series.length > 1) return [line];
      return [
        svg('path', {
          class: `chart-area ${tone}`,
          d: areaPath(times, values[index], this.x, this.y, gapMs),
        }),
        line,
      ];
    });
    this.lines.replaceChildren(...paths);
  }

  drawTable() {
    const rows = this.series.map((series, index) => {
      const { last, min, mean, max } = summary(this.data.values[index]);
      const cells = series.isUnavailable
        ? h('td', { colspan: '4' }, UNAVAILABLE)
        : [last, min, mean, max].map((value) => h('td', null, this.format(value)));
      return h('tr', null, h('th', { scope: 'row' }, series.label), cells);
    });
    const head = ['', 'now', 'min', 'mean', 'max'].map((text, index) =>
      index === 0 ? h('td', null) : h('th', { scope: 'col' }, text),
    );
    this.table.replaceChildren(
      rows.length === 0
        ? h('p', { class: 'muted' }, this.missing())
        : h(
            'table',
            { class: 'table compact', 'aria-label': this.spec.title },
            h('thead', null, h('tr', null, head)),
            h('tbody', null, rows),
          ),
    );
  }

  /** Shows the values at the cursor, or the newest ones. */
  showCursor() {
    const { times, values } = this.data;
    const at = cursor.timeMs === null ? times.length - 1 : nearest(times, cursor.timeMs);
    const time = times[at];
    const shown = this.series.map((_, index) => {
      const value = values[index][at];
      return value === undefined || Number.isNaN(value) ? null : value;
    });
    this.drawLegend(shown);
    setText(this.headline, this.headlineText(shown));
    const parts = this.series.map((series, index) => `${series.label} ${this.valueText(series, shown[index])}`);
    setAttr(this.slider, 'aria-valuenow', String(Math.max(0, at)));
    const when = cursor.timeMs === null ? 'now' : time === undefined ? '' : clock(time);
    setAttr(this.slider, 'aria-valuetext', parts.length === 0 ? 'no data' : `${when}: ${parts.join(', ')}`);
    this.drawPointer(time, shown);
  }

  valueText(series, value) {
    return series.isUnavailable && value === null ? UNAVAILABLE : this.format(value);
  }

  headlineText(shown) {
    const present = shown.filter((value) => value !== null);
    if (!this.spec.headline || present.length === 0) return '';
    const total = present.reduce((a, b) => (this.spec.headline === 'sum' ? a + b : Math.max(a, b)));
    return this.format(total);
  }

  drawLegend(shown) {
    while (this.legend.children.length > this.series.length) this.legend.lastChild.remove();
    this.series.forEach((series, index) => {
      let item = this.legend.children[index];
      if (!item) {
        item = h('li', null, h('i', null), h('span', { class: 'name' }), h('span', { class: 'value' }));
        this.legend.append(item);
      }
      const tone = `tone-${series.colour % COLOURS}${series.colour >= COLOURS ? ' dashed' : ''}`;
      setAttr(item, 'class', tone);
      setText(item.children[1], series.label);
      setText(item.children[2], this.valueText(series, shown[index]));
    });
  }

  drawPointer(time, shown) {
    const isShown = cursor.timeMs !== null && time !== undefined && this.x !== undefined && !this.asTable;
    setAttr(this.pointer, 'visibility', isShown ? 'visible' : 'hidden');
    // The time at the pointer replaces the labels at the ends of the axis.
    this.plot.classList.toggle('pointing', isShown);
    if (!isShown) return;
    const x = this.x(time);
    const width = this.slider.clientWidth;
    const anchor = x > width - 40 ? 'end' : x < 40 ? 'start' : 'middle';
    const dots = this.series.flatMap((series, index) =>
      shown[index] === null
        ? []
        : [
            svg('circle', {
              cx: x,
              cy: this.y(shown[index]),
              r: 3,
              class: `tone-${series.colour % COLOURS}`,
            }),
          ],
    );
    this.pointer.replaceChildren(
      svg('line', { x1: x, x2: x, y1: TOP - 6, y2: HEIGHT - BOTTOM }),
      svg('text', { x, y: HEIGHT - 4, 'text-anchor': anchor }, clock(time)),
      ...dots,
    );
  }

  point(event) {
    const box = this.slider.getBoundingClientRect();
    const { from, to } = this.range;
    cursor.set(from + ((event.clientX - box.left) / box.width) * (to - from));
  }

  onKey(event) {
    const { times } = this.data;
    if (times.length === 0) return;
    const at = cursor.timeMs === null ? times.length - 1 : nearest(times, cursor.timeMs);
    const moves = {
      ArrowLeft: -1,
      ArrowDown: -1,
      ArrowRight: 1,
      ArrowUp: 1,
      PageDown: -15,
      PageUp: 15,
      Home: -Infinity,
      End: Infinity,
    };
    const by = moves[event.key];
    if (event.key === 'Escape') cursor.set(null);
    if (by === undefined) return;
    event.preventDefault();
    const to = Math.min(times.length - 1, Math.max(0, at + by));
    cursor.set(times[to]);
  }
}

customElements.define('q-chart', Chart);

/**
 * @param {ChartSpec} spec
 * @returns {Chart}
 */
export function chart(spec) {
  return /** @type {Chart} */ (document.createElement('q-chart')).setUp(spec);
}
