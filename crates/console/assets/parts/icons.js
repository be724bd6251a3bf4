/**
 * The icons of the page: strokes in a box of 16 by 16, drawn in the colour of the text. They are decoration; the text
 * beside them, or the label of their button, names the meaning.
 */

import { svg } from '../dom.js';

const PATHS = {
  cluster:
    'M8 3.2v3.3M8 6.5 3.8 11M8 6.5 12.2 11M6.3 3.2a1.7 1.7 0 1 0 3.4 0 1.7 1.7 0 1 0-3.4 0M2 12.4a1.7 1.7 0 1 0 3.4 0 1.7 1.7 0 1 0-3.4 0M10.6 12.4a1.7 1.7 0 1 0 3.4 0 1.7 1.7 0 1 0-3.4 0',
  keys: 'M7.8 8.2 13.5 2.5M11.2 4.8l2 2M2.5 10.8a2.9 2.9 0 1 0 5.8 0 2.9 2.9 0 1 0-5.8 0',
  leases: 'M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 4.8V8l2.2 1.6',
  problems: 'M8 2.2 14.4 13.3H1.6ZM8 6.5v3.2M8 11.6v.1',
  operate:
    'M2.5 4.5h6M12.5 4.5h1M2.5 11.5h1M7.5 11.5h6M8.6 4.5a1.9 1.9 0 1 0 3.8 0 1.9 1.9 0 1 0-3.8 0M3.6 11.5a1.9 1.9 0 1 0 3.8 0 1.9 1.9 0 1 0-3.8 0',
  menu: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h11',
  close: 'm4 4 8 8M12 4l-8 8',
  chevron: 'm6 4 4 4-4 4',
  back: 'm10 4-4 4 4 4',
  copy: 'M6 5.5h6.5v8H6ZM3.5 10.5v-8H10',
  sun: 'M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6ZM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9',
  moon: 'M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8 5.6 5.6 0 1 0 13.2 9.6Z',
  system: 'M2 3.5h12v7.5H2ZM5.5 13.5h5M8 11v2.5',
  file: 'M4 2h5l3 3v9H4ZM9 2v3h3',
  plus: 'M8 3v10M3 8h10',
  refresh: 'M13 8a5 5 0 1 1-1.5-3.6M13 2.5v2.4h-2.4',
  pause: 'M5.5 3.5v9M10.5 3.5v9',
  play: 'M4.8 3 12.5 8l-7.7 5Z',
  user: 'M8 8.2a2.7 2.7 0 1 0 0-5.4 2.7 2.7 0 0 0 0 5.4ZM3 13.6c.5-2.4 2.5-3.5 5-3.5s4.5 1.1 5 3.5',
  external: 'M6.5 3.5h-3v9h9v-3M9 3h4v4M13 3 7.5 8.5',
  check: 'm3.2 8.4 3.2 3.2 6.4-7',
};

/**
 * @param {keyof typeof PATHS} name
 * @returns {SVGElement}
 */
export function icon(name) {
  return svg(
    'svg',
    { class: `icon icon-${name}`, viewBox: '0 0 16 16', 'aria-hidden': 'true', focusable: 'false' },
    svg('path', { d: PATHS[name] }),
  );
}
