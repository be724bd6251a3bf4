"""Uses aetcd of PyPI over gRPC in an event loop, and prints its observations, which are the same in every run.

of_aetcd.py plain|auth HOST PORT
"""

import asyncio
import io
import sys

import aetcd
import grpc.aio


def say(what, *seen):
    print(what + ":", *seen, flush=True)


async def refused(what, call):
    try:
        say(what, await call)
    except grpc.aio.AioRpcError as error:
        say(what, error.code().name)
    except Exception as error:
        say(what, type(error).__name__)


def values(found):
    return [(one.key, one.value, one.version) for one in found]


async def keys(client):
    say("put", type(await client.put(b"k/a", b"one")).__name__)
    say("prev", (await client.put(b"k/a", b"\x00\xff two", prev_kv=True)).prev_kv.value)
    for name in (b"b", b"c", b"d"):
        await client.put(b"k/" + name, name)
    found = await client.get(b"k/a")
    say("get", found.value, found.version, found.lease)
    say("nothing", await client.get(b"none"))
    say("prefix", values(await client.get_prefix(b"k/", sort_order="descend", sort_target="mod")))
    say("keys only", values(await client.get_prefix(b"k/", keys_only=True)))
    say("range", values(await client.get_range(b"k/b", b"k/d")))
    say("all", len(await client.get_all()))
    say("replace", await client.replace(b"k/a", b"one", b"x"), await client.replace(b"k/b", b"b", b"x"))
    say("delete", (await client.delete(b"k/b", prev_kv=True)).prev_kv.value, await client.delete(b"k/b"))
    say("delete range", (await client.delete_range(b"k/c", b"k/d")).deleted)
    say("delete prefix", (await client.delete_prefix(b"k/")).deleted)
    say("together", len(await asyncio.gather(*(client.put(b"k/%d" % n, b"v") for n in range(200)))))


async def transactions(client):
    t = client.transactions
    await client.put(b"t/a", b"1")
    said = await client.transaction(
        compare=[t.value(b"t/a") == b"1", t.version(b"t/a") > 0, t.create(b"t/b") == 0],
        success=[t.put(b"t/b", b"2"), t.get(b"t/a"), t.delete(b"t/a", prev_kv=True)],
        failure=[t.get(b"t/a")],
    )
    say("then", said[0], len(said[1]), [(value, one.key) for value, one in said[1][1]])
    twice = [t.put(b"t/c", b"1"), t.put(b"t/c", b"2")]
    await refused("twice", client.transaction(compare=[], success=twice, failure=[]))


async def leases(client):
    lease = await client.lease(100)
    await client.put(b"l/a", b"v", lease=lease)
    await client.put(b"l/b", b"v", lease=lease)
    say("lease", await lease.granted_ttl(), 90 < await lease.remaining_ttl() <= 100, sorted(await lease.keys()))
    say("refresh", (await lease.refresh()).TTL)
    await refused("again", client.lease(60, lease_id=lease.id))
    await lease.revoke()
    say("revoked", await client.get(b"l/a"), (await client.get_lease_info(lease.id)).TTL)
    await refused("unknown", client.put(b"l/c", b"v", lease=lease))
    say("refreshed", (await client.refresh_lease(lease.id)).TTL)
    watch = await client.watch(b"l/short")
    await client.put(b"l/short", b"v", lease=await client.lease(1))
    say("expires", [event.kind async for event in taken(watch, 2)])
    await watch.cancel()


async def taken(watch, count):
    async for event in watch:
        yield event
        count -= 1
        if count == 0:
            return


async def watches(client):
    watch = await client.watch_prefix(b"w/", prev_kv=True, fragment=True, progress_notify=True)
    puts = await client.watch_prefix(b"w/", kind=aetcd.EventKind.PUT)
    chosen = await client.watch(b"w/0", watch_id=4242)
    for number in range(300):
        await client.put(b"w/%d" % (number % 3), str(number).encode() * 100)
    await client.delete(b"w/0")
    seen = [event async for event in taken(watch, 301)]
    say("events", len(seen), len(b"".join(event.kv.value for event in seen)), seen[3].prev_kv.value[:3], seen[300].kind)
    say("filtered", [event.kind async for event in taken(puts, 300)][-1])
    say("chosen", chosen.watch_id, [event.kind async for event in taken(chosen, 101)][-1])
    for one in (watch, puts, chosen):
        await one.cancel()
    first = (await client.put(b"w/r", b"1")).header.revision
    await client.put(b"w/r", b"2")
    watch = await client.watch(b"w/r", start_revision=first)
    say("from", [event.kv.value async for event in taken(watch, 2)])
    await watch.cancel()
    await client.compact(first + 1, physical=True)

    async def compacted():
        return [event async for event in taken(await client.watch(b"w/r", start_revision=1), 1)]

    await refused("compacted", compacted())
    await refused("once", client.watch_once(b"w/none", timeout=1))


async def locks(client):
    lock, other = client.lock(b"name", ttl=30), client.lock(b"name", ttl=30)
    say("lock", await lock.acquire(), await lock.is_acquired(), await other.acquire(timeout=1))
    say("kept", (await lock.refresh()).TTL)
    turn = asyncio.create_task(other.acquire(timeout=20))
    say("release", await lock.release(), await turn)
    say("held", await lock.is_acquired(), await other.is_acquired(), await other.release())
    async with client.lock(b"scope") as held:
        say("scope", await held.is_acquired())


async def members(client):
    [member] = [member async for member in client.members()]
    say("member", member.name, len(member.peer_urls))
    status = await client.status()
    say("status", status.leader.id == member.id, status.db_size > 0)
    say("hash", type(await client.hash()).__name__)
    with io.BytesIO() as file:
        await client.snapshot(file)
        say("snapshot", file.tell() > 10_000)


async def authorized(host, port):
    wrong = aetcd.Client(host, port, username="app", password="wrong")
    await refused("wrong", wrong.connect())
    await wrong.close()
    async with aetcd.Client(host, port) as nobody:
        await refused("nobody", nobody.get(b"app/a"))
    async with aetcd.Client(host, port, username="app", password="secret") as client:
        await client.put(b"app/a", b"v")
        say("own", (await client.get(b"app/a")).value)
        await refused("foreign", client.put(b"other", b"v"))
        watch = await client.watch(b"app/a")
        await client.put(b"app/a", b"w")
        say("event", [event.kv.value async for event in taken(watch, 1)])
        await watch.cancel()
        say("lease", (await (await client.lease(30)).refresh()).TTL)
        await refused("snapshot", client.snapshot(io.BytesIO()))


async def plain(host, port):
    async with aetcd.Client(host, port, timeout=30) as client:
        for part in (keys, transactions, leases, watches, locks, members):
            await part(client)


if __name__ == "__main__":
    form, host, port = sys.argv[1:]
    asyncio.run((plain if form == "plain" else authorized)(host, int(port)))
