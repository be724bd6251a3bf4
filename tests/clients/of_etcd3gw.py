"""Uses etcd3gw of PyPI over HTTP and JSON, and prints its observations, which are the same in every run.

of_etcd3gw.py plain|auth HOST PORT
of_etcd3gw.py tls HOST PORT CA CERT KEY
"""

import sys

import etcd3gw
from etcd3gw.utils import _encode as encoded


def say(what, *seen):
    print(what + ":", *seen, flush=True)


def refused(what, call):
    try:
        say(what, call())
    except Exception as error:
        text = getattr(error, "detail_text", None) or str(error)
        say(what, type(error).__name__, "".join(text.split()) if "{" in text else "")


def values(found):
    return [(meta["key"], value, meta["version"]) for value, meta in found]


def keys(client):
    say("path", client.api_path)
    say("put", client.put("k/a", "one"), client.put("k/a", b"\x00\xff two"))
    for name in ("b", "c", "d"):
        client.put("k/" + name, name)
    say("empty", client.put("k/", ""), client.get("k/"))
    [(value, meta)] = client.get("k/a", metadata=True)
    say("get", value, meta["key"], sorted(meta))
    say("nothing", client.get("none"))
    say("prefix", values(client.get_prefix("k/", sort_order="descend", sort_target="mod")))
    say("range", client.get("k/b", range_end="k/d", sort_order="ascend", sort_target="value"))
    say("limit", client.get("k/", range_end="k0", limit=2))
    say("all", len(client.get_all()))
    say("create", client.create("k/e", "e"), client.create("k/e", "f"))
    say("replace", client.replace("k/e", "e", "g"), client.replace("k/e", "e", "h"))
    say("delete", client.delete("k/e"), client.delete("k/e"))
    say("delete prefix", client.delete_prefix("k/"))
    refused("no key", lambda: client.put("", "v"))


def transactions(client):
    key, value = encoded("t/a"), encoded("1")
    client.put("t/a", "1")
    said = client.transaction({
        "compare": [{"key": key, "result": "EQUAL", "target": "VALUE", "value": value},
                    {"key": key, "result": "GREATER", "target": "VERSION", "version": 0}],
        "success": [{"request_put": {"key": encoded("t/b"), "value": value}}, {"request_range": {"key": key}},
                    {"request_delete_range": {"key": key, "prev_kv": True}}],
        "failure": [],
    })
    say("then", said["succeeded"], [sorted(one) for one in said["responses"]])
    say("deleted", said["responses"][2]["response_delete_range"]["prev_kvs"][0]["value"] == value)
    said = client.transaction({
        "compare": [{"key": key, "result": "NOT_EQUAL", "target": "MOD", "mod_revision": "0"}],
        "failure": [{"request_range": {"key": encoded("t/"), "range_end": encoded("t0"), "count_only": True}}],
    })
    say("else", said.get("succeeded"), said["responses"][0]["response_range"]["count"])
    twice = {"request_put": {"key": key, "value": value}}
    refused("twice", lambda: client.transaction({"success": [twice, twice]}))
    refused("no JSON", lambda: client.post(client.get_url("/kv/txn"), data="{"))
    refused("no field", lambda: client.post(client.get_url("/kv/put"), json={"key": key, "nothing": 1})["header"].keys())
    refused("no base64", lambda: client.post(client.get_url("/kv/put"), json={"key": "*"}))
    refused("no path", lambda: client.post(client.get_url("/kv/nothing"), json={}))


def leases(client):
    lease = client.lease(ttl=100)
    client.put("l/a", "v", lease=lease)
    client.put("l/b", "v", lease=lease)
    say("lease", 90 < lease.ttl() <= 100, sorted(lease.keys()), lease.refresh())
    say("revoked", lease.revoke(), client.get("l/a"), lease.refresh(), lease.ttl(), lease.keys())
    refused("unknown", lambda: client.put("l/c", "v", lease=lease))
    refused("revoked twice", lease.revoke)
    events, cancel = client.watch("l/short")
    client.put("l/short", "v", lease=client.lease(ttl=1))
    say("expires", [next(events).get("type", "PUT") for _ in range(2)])
    cancel()


def watches(client):
    events, cancel = client.watch_prefix("w/", prev_kv=True)
    more, cancel_more = client.watch_prefix("w/", filters=["NOPUT"])
    for number in range(300):
        client.put(f"w/{number % 3}", str(number) * 100)
    client.delete("w/0")
    seen = [next(events) for _ in range(301)]
    say("events", len(seen), len(b"".join(event["kv"].get("value", b"") for event in seen)), sorted(seen[3]), seen[300]["type"])
    say("filtered", next(more)["type"])
    cancel()
    cancel_more()
    # The whole history arrives at once, because the watch starts at a past revision.
    first = int(seen[0]["kv"]["mod_revision"])
    events, cancel = client.watch_prefix("w/", start_revision=first)
    say("past", [next(events)["kv"]["value"][:3] for _ in range(5)])
    say("past", [next(events).get("type", "PUT") for _ in range(296)][-1])
    cancel()
    try:
        client.watch_once("w/none", timeout=1)
    except etcd3gw.exceptions.WatchTimedOut:
        say("once", "nothing came")
    say("again", client.watch_once("w/1", start_revision=first)["kv"]["version"])


def locks(client):
    lock, other = client.lock("name", ttl=30), client.lock("name", ttl=30)
    say("lock", lock.acquire(), lock.is_acquired(), other.acquire(), other.is_acquired())
    say("kept", lock.refresh())
    say("release", other.release(), lock.release(), other.acquire(), other.release())
    with client.lock("scope") as held:
        say("scope", held.is_acquired())
    say("left", held.is_acquired())


def members(client):
    [member] = client.members()
    say("member", sorted(member), member["name"])
    status = client.status()
    say("status", sorted(set(status) & {"leader", "version", "dbSize", "raftIndex", "raftTerm"}), status["leader"] == member["ID"])


def authorized(host, port):
    client = etcd3gw.client(host, port, timeout=30)
    refused("nobody", lambda: client.get("app/a"))
    login = {"name": "app", "password": "wrong"}
    refused("wrong", lambda: client.post(client.get_url("/auth/authenticate"), json=login))
    login["password"] = "secret"
    token = client.post(client.get_url("/auth/authenticate"), json=login)["token"]
    client.session.headers["Authorization"] = token
    say("own", client.put("app/a", "v"), client.get("app/a"))
    refused("foreign", lambda: client.put("other", "v"))
    events, cancel = client.watch("app/a")
    client.put("app/a", "w")
    say("event", next(events)["kv"]["value"])
    cancel()
    lock = client.lock("app")
    refused("lock", lock.acquire)
    client.session.headers["Authorization"] = "nonsense"
    refused("nonsense", lambda: client.get("app/a"))


if __name__ == "__main__":
    form, host, port, *files = sys.argv[1:]
    if form == "plain":
        client = etcd3gw.client(host, int(port), timeout=30)
        for part in (keys, transactions, leases, watches, locks, members):
            part(client)
    elif form == "auth":
        authorized(host, int(port))
    else:
        ca, cert, key = files
        client = etcd3gw.client(host, int(port), protocol="https", ca_cert=ca, cert_cert=cert, cert_key=key, timeout=30)
        keys(client)
        events, cancel = client.watch("s/a")
        client.put("s/a", "v")
        say("event", next(events)["kv"]["value"])
        cancel()
        refused("without", lambda: etcd3gw.client(host, int(port), protocol="https", ca_cert=ca, timeout=5).get("k"))
