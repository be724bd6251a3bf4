/** The part of `node:fs` that the tests of the page's modules use, over HTTP. */

function load(url) {
  const request = new XMLHttpRequest();
  request.open('GET', url, false);
  request.send();
  if (request.status !== 200) throw new Error(`${url}: status ${request.status}`);
  return request.responseText;
}

export function readFileSync(url) {
  return load(String(url));
}

/** The server answers with the paths of all files below a folder. */
export function readdirSync(url) {
  return JSON.parse(load(String(url)));
}
