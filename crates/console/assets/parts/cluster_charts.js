/**
 * The charts of the cluster page: the series of each chart, and the choice of time span and quantile.
 */

import { h } from '../dom.js';
import { SPAN_MS } from '../history.js';
import { store } from '../store.js';
import { chart } from './chart.js';
import { checkbox, segmented } from './ui.js';

/** The kinds of requests; the position gives the colour, so a kind keeps its colour in all charts. */
const KINDS = [
  'range',
  'put',
  'txn',
  'delete',
  'watch',
  'lease grant',
  'keep-alive',
  'range stream',
  'lease revoke',
  'compact',
  'lease other',
  'cluster',
  'maintenance',
  'auth',
];

const STAGES = ['queue', 'quorum', 'disk', 'apply'];

/** @typedef {import('./chart.js').ChartSpec & { series: (overview: any, quantile: string) => import('./chart.js').Series[] }} Spec */

/** @type {Spec[]} */
const CHARTS = [
  {
    title: 'Requests per second',
    unit: 'rate',
    headline: 'sum',
    hidesZeros: true,
    series: (it) => byKind(it, 'rate'),
  },
  {
    title: 'Request latency',
    missing: 'Reported only with --metrics=extensive',
    unit: 'latency',
    headline: 'max',
    series: (it, quantile) => byKind(it, quantile),
  },
  {
    title: 'Write stages of the leader',
    note: 'Queue: the wait of a write before consensus. Quorum: the round trip to the peers. Disk: the fsync of the log. Apply: the change of the state machine.',
    unit: 'latency',
    headline: null,
    series: stages,
  },
  {
    title: 'Log fsync',
    unit: 'latency',
    headline: 'max',
    series: (it, quantile) => byMember(it, `fsync_${quantile}`),
  },
  {
    title: 'Backend commit',
    unit: 'latency',
    headline: 'max',
    series: (it, quantile) => byMember(it, `commit_${quantile}`),
  },
  { title: 'Entries behind', unit: 'count', headline: 'max', series: (it) => byMember(it, 'lag') },
  { title: 'Watchers', unit: 'count', headline: 'sum', series: (it) => byMember(it, 'watchers') },
  { title: 'Watch events per second', unit: 'rate', headline: 'sum', series: (it) => byMember(it, 'events') },
  { title: 'Memory', unit: 'bytes', headline: 'sum', series: (it) => byMember(it, 'memory') },
  { title: 'Database size', unit: 'bytes', headline: 'max', series: (it) => byMember(it, 'db') },
  { title: 'CPU, share of one core', unit: 'percent', headline: 'sum', series: (it) => byMember(it, 'cpu') },
  {
    title: 'Leader changes since the start',
    unit: 'count',
    headline: 'max',
    series: (it) => byMember(it, 'leader_changes'),
  },
];

function byKind(overview, what) {
  const known = overview.requests.map((row) => row.kind);
  const extra = known.filter((kind) => !KINDS.includes(kind));
  return [...KINDS.filter((kind) => known.includes(kind)), ...extra].map((kind) => {
    const at = KINDS.indexOf(kind);
    return { name: `${what}/${kind}`, label: kind, colour: at === -1 ? KINDS.length : at };
  });
}

function byMember(overview, what) {
  return overview.members.map((member, index) => ({
    name: `${what}/${member.id}`,
    label: member.name || member.id,
    colour: index,
  }));
}

function stages(overview, quantile) {
  const leader = overview.members.find((it) => it.id === overview.cluster.leader);
  if (!leader) return [];
  // Latencies are computed from two samples, so the first sample has no stages at all.
  const hasStages = STAGES.some((stage) => leader.stages?.[stage]);
  const isUsed = (stage) => stage !== 'quorum' || overview.members.length > 1;
  return STAGES.map((stage, index) => ({
    name: `stage_${stage}_${quantile}/${leader.id}`,
    label: stage,
    colour: index,
    isUnavailable: hasStages && isUsed(stage) && !leader.stages[stage],
  }));
}

/** Returns the section of charts, with `update()`. */
export function clusterCharts() {
  let quantile = 'p99';
  let minutes = 'auto';
  const all = CHARTS.map((spec) => ({ spec, element: chart(spec) }));
  const spans = /** @type {[string, string][]} */ ([
    ['auto', 'Auto'],
    ['1', '1 min'],
    ['5', '5 min'],
    ['15', '15 min'],
  ]);
  const controls = h(
    'div',
    { class: 'controls' },
    segmented(
      'Quantile of latencies',
      [
        ['p50', 'p50'],
        ['p99', 'p99'],
      ],
      quantile,
      (value) => {
        quantile = value;
        element.update();
      },
    ),
    segmented('Time span', spans, minutes, (value) => {
      minutes = value;
      element.update();
    }),
    checkbox('As tables', false, (checked) => all.forEach((it) => it.element.setTable(checked))),
  );
  const element = h(
    'section',
    { 'aria-labelledby': 'charts-title' },
    h('div', { class: 'section-head' }, h('h2', { id: 'charts-title' }, 'Live'), controls),
    h(
      'div',
      { class: 'charts' },
      all.map((it) => it.element),
    ),
  );
  element.update = () => {
    const { overview, history, sampledAt } = store;
    if (overview === null) return;
    const range = { from: sampledAt - spanOf(minutes, history, sampledAt), to: sampledAt };
    for (const { spec, element: it } of all) it.show(history, spec.series(overview, quantile), range);
  };
  return element;
}

/** The span of the charts; `auto` is the shortest one that shows all samples. */
function spanOf(minutes, history, at) {
  if (minutes !== 'auto') return Number(minutes) * 60_000;
  const age = at - (history.oldestMs ?? at);
  return [60_000, 5 * 60_000].find((it) => age <= it) ?? SPAN_MS;
}
