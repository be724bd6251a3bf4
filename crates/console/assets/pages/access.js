/**
 * Users and roles of the cluster: whether authentication is on, who has which role, and what each role may do.
 */

import { call, isAbort } from '../api.js';
import { compare, fromBase64, parseKey, prefixEnd, printable, shorten, toBase64 } from '../bytes.js';
import { fill, h } from '../dom.js';
import { count, plural } from '../format.js';
import { confirm } from '../parts/dialog.js';
import { operateTabs } from '../parts/tabs.js';
import {
  badge,
  button,
  emptyState,
  errorBox,
  field,
  iconButton,
  loading,
  notice,
  segmented,
  table,
} from '../parts/ui.js';
import { session } from '../session.js';

/** @param {import('../shell.js').PageContext} context */
export function accessPage({ signal }) {
  const body = h('div', { class: 'stack' });
  const element = h(
    'div',
    { class: 'page' },
    h('header', { class: 'page-head' }, h('h1', null, 'Operate'), operateTabs('operate/access')),
    session.writes
      ? null
      : notice(
          'info',
          'This console is read-only.',
          'Start it with ',
          h('code', null, '--allow-writes'),
          ' to change users and roles.',
        ),
    body,
  );
  const load = async () => {
    if (body.children.length === 0) fill(body, loading());
    try {
      const list = await call('auth/list', {}, { signal });
      fill(body, stateSection(list), usersSection(list, load), rolesSection(list, load, signal));
    } catch (error) {
      if (!isAbort(error)) fill(body, errorBox(error, load));
    }
  };
  load();
  return { element };
}

function section(title, action, ...content) {
  return h(
    'section',
    null,
    h('div', { class: 'section-head' }, h('h2', null, title), session.writes ? action : null),
    ...content,
  );
}

function stateSection(list) {
  const hasRoot = list.users.some((user) => user.name === 'root' && user.roles.includes('root'));
  const enable = button('Enable authentication', () => {
    confirm({
      title: 'Enable authentication',
      body: [
        h(
          'p',
          null,
          'From then on, every request needs a user. Clients without a login are refused immediately.',
        ),
        h('p', null, 'The root user, who has the root role, can do everything. This page then asks for a login.'),
        hasRoot
          ? null
          : notice(
              'warning',
              null,
              'There is no root user with the root role yet, so the cluster refuses this. Create both first.',
            ),
      ],
      typed: 'enable',
      danger: true,
      action: 'Enable authentication',
      run: () => call('write/auth_enable'),
      done: () => 'Authentication is on.',
      after: () => location.reload(),
    });
  });
  const disable = button(
    'Disable authentication',
    () => {
      confirm({
        title: 'Disable authentication',
        body: [
          h(
            'p',
            null,
            'From then on, everyone who can reach a client listener can read and write all keys. Users and roles are kept.',
          ),
        ],
        typed: 'disable',
        danger: true,
        action: 'Disable authentication',
        run: () => call('write/auth_disable'),
        done: () => 'Authentication is off.',
        after: () => location.reload(),
      });
    },
    { kind: 'danger' },
  );
  const text = list.enabled
    ? 'Authentication is on: every request needs a user.'
    : 'Authentication is off: every client has all permissions.';
  return section('Authentication', list.enabled ? disable : enable, h('p', { class: 'muted' }, text));
}

function usersSection(list, reload) {
  const columns = [
    { label: 'User' },
    { label: 'Roles' },
    { label: 'Operations', hidden: true, class: 'actions' },
  ];
  const rows = table('Users', columns);
  rows.fillRows(
    list.users.map((user) => [
      h('strong', null, user.name),
      h(
        'span',
        { class: 'chips' },
        user.roles.map((role) => roleChip(user, role, reload)),
        user.roles.length === 0 ? h('span', { class: 'muted' }, 'no roles') : null,
      ),
      session.writes
        ? h(
            'div',
            { class: 'button-row' },
            button('Grant a role', () => grantRole(user, list.roles, reload), { small: true }),
            button('Password', () => changePassword(user, reload), { small: true }),
            button('Delete', () => deleteUser(user, reload), { small: true, kind: 'danger' }),
          )
        : '',
    ]),
  );
  return section(
    'Users',
    button('Add a user', () => addUser(reload), { icon: 'plus' }),
    list.users.length === 0 ? emptyState(h('p', null, 'There are no users.')) : rows,
    list.omitted > 0 ? h('p', { class: 'muted' }, `${count(list.omitted)} more are not shown.`) : null,
  );
}

function roleChip(user, role, reload) {
  if (!session.writes) return badge(role);
  return h(
    'span',
    { class: 'badge chip' },
    role,
    iconButton('close', `Revoke the role ${role} from ${user.name}`, () => {
      confirm({
        title: 'Revoke a role',
        body: [
          h(
            'p',
            null,
            `The user ${user.name} immediately loses the role ${role} and its permissions.`,
          ),
        ],
        danger: true,
        action: 'Revoke the role',
        run: () => call('write/user_revoke', { name: user.name, role }),
        done: () => `Revoked ${role} from ${user.name}.`,
        after: reload,
      });
    }),
  );
}

const nameInput = () =>
  h('input', {
    type: 'text',
    required: true,
    autocomplete: 'off',
    autocapitalize: 'none',
    spellcheck: 'false',
  });
const passwordInput = () => h('input', { type: 'password', autocomplete: 'new-password' });

function addUser(reload) {
  const name = field('Name', nameInput());
  const password = field(
    'Password',
    passwordInput(),
    'Leave it empty for a user who logs in with a client certificate only.',
  );
  confirm({
    title: 'Add a user',
    body: [h('p', null, 'The user has no permissions until a role is granted.')],
    fields: [name, password],
    action: 'Add the user',
    run: () => call('write/user_add', { name: name.input.value, password: password.input.value || null }),
    done: () => `Added the user ${name.input.value}.`,
    after: reload,
  });
}

function changePassword(user, reload) {
  const password = field('New password', passwordInput());
  password.input.required = true;
  confirm({
    title: `Change the password of ${user.name}`,
    body: [h('p', null, 'Logins with the former password are refused from then on.')],
    fields: [password],
    action: 'Change the password',
    run: () => call('write/user_password', { name: user.name, password: password.input.value }),
    done: () => `Changed the password of ${user.name}.`,
    after: reload,
  });
}

function deleteUser(user, reload) {
  confirm({
    title: `Delete the user ${user.name}`,
    body: [h('p', null, 'The user is deleted, and can no longer log in.')],
    typed: user.name,
    danger: true,
    action: 'Delete the user',
    run: () => call('write/user_delete', { name: user.name }),
    done: () => `Deleted the user ${user.name}.`,
    after: reload,
  });
}

function grantRole(user, roles, reload) {
  const missing = roles.filter((role) => !user.roles.includes(role));
  const role = field(
    'Role',
    h(
      'select',
      { required: true },
      missing.map((name) => h('option', { value: name }, name)),
    ),
  );
  confirm({
    title: `Grant a role to ${user.name}`,
    body: [
      missing.length === 0
        ? notice('info', null, 'The user already has all roles.')
        : h('p', null, 'The user receives the permissions of the role immediately.'),
    ],
    fields: [role],
    action: 'Grant the role',
    run: () => call('write/user_grant', { name: user.name, role: role.input.value }),
    done: () => `Granted ${role.input.value} to ${user.name}.`,
    after: reload,
  });
}

function rolesSection(list, reload, signal) {
  const items = list.roles.map((name) => roleItem(name, reload, signal));
  return section(
    'Roles',
    button('Add a role', () => addRole(reload), { icon: 'plus' }),
    items.length === 0
      ? emptyState(h('p', null, 'There are no roles.'))
      : h('div', { class: 'card roles' }, items),
  );
}

/** A role, whose permissions are loaded when it is opened. */
function roleItem(name, reload, signal) {
  const body = h('div', { class: 'role-body' });
  const load = async () => {
    fill(body, loading());
    try {
      const role = await call('auth/role', { name }, { signal });
      fill(body, permissions(name, role.permissions, load));
    } catch (error) {
      if (!isAbort(error)) fill(body, errorBox(error, load));
    }
  };
  const details = h('details', { ontoggle: () => details.open && load() }, h('summary', null, name), body);
  const remove = button('Delete', () => deleteRole(name, reload), { small: true, kind: 'danger' });
  remove.setAttribute('aria-label', `Delete the role ${name}`);
  return h('div', { class: 'role' }, details, session.writes ? remove : null);
}

/** The text of the range of a permission. */
function rangeText(permission) {
  const key = printable(fromBase64(permission.key));
  if (permission.range_end === null || permission.range_end === '') return `key ${shorten(key, 200)}`;
  const end = fromBase64(permission.range_end);
  const isOpen = end.length === 1 && end[0] === 0;
  if (isOpen && (key === '' || key === '\\x00')) return 'all keys';
  if (isOpen) return `keys from ${shorten(key, 200)}`;
  if (permission.is_prefix || compare(prefixEnd(fromBase64(permission.key)), end) === 0)
    return `prefix ${shorten(key, 200)}`;
  return `keys from ${shorten(key, 200)} up to, but not including, ${shorten(printable(end), 200)}`;
}

function permissions(role, list, reload) {
  const rows = list.map((it) =>
    h(
      'li',
      null,
      badge(it.type === 'readwrite' ? 'read and write' : it.type, it.type === 'read' ? 'info' : 'warning'),
      h('span', { class: 'mono break' }, rangeText(it)),
      session.writes
        ? iconButton('close', `Revoke the permission on ${rangeText(it)}`, () => {
            confirm({
              title: 'Revoke a permission',
              body: [h('p', null, `The role ${role} loses the permission on: ${rangeText(it)}.`)],
              danger: true,
              action: 'Revoke the permission',
              run: () => call('write/role_revoke', { name: role, key: it.key, range_end: it.range_end }),
              done: () => `Revoked a permission from ${role}.`,
              after: reload,
            });
          })
        : null,
    ),
  );
  const isRoot = role === 'root';
  return [
    isRoot ? h('p', { class: 'muted' }, 'The root role has all permissions.') : null,
    rows.length > 0
      ? h('ul', { class: 'plain permissions' }, rows)
      : isRoot
        ? null
        : h('p', { class: 'muted' }, `The role has ${plural(0, 'permission')}.`),
    session.writes && !isRoot
      ? button('Grant a permission', () => grantPermission(role, reload), { small: true })
      : null,
  ];
}

function addRole(reload) {
  const name = field('Name', nameInput());
  confirm({
    title: 'Add a role',
    body: [h('p', null, 'The role has no permissions at first.')],
    fields: [name],
    action: 'Add the role',
    run: () => call('write/role_add', { name: name.input.value }),
    done: () => `Added the role ${name.input.value}.`,
    after: reload,
  });
}

function deleteRole(name, reload) {
  confirm({
    title: `Delete the role ${name}`,
    body: [h('p', null, 'The role is deleted, and all users lose it immediately.')],
    typed: name,
    danger: true,
    action: 'Delete the role',
    run: () => call('write/role_delete', { name }),
    done: () => `Deleted the role ${name}.`,
    after: reload,
  });
}

function grantPermission(role, reload) {
  let type = 'read';
  let range = 'prefix';
  const types = segmented(
    'Permission',
    [
      ['read', 'Read'],
      ['write', 'Write'],
      ['readwrite', 'Read and write'],
    ],
    type,
    (value) => {
      type = value;
    },
  );
  const ranges = segmented(
    'Range',
    [
      ['key', 'One key'],
      ['prefix', 'Prefix'],
      ['from', 'From a key onwards'],
    ],
    range,
    (value) => {
      range = value;
    },
  );
  const key = field(
    'Key or prefix',
    h('input', {
      type: 'text',
      class: 'mono',
      spellcheck: 'false',
      autocomplete: 'off',
      autocapitalize: 'none',
    }),
    'Write \\xNN for a byte that is not text. An empty prefix means all keys.',
  );
  confirm({
    title: `Grant a permission to ${role}`,
    body: [h('p', null, 'All users with the role receive the permission immediately.')],
    fields: [types, ranges, key],
    action: 'Grant the permission',
    run: () => {
      const bytes = parseKey(key.input.value);
      // The cluster accepts no empty key here: all keys are the range from one NUL byte on.
      const start = bytes.length === 0 && range !== 'key' ? Uint8Array.of(0) : bytes;
      const end =
        range === 'key' ? null : range === 'from' || bytes.length === 0 ? Uint8Array.of(0) : prefixEnd(bytes);
      return call('write/role_grant', {
        name: role,
        type,
        key: toBase64(start),
        range_end: end === null ? null : toBase64(end),
      });
    },
    done: () => `Granted a permission to ${role}.`,
    after: reload,
  });
}
