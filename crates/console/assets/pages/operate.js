/**
 * Operates the cluster: members, storage, alarms. Operations that the console or the user may not perform are disabled, and
 * the page shows the reason.
 */

import { fill, h, keyed, setAttr, setText } from '../dom.js';
import { bytes as size, UNKNOWN } from '../format.js';
import { answers } from '../parts/members.js';
import * as operations from '../parts/operations.js';
import { snapshotPanel } from '../parts/snapshot.js';
import { operateTabs } from '../parts/tabs.js';
import { button, loading, notice, table } from '../parts/ui.js';
import { session } from '../session.js';
import { store } from '../store.js';

/** Returns a notice with the reason why operations are not possible; `null` if they are possible. */
function restriction() {
  if (!session.writes) {
    return notice(
      'info',
      'This console is read-only.',
      'Start it with ',
      h('code', null, '--allow-writes'),
      ' to operate the cluster.',
    );
  }
  if (!session.isRoot) {
    const roles = session.who?.roles.join(', ') || 'none';
    return notice(
      'warning',
      `The user ${session.user} may not operate the cluster.`,
      `The cluster allows these operations only to users with the root role. Roles of ${session.user}: ${roles}.`,
    );
  }
  return null;
}

/** @param {import('../shell.js').PageContext} context */
export function operatePage({ signal }) {
  const isAllowed = session.writes && session.isRoot;
  const members = membersTable(isAllowed);
  const snapshot = snapshotPanel(signal, isAllowed);
  const alarms = h('div', { class: 'stack' });
  const body = h('div', { class: 'stack' }, loading('Waiting for the first sample'));
  const element = h(
    'div',
    { class: 'page' },
    h('header', { class: 'page-head' }, h('h1', null, 'Operate'), operateTabs('operate')),
    restriction(),
    body,
  );

  const show = () => {
    const { overview } = store;
    if (overview === null) return;
    if (!members.isConnected) {
      fill(
        body,
        section(
          'Members',
          button('Add a member', operations.addMember, { icon: 'plus', disabled: !isAllowed }),
          members,
        ),
        h(
          'div',
          { class: 'columns' },
          section('Snapshot', null, h('div', { class: 'card pad' }, snapshot)),
          section(
            'History',
            null,
            h(
              'div',
              { class: 'card pad stack' },
              h(
                'p',
                { class: 'muted' },
                'Each change keeps the previous value until a compaction removes it.',
              ),
              h('div', null, button('Compact', operations.compact, { disabled: !isAllowed })),
            ),
          ),
        ),
        section('Alarms', null, alarms),
      );
    }
    members.show(overview);
    snapshot.show(overview);
    showAlarms(alarms, overview, isAllowed);
  };
  store.addEventListener('sample', show, { signal });
  show();
  return { element };
}

function section(title, action, ...content) {
  return h('section', null, h('div', { class: 'section-head' }, h('h2', null, title), action), ...content);
}

function membersTable(isAllowed) {
  const element = table('Members', [
    { label: 'Member' },
    { label: 'Role' },
    { label: 'Peer URLs' },
    { label: 'Free in the backend file', class: 'num' },
    { label: 'Operations', class: 'actions' },
  ]);
  element.show = (overview) => {
    keyed(
      element.body,
      overview.members,
      (it) => it.id || it.name,
      () => memberRow(element, isAllowed),
      (tr, it) => tr.show(it),
    );
  };
  return element;
}

function memberRow(owner, isAllowed) {
  let member = /** @type {any} */ ({});
  const name = h('strong', null);
  const id = h('span', { class: 'sub mono' });
  const role = h('span', null);
  const urls = h('span', { class: 'mono break' });
  const free = h('span', null);
  const make = (label, run, kind) =>
    button(label, () => run(member), { small: true, kind, disabled: !isAllowed });
  const leader = make('Make leader', operations.moveLeader, '');
  const defragment = make('Defragment', operations.defragment, '');
  const promote = make('Promote', operations.promote, '');
  const change = make('Peer URLs', operations.updatePeerUrls, '');
  const remove = make('Remove', operations.removeMember, 'danger');
  const buttons = [leader, promote, defragment, change, remove];
  const tr = owner.row([[name, id], role, urls, free, h('div', { class: 'button-row' }, buttons)]);
  tr.show = (it) => {
    member = it;
    setText(name, it.name || 'unnamed');
    setText(id, it.id ?? '');
    setText(role, it.role);
    setText(urls, (it.peer_urls ?? []).join(', ') || UNKNOWN);
    setText(
      free,
      it.db_bytes != null && it.db_used_bytes != null ? size(it.db_bytes - it.db_used_bytes) : UNKNOWN,
    );
    leader.hidden = it.role !== 'follower';
    promote.hidden = !(it.is_learner ?? it.role === 'learner');
    defragment.disabled = !isAllowed || !answers(it);
    for (const each of buttons) setAttr(each, 'aria-label', `${each.textContent}: ${it.name || it.id}`);
  };
  return tr;
}

function showAlarms(parent, overview, isAllowed) {
  const items = overview.alarms?.length > 0 ? overview.alarms : [{ none: true }];
  keyed(
    parent,
    items,
    (alarm) => (alarm.none ? 'none' : `${alarm.member}/${alarm.name}`),
    (alarm) => {
      if (alarm.none) return h('p', { class: 'muted' }, 'No alarm is active.');
      const member = overview.members.find((it) => it.id === alarm.member);
      const act = button('Disarm', () => operations.disarm(alarm, member), {
        small: true,
        disabled: !isAllowed,
      });
      return notice(
        'critical',
        `${alarm.name} on ${member?.name || alarm.member}`,
        alarm.advice ?? '',
        h('p', null, act),
      );
    },
    () => {},
  );
}
