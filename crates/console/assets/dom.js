/**
 * Creates and updates elements.
 *
 * Text is added to the document only through text nodes and attributes, never through HTML, so keys and values cannot
 * inject markup. Styles that depend on data are set as custom properties, which the content security policy allows.
 */

const SVG = 'http://www.w3.org/2000/svg';

/**
 * @typedef {Node | string | number | null | undefined | false | Child[]} Child
 * @typedef {Record<string, any>} Props
 */

/**
 * Creates an HTML element. Props that start with `on` are listeners, `css` holds custom properties, `data` holds
 * data attributes, and properties such as `value` and `checked` are assigned. All other props are attributes; `true`
 * gives an empty attribute, and `false`, `null` and `undefined` give none.
 *
 * @param {string} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {any}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  apply(element, props);
  append(element, children);
  return element;
}

/**
 * Creates an SVG element.
 *
 * @param {string} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {any}
 */
export function svg(tag, props, ...children) {
  const element = document.createElementNS(SVG, tag);
  apply(element, props);
  append(element, children);
  return element;
}

const ASSIGNED = new Set(['value', 'checked', 'disabled', 'selected', 'hidden', 'open', 'htmlFor']);

function apply(element, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith('on')) {
      element.addEventListener(name.slice(2), value);
    } else if (name === 'css') {
      for (const [property, to] of Object.entries(value)) element.style.setProperty(property, to);
    } else if (name === 'data') {
      Object.assign(element.dataset, value);
    } else if (ASSIGNED.has(name)) {
      element[name] = value;
    } else if (value === true) {
      element.setAttribute(name, '');
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

/**
 * Replaces the children of an element.
 *
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * Sets the text of a node, if it differs, so that a selection in unchanged text survives an update.
 *
 * @param {Node} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Sets or removes an attribute, if it differs.
 *
 * @param {Element} element
 * @param {string} name
 * @param {string | null} value
 */
export function setAttr(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * Makes the children of `parent` match `items` in order, and reuses the elements of items that remain.
 *
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => HTMLElement} create
 * @param {(element: any, item: T) => void} update
 */
export function keyed(parent, items, keyOf, create, update) {
  const old = new Map();
  for (const child of parent.children) old.set(/** @type {any} */ (child).itemKey, child);
  let after = null;
  for (const item of items) {
    const key = keyOf(item);
    let element = old.get(key);
    if (element) {
      old.delete(key);
    } else {
      element = create(item);
      element.itemKey = key;
    }
    update(element, item);
    const next = after ? after.nextSibling : parent.firstChild;
    if (next !== element) parent.insertBefore(element, next);
    after = element;
  }
  for (const element of old.values()) element.remove();
}

let ids = 0;

/**
 * Returns an id that no other element of the page has.
 *
 * @param {string} stem
 */
export function uniqueId(stem) {
  ids += 1;
  return `${stem}-${ids}`;
}
