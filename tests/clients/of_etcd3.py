"""Uses etcd3 of PyPI over gRPC, and prints its observations, which are the same in every run.

of_etcd3.py plain HOST PORT
of_etcd3.py auth|tls HOST PORT CA CERT KEY

Tokens are sent only over secured connections, because newer versions of grpcio require it.
"""

import io
import sys
import threading

import etcd3
from etcd3 import exceptions


def say(what, *seen):
    print(what + ":", *seen, flush=True)


def refused(what, call):
    try:
        say(what, call())
    except Exception as error:
        code = getattr(error, "code", lambda: None)()
        say(what, type(error).__name__ if code is None else code.name)


def values(found):
    return [(meta.key, value, meta.version) for value, meta in found]


def keys(client):
    say("put", type(client.put("k/a", "one")).__name__)
    say("prev", client.put("k/a", b"\x00\xff two", prev_kv=True).prev_kv.value)
    for name in ("b", "c", "d"):
        client.put("k/" + name, name)
    value, meta = client.get("k/a")
    say("get", value, meta.key, meta.version, meta.lease_id)
    say("nothing", client.get("none"))
    say("prefix", values(client.get_prefix("k/", sort_order="descend")))
    say("keys only", values(client.get_prefix("k/", keys_only=True)))
    say("range", values(client.get_range("k/b", "k/d")))
    say("all", len(list(client.get_all())), client.get_prefix_response("k/").count)
    say("if not there", client.put_if_not_exists("k/e", "e"), client.put_if_not_exists("k/e", "f"))
    say("replace", client.replace("k/e", "e", "g"), client.replace("k/e", "e", "h"))
    say("delete", client.delete("k/e"), client.delete("k/e"))
    say("delete prefix", client.delete_prefix("k/").deleted)


def transactions(client):
    t = client.transactions
    client.put("t/a", "1")
    said = client.transaction(
        compare=[t.value("t/a") == "1", t.version("t/a") > 0, t.create("t/b") == 0],
        success=[t.put("t/b", "2"), t.get("t/a"), t.delete("t/a", prev_kv=True)],
        failure=[t.get("t/a")],
    )
    say("then", said[0], said[1][0].WhichOneof("response"), values(said[1][1]), said[1][2].response_delete_range.deleted)
    said = client.transaction(
        compare=[t.mod("t/b") < 0],
        success=[],
        failure=[t.txn(compare=[t.version("t/a") == 0], success=[t.get("t/b")], failure=[])],
    )
    [nested] = said[1]
    say("else", said[0], nested.response_txn.succeeded, nested.response_txn.responses[0].response_range.count)
    twice = [t.put("t/c", "1"), t.put("t/c", "2")]
    refused("twice", lambda: client.transaction(compare=[], success=twice, failure=[]))


def leases(client):
    lease = client.lease(100)
    client.put("l/a", "v", lease=lease)
    client.put("l/b", "v", lease=lease)
    say("lease", lease.granted_ttl, 90 < lease.remaining_ttl <= 100, sorted(lease.keys))
    say("refresh", [kept.TTL for kept in lease.refresh()])
    chosen = client.lease(60, lease_id=77)
    say("chosen", chosen.id, chosen.ttl)
    refused("again", lambda: client.lease(60, lease_id=77))
    lease.revoke()
    say("revoked", client.get("l/a"), client.get_lease_info(lease.id).TTL)
    refused("unknown", lambda: client.put("l/c", "v", lease=lease))
    events, cancel = client.watch("l/short")
    client.put("l/short", "v", lease=client.lease(1))
    say("expires", [type(next(events)).__name__ for _ in range(2)])
    cancel()


def watches(client):
    events, cancel = client.watch_prefix("w/", prev_kv=True)
    more, cancel_more = client.watch("w/0", progress_notify=True)
    for number in range(300):
        client.put(f"w/{number % 3}", str(number) * 100)
    client.delete("w/0")
    seen = [next(events) for _ in range(301)]
    say("events", len(seen), len(b"".join(event.value for event in seen)), seen[3].prev_value[:3], type(seen[300]).__name__)
    say("another", [type(next(more)).__name__ for _ in range(101)][-1])
    cancel()
    cancel_more()
    first = client.put("w/r", "1").header.revision
    client.put("w/r", "2")
    events, cancel = client.watch("w/r", start_revision=first)
    say("from", [next(events).value for _ in range(2)])
    cancel()
    client.compact(first + 1, physical=True)
    events, cancel = client.watch("w/r", start_revision=1)
    refused("compacted", lambda: next(events))
    refused("compacted twice", lambda: client.compact(1))
    try:
        client.watch_once("w/none", timeout=1)
    except exceptions.WatchTimedOut:
        say("once", "nothing came")
    come = threading.Event()
    watched = client.add_watch_callback("w/cb", lambda response: come.set())
    client.put("w/cb", "v")
    say("called back", come.wait(20))
    client.cancel_watch(watched)


def locks(client):
    lock, other = client.lock("name", ttl=30), client.lock("name", ttl=30)
    say("lock", lock.acquire(), lock.is_acquired(), other.acquire(timeout=1), other.is_acquired())
    say("kept", [kept.TTL for kept in lock.refresh()])
    turn = []
    waiting = threading.Thread(target=lambda: turn.append(other.acquire(timeout=20)))
    waiting.start()
    say("release", lock.release())
    waiting.join()
    say("turn", turn)
    say("held", lock.is_acquired(), other.is_acquired(), other.release())


def members(client):
    [member] = list(client.members)
    say("member", member.name, len(member.peer_urls), list(member.active_alarms))
    status = client.status()
    say("status", status.leader.id == member.id, status.db_size > 0, status.raft_term > 0)
    say("alarm", [alarm.alarm_type for alarm in client.create_alarm()])
    refused("full", lambda: client.put("m", "v"))
    say("disarmed", len(client.disarm_alarm()), list(client.list_alarms()))
    client.defragment()
    say("hash", type(client.hash()).__name__)
    with io.BytesIO() as file:
        client.snapshot(file)
        say("snapshot", file.tell() > 10_000)


def authorized(connect):
    refused("wrong", lambda: connect(user="app", password="wrong"))
    nobody = connect()
    refused("nobody", lambda: nobody.get("app/a"))
    client = connect(user="app", password="secret")
    client.put("app/a", "v")
    say("own", client.get("app/a")[0])
    refused("foreign", lambda: client.put("other", "v"))
    events, cancel = client.watch("app/a")
    client.put("app/a", "w")
    say("event", next(events).value)
    cancel()
    lease = client.lease(30)
    say("lease", [kept.TTL for kept in lease.refresh()])
    refused("remove", lambda: client.remove_member(1))
    client.delete_prefix("app/")


def secured(client):
    keys(client)
    events, cancel = client.watch("s/a")
    client.put("s/a", "v")
    say("event", next(events).value)
    cancel()


if __name__ == "__main__":
    form, host, port, *files = sys.argv[1:]
    ca, cert, key = files or (None, None, None)

    def connect(**more):
        return etcd3.client(host, int(port), ca_cert=ca, cert_cert=cert, cert_key=key, timeout=30, **more)

    if form == "plain":
        client = connect()
        for part in (keys, transactions, leases, watches, locks, members):
            part(client)
    elif form == "auth":
        authorized(connect)
    else:
        secured(connect())
        refused("without", lambda: etcd3.client(host, int(port), ca_cert=ca, timeout=5).get("k"))
