/**
 * The operations on the cluster and its members, each with a confirmation that names exactly what will happen.
 */

import { call } from '../api.js';
import { h } from '../dom.js';
import { bytes as size, count, plural } from '../format.js';
import { store } from '../store.js';
import { confirm } from './dialog.js';
import { checkbox, field, notice } from './ui.js';

/** Compaction and defragmentation of a large store take minutes. */
const LONG_MS = 30 * 60 * 1000;
/** The revisions that a compaction keeps by default. */
const KEPT_REVISIONS = 1000;

/** Returns the name of a member, or its id if it has no name because it has not started yet. */
const nameOf = (member) => (member.name && member.name !== '(unnamed)' ? member.name : member.id);

/** A member that does not answer has the role `down`, even if it is a learner. */
const isLearner = (member) => member.is_learner ?? member.role === 'learner';

/** Parses peer URLs, which are on separate lines or separated by commas. */
function urlsIn(text) {
  return text.split(/[\s,]+/).filter((url) => url !== '');
}

export function moveLeader(member) {
  confirm({
    title: `Move the leader to ${nameOf(member)}`,
    body: [
      h(
        'p',
        null,
        'The current leader hands over leadership to this member. Writes wait for a moment, and no write is lost.',
      ),
    ],
    action: 'Move the leader',
    run: () => call('write/move_leader', { to: member.id }),
    done: () => `${nameOf(member)} is the leader now.`,
  });
}

export function defragment(member) {
  const free =
    member.db_bytes != null && member.db_used_bytes != null ? member.db_bytes - member.db_used_bytes : null;
  confirm({
    title: `Defragment ${nameOf(member)}`,
    body: [
      h(
        'p',
        null,
        `The backend file of this member is rewritten without its free pages${free === null ? '' : ` (${size(free)})`}.`,
      ),
      notice(
        'warning',
        null,
        'Meanwhile, a member that runs etcd does not respond, but a member that runs Quorate continues to serve requests. Defragment one member at a time, and the leader last.',
      ),
    ],
    action: 'Defragment',
    run: (report) => {
      report('Defragmenting. This may take minutes for a large file …');
      return call('write/defragment', { member: member.id }, { timeoutMs: LONG_MS });
    },
    done: (answer) =>
      `Defragmented ${nameOf(member)}: ${size(answer.db_bytes_before)} before, ${size(answer.db_bytes_after)} after.`,
  });
}

export function promote(member) {
  confirm({
    title: `Promote ${nameOf(member)}`,
    body: [
      h(
        'p',
        null,
        'The learner becomes a voting member. The cluster refuses this while the learner is too far behind the leader.',
      ),
    ],
    action: 'Promote',
    run: () => call('write/member_promote', { id: member.id }),
    done: () => `${nameOf(member)} is a voting member now.`,
  });
}

export function updatePeerUrls(member) {
  const urls = field(
    'Peer URLs',
    h('textarea', {
      class: 'mono',
      rows: '3',
      spellcheck: 'false',
      value: (member.peer_urls ?? []).join('\n'),
    }),
    'One per line.',
  );
  confirm({
    title: `Change the peer URLs of ${nameOf(member)}`,
    body: [
      h(
        'p',
        null,
        'The other members connect to this member at these URLs from then on. With wrong URLs, the member is cut off.',
      ),
    ],
    fields: [urls],
    danger: true,
    action: 'Change the URLs',
    run: () => call('write/member_update', { id: member.id, peer_urls: urlsIn(urls.input.value) }),
    done: () => `Changed the peer URLs of ${nameOf(member)}.`,
  });
}

export function removeMember(member) {
  const voters = (store.overview?.members ?? []).filter((it) => !isLearner(it));
  const isVoter = !isLearner(member);
  const left = voters.length - (isVoter ? 1 : 0);
  const tolerates = Math.max(0, Math.ceil(left / 2) - 1);
  confirm({
    title: `Remove the member ${nameOf(member)}`,
    body: [
      h(
        'p',
        null,
        `The member ${nameOf(member)} (${member.id}) permanently leaves the cluster and stops. It cannot return with its data; a new member needs an empty data directory.`,
      ),
      h(
        'p',
        null,
        left === 0
          ? 'It is the only voting member, so the cluster refuses this.'
          : `${plural(left, 'voting member')} ${left === 1 ? 'remains' : 'remain'}. The cluster then tolerates the loss of ${plural(tolerates, 'member')}.`,
      ),
      member.role === 'leader'
        ? notice('warning', null, 'This member is the leader. Another leader will be elected.')
        : null,
    ],
    typed: nameOf(member),
    danger: true,
    action: 'Remove the member',
    run: () => call('write/member_remove', { id: member.id }),
    done: () => `Removed ${nameOf(member)}.`,
  });
}

export function addMember() {
  const urls = field(
    'Peer URLs of the new member',
    h('textarea', {
      class: 'mono',
      rows: '3',
      spellcheck: 'false',
      required: true,
      placeholder: 'http://10.0.0.4:2380',
    }),
    'One per line.',
  );
  const learner = checkbox(
    'Add it as a learner, which does not vote until it is promoted (recommended)',
    true,
  );
  confirm({
    title: 'Add a member',
    body: [
      h(
        'p',
        null,
        'The member is added to the membership. Then start it with an empty data directory and ',
        h('code', null, '--initial-cluster-state=existing'),
        '.',
      ),
      h('p', null, 'A voting member that is not started yet counts as failed.'),
    ],
    fields: [urls, learner],
    action: 'Add the member',
    run: () =>
      call('write/member_add', { peer_urls: urlsIn(urls.input.value), learner: learner.input.checked }),
    done: (answer) => `Added the member ${answer.id}.`,
  });
}

export function compact() {
  const newest = store.overview?.cluster.revision ?? null;
  const revision = field(
    'Revision',
    h('input', {
      type: 'number',
      min: '1',
      step: '1',
      required: true,
      value: newest === null ? '' : String(Math.max(1, newest - KEPT_REVISIONS)),
    }),
    newest === null ? undefined : `The newest revision is ${count(newest)}.`,
  );
  const physical = checkbox('Wait until the member that handles the request has removed the records', true);
  confirm({
    title: 'Compact the history',
    body: [
      h(
        'p',
        null,
        'Values that were superseded or deleted at or before this revision are permanently removed. The current values of all keys remain.',
      ),
      h(
        'p',
        null,
        'Watches and reads of older revisions fail afterwards. The backend file does not become smaller until it is defragmented.',
      ),
    ],
    fields: [revision, physical],
    danger: true,
    action: 'Compact',
    run: (report) => {
      report('Compacting …');
      return call(
        'write/compact',
        { revision: Number(revision.input.value), physical: physical.input.checked },
        { timeoutMs: LONG_MS },
      );
    },
    done: () => `Compacted up to revision ${count(Number(revision.input.value))}.`,
  });
}

export function disarm(alarm, member) {
  const name = member ? nameOf(member) : alarm.member;
  confirm({
    title: `Disarm the alarm ${alarm.name}`,
    body: [
      h('p', null, `The alarm ${alarm.name} on member ${name} is disarmed.`),
      h('p', null, alarm.advice ?? 'If its cause still exists, the alarm is raised again.'),
    ],
    action: 'Disarm',
    danger: alarm.name === 'CORRUPT',
    typed: alarm.name === 'CORRUPT' ? 'CORRUPT' : undefined,
    run: () => call('write/alarm_disarm', { member: alarm.member, name: alarm.name }),
    done: () => `Disarmed ${alarm.name} on ${name}.`,
  });
}
