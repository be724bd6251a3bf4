/**
 * The table of members. A value that a member does not report, or that is unknown because the member does not answer, is
 * shown as a dash, and the reason is shown below the member.
 */

import { h, keyed, setAttr, setText } from '../dom.js';
import { bytes, count, date, distance, latency, number, percent, span, UNKNOWN } from '../format.js';
import { meter, table } from './ui.js';

const COLUMNS = [
  { label: 'Member' },
  { label: 'Role' },
  { label: 'Version' },
  {
    label: 'Applied',
    class: 'num',
    title: 'The index of the last log entry that the member has applied, and its term',
  },
  {
    label: 'Behind',
    class: 'num',
    title: 'Entries that the cluster has committed and the member has not applied',
  },
  { label: 'Database', title: 'Bytes in use and size of the backend file' },
  { label: 'Requests', class: 'num' },
  { label: 'CPU, memory', class: 'num', title: 'Share of one core, and resident memory' },
  { label: 'Fsync p99', class: 'num', title: '99th percentile of syncing the write-ahead log' },
  { label: 'Uptime', class: 'num' },
  { label: 'Certificate', class: 'num', title: 'When the certificate of the client listener expires' },
];

const ROLE_TONES = {
  leader: 'accent',
  follower: '',
  learner: 'info',
  'no leader': 'warning',
  down: 'critical',
  refused: 'warning',
  'no TLS': 'warning',
};
/** A certificate that expires within this time is marked. */
const CERTIFICATE_SOON_MS = 30 * 24 * 3600 * 1000;

/**
 * Returns whether a member answers the console.
 *
 * @param {{ role: string }} member
 */
export function answers(member) {
  return !['down', 'refused', 'no TLS'].includes(member.role);
}

/** Returns the table in a box that scrolls if the page is narrow, with `show(overview)`. */
export function membersTable() {
  const box = h('div', { class: 'scroll', role: 'region', 'aria-label': 'Members', tabindex: '0' });
  const element = table('Members', COLUMNS, 'members');
  /** @param {import('../store.js').Overview} overview */
  box.show = (overview) => {
    const rows = overview.members.flatMap((member) => {
      const key = member.id || member.name;
      const main = { key, member, overview };
      return member.error || member.errors?.length > 0
        ? [main, { key: `${key}/error`, member, error: true }]
        : [main];
    });
    keyed(
      element.body,
      rows,
      (row) => row.key,
      (row) => (row.error ? errorRow() : memberRow(element)),
      (tr, row) => (row.error ? setText(tr.text, errorText(row.member)) : tr.show(row.member, row.overview)),
    );
  };
  box.append(element);
  return box;
}

function errorRow() {
  const text = h('span', null);
  const tr = h(
    'tr',
    { role: 'row', class: 'row-error' },
    h('td', { role: 'cell', colspan: String(COLUMNS.length) }, text),
  );
  tr.text = text;
  return tr;
}

function errorText(member) {
  if (!member.error) return `Reports: ${member.errors.join('; ')}`;
  const since =
    member.down_secs === null || member.down_secs === undefined ? '' : ` for ${span(member.down_secs)}`;
  const what =
    member.role === 'down'
      ? `Not responding${since}`
      : member.role === 'refused'
        ? 'Refuses this user'
        : member.role === 'no TLS'
          ? 'No request is sent'
          : 'Error';
  return `${what}: ${member.error}`;
}

function memberRow(owner) {
  const name = h('strong', null);
  const id = h('span', { class: 'sub mono' });
  const role = h('span', { class: 'badge' });
  const version = h('span', null);
  const program = h('span', { class: 'sub' });
  const bar = meter();
  const size = h('span', null);
  const quota = h('span', { class: 'sub' });
  const certificate = h('span', null);
  const [applied, behind, requests, cpu, fsync, uptime] = Array.from({ length: 6 }, () => h('span', null));
  const [term, memory] = Array.from({ length: 2 }, () => h('span', { class: 'sub' }));
  const tr = owner.row([
    [name, id],
    role,
    [version, program],
    [applied, term],
    behind,
    [h('span', { class: 'db' }, size, bar, quota)],
    requests,
    [cpu, memory],
    fsync,
    uptime,
    certificate,
  ]);
  tr.show = (member, overview) => {
    const isDown = member.role === 'down';
    tr.classList.toggle('gone', isDown);
    setText(name, member.name || 'unnamed');
    setText(id, member.id || '');
    setText(role, member.role);
    setAttr(role, 'class', `badge ${ROLE_TONES[member.role] ?? ''}`);
    setText(version, member.version ?? UNKNOWN);
    setText(program, member.program && member.program !== member.version ? member.program : '');
    setText(term, member.term == null ? '' : `term ${count(member.term)}`);
    setText(applied, count(member.applied));
    setText(behind, count(member.lag));
    setText(requests, member.requests_per_sec == null ? UNKNOWN : `${number(member.requests_per_sec)}/s`);
    setText(cpu, percent(member.cpu));
    setText(memory, member.gauges?.resident_bytes == null ? '' : bytes(member.gauges.resident_bytes));
    setText(fsync, latency(member.fsync_secs?.p99));
    setText(uptime, span(member.uptime_secs));
    showDatabase(member, bar, size, quota);
    showCertificate(member, overview, certificate);
  };
  return tr;
}

function showDatabase(member, bar, size, quota) {
  const { db_bytes: total, db_used_bytes: used, quota_bytes: limit } = member;
  setText(size, used == null ? bytes(total) : usedOf(used, total));
  setText(
    quota,
    limit
      ? `${percent(total == null ? null : total / limit)} of ${bytes(limit)} quota`
      : total == null
        ? ''
        : 'quota not reported',
  );
  const share = limit && total != null ? total / limit : null;
  const tone = share === null ? '' : share > 0.95 ? 'critical' : share > 0.8 ? 'warning' : '';
  bar.show(limit && used != null ? used / limit : null, share, tone);
}

/** Formats a part of a size, with a single unit if both have the same unit: `115 of 175 MiB`. */
function usedOf(used, total) {
  const [part, whole] = [bytes(used), bytes(total)];
  const unit = whole.split(' ')[1];
  return `${part.endsWith(` ${unit}`) ? part.split(' ')[0] : part} of ${whole}`;
}

function showCertificate(member, overview, element) {
  const own = (overview.certificates ?? []).filter((it) => it.member === member.id);
  const ends = own.map((it) => it.not_after_unix_ms).filter((it) => it != null);
  if (ends.length === 0) {
    const failed = own.find((it) => it.error);
    setText(element, failed ? 'unreadable' : UNKNOWN);
    setAttr(
      element,
      'title',
      failed
        ? failed.error
        : 'The client listener of this member does not use TLS, or its certificate is not known yet.',
    );
    return;
  }
  const first = Math.min(...ends);
  const left = first - overview.unix_ms;
  setText(element, left < 0 ? 'expired' : distance(first, overview.unix_ms));
  setAttr(element, 'title', date(first));
  setAttr(element, 'class', left < 0 ? 'tone-critical' : left < CERTIFICATE_SOON_MS ? 'tone-warning' : null);
}
