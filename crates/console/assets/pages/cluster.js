/**
 * The cluster at a glance: its state, alarms and problems, its members, live charts, requests by kind, and certificates.
 */

import { fill, h, keyed, setText } from '../dom.js';
import { clock, count, date, distance, latency, number, rate, UNKNOWN } from '../format.js';
import { clusterCharts } from '../parts/cluster_charts.js';
import { membersTable } from '../parts/members.js';
import { badge, loading, notice, table } from '../parts/ui.js';
import { link } from '../router.js';
import { session } from '../session.js';
import { store } from '../store.js';
import { showProblems } from './problems.js';

/** The maximum number of problems that this page shows, not counting notes. The problems page shows all of them. */
const PROBLEMS_SHOWN = 3;

/** @param {import('../shell.js').PageContext} context */
export function clusterPage({ signal }) {
  const sub = h('p', { class: 'sub' });
  const body = h('div', { class: 'stack' }, loading('Waiting for the first sample'));
  const element = h(
    'div',
    { class: 'page' },
    h('header', { class: 'page-head' }, h('h1', null, 'Cluster'), sub),
    body,
  );

  const numbers = keyNumbers();
  const alarms = h('div', { class: 'stack' });
  const problems = h('div', { class: 'problems compact' });
  const more = h('p', { class: 'more' }, h('a', { href: link('problems') }));
  const members = membersTable();
  const charts = clusterCharts();
  const requests = requestsTable();
  const certificates = certificatesTable();

  const show = () => {
    const { overview } = store;
    if (overview === null) return;
    if (!numbers.isConnected) {
      fill(
        body,
        numbers,
        alarms,
        problems,
        more,
        section('Members', members),
        charts,
        section('Requests', requests),
        certificates.section,
      );
    }
    setText(
      sub,
      `${overview.cluster.id ? `Cluster ${overview.cluster.id}. ` : ''}Sample of ${clock(overview.unix_ms)}.`,
    );
    numbers.show(overview);
    showAlarms(alarms, overview);
    const all = store.problems;
    const urgent = all.filter((it) => it.severity !== 'info').slice(0, PROBLEMS_SHOWN);
    showProblems(problems, urgent);
    more.hidden = all.length === 0;
    setText(
      more.firstChild,
      all.length === 1
        ? 'Show the problem and what to do'
        : `Show all ${count(all.length)} problems and what to do`,
    );
    members.show(overview);
    charts.update();
    requests.show(overview);
    certificates.show(overview);
  };
  store.addEventListener('sample', show, { signal });
  show();
  return { element };
}

function section(title, ...content) {
  return h('section', null, h('div', { class: 'section-head' }, h('h2', null, title)), ...content);
}

/** Creates the row with the most important numbers. */
function keyNumbers() {
  const make = (label) => {
    const value = h('strong', null);
    const note = h('span', { class: 'sub' });
    return { item: h('div', null, h('dt', null, label), h('dd', null, value, note)), value, note };
  };
  const [members, leader, requests, revision, keys, leases] = [
    'Members',
    'Leader',
    'Requests',
    'Revision',
    'Keys',
    'Leases',
  ].map(make);
  const all = [members, leader, requests, revision, keys, leases];
  const element = h(
    'dl',
    { class: 'numbers card' },
    all.map((it) => it.item),
  );
  element.show = (overview) => {
    const { cluster } = overview;
    const down = overview.members.filter((it) => it.role === 'down').length;
    const plaintext = overview.members.filter((it) => it.role === 'no TLS').length;
    const answering = overview.members.length - down - plaintext;
    setText(members.value, `${count(answering)} of ${count(overview.members.length)}`);
    setText(
      members.note,
      down > 0
        ? `${count(down)} down`
        : plaintext > 0
          ? `${count(plaintext)} without TLS`
          : 'all are responding',
    );
    members.item.classList.toggle('bad', answering < overview.members.length);
    const named = overview.members.find((it) => it.id === cluster.leader);
    setText(leader.value, cluster.leader === null ? 'none' : named?.name || cluster.leader);
    setText(leader.note, `term ${count(cluster.term)}`);
    leader.item.classList.toggle('bad', cluster.leader === null);
    const rates = overview.requests.map((it) => it.per_sec).filter((it) => typeof it === 'number');
    const failures = overview.requests
      .map((it) => it.failures_per_sec)
      .filter((it) => typeof it === 'number');
    const sum = (values) => (values.length === 0 ? null : values.reduce((a, b) => a + b, 0));
    setText(requests.value, rate(sum(rates)));
    setText(requests.note, sum(failures) === null ? '' : `${number(sum(failures))}/s failed`);
    setText(revision.value, count(cluster.revision));
    setText(revision.note, cluster.revisions_per_sec == null ? '' : `${number(cluster.revisions_per_sec)}/s`);
    setText(keys.value, count(cluster.keys));
    setText(leases.value, count(cluster.leases));
  };
  return element;
}

function showAlarms(parent, overview) {
  keyed(
    parent,
    overview.alarms ?? [],
    (alarm) => `${alarm.member}/${alarm.name}`,
    (alarm) => {
      const member = overview.members.find((it) => it.id === alarm.member);
      const disarm = session.writes
        ? h('a', { href: link('operate') }, 'Disarm it on the Operate page')
        : null;
      const box = notice(
        'critical',
        `Alarm ${alarm.name} on member ${member?.name || alarm.member}`,
        alarm.advice ?? '',
        disarm ? [' ', disarm] : null,
      );
      return box;
    },
    () => {},
  );
}

function requestsTable() {
  const columns = [
    { label: 'Kind' },
    { label: 'Rate', class: 'num' },
    { label: 'Failed', class: 'num' },
    { label: 'p50', class: 'num' },
    { label: 'p99', class: 'num' },
  ];
  const element = table('Requests by kind', columns, 'narrow');
  const empty = h(
    'p',
    { class: 'muted' },
    'The members have not reported requests yet. Some report them only with ',
    h('code', null, '--metrics=extensive'),
    '.',
  );
  const wrapper = h('div', null, element, empty);
  /** @type {any} */ (wrapper).show = (overview) => {
    empty.hidden = overview.requests.length > 0;
    element.hidden = overview.requests.length === 0;
    keyed(
      element.body,
      overview.requests,
      (row) => row.kind,
      (row) => element.row([row.kind, '', '', '', '']),
      (tr, row) => {
        const texts = [
          rate(row.per_sec),
          rate(row.failures_per_sec),
          latency(row.secs?.p50),
          latency(row.secs?.p99),
        ];
        texts.forEach((text, index) => setText(tr.children[index + 1], text));
        tr.children[2].classList.toggle('tone-warning', (row.failures_per_sec ?? 0) > 0);
      },
    );
  };
  return /** @type {any} */ (wrapper);
}

function certificatesTable() {
  const columns = [
    { label: 'Member' },
    { label: 'Endpoint' },
    { label: 'Subject' },
    { label: 'Names' },
    { label: 'Issuer' },
    { label: 'Expires' },
  ];
  const element = table('Certificates', columns);
  const wrapper = section('Certificates', element);
  let shown = '';
  const show = (overview) => {
    const all = overview.certificates ?? [];
    wrapper.hidden = all.length === 0;
    const key = JSON.stringify(all) + Math.floor(overview.unix_ms / 3_600_000);
    if (key === shown) return;
    shown = key;
    element.fillRows(
      all.map((it) => {
        const member = overview.members.find((other) => other.id === it.member);
        const mono = (text) => h('span', { class: 'mono break' }, text ?? UNKNOWN);
        return [
          member?.name || it.member || UNKNOWN,
          mono(it.endpoint),
          it.error ? h('span', { class: 'tone-critical' }, it.error) : mono(it.subject),
          mono((it.names ?? []).join(', ')),
          mono(it.issuer),
          expiry(it, overview.unix_ms),
        ];
      }),
    );
  };
  return { section: wrapper, show };
}

function expiry(certificate, nowMs) {
  const end = certificate.not_after_unix_ms;
  if (end == null) return UNKNOWN;
  const days = (end - nowMs) / 86_400_000;
  const text = `${date(end)}, ${distance(end, nowMs)}`;
  if (days < 0) return badge(`expired ${date(end)}`, 'critical');
  return days < 30 ? badge(text, 'warning') : text;
}
