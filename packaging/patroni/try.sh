#!/usr/bin/env bash
# Runs two nodes of PostgreSQL under Patroni on a cluster of three members, all on this machine. The script migrates the
# members from etcd to Quorate, releases the cluster version, kills the cluster's leader, and performs a switchover of
# PostgreSQL's leader. With LONG=1, it also kills PostgreSQL's leader. After each step that must not affect PostgreSQL, the
# script checks PostgreSQL's leader, its timeline and every write.
#
# A further server runs with `--engine` and stores its data in the two nodes of PostgreSQL. At the end, the script checks that
# this server has every acknowledged key, and that a watcher has received each of them once.
#
#   try.sh FOLDER     an empty folder for the data, which is not deleted at the end
#
# Needs patroni (with psycopg), psql, curl and python3. Like PostgreSQL, the script must not be run as root.
#   QUORATE   the program (default: quorate)
#   ETCD      etcd 3.5 or 3.6; without this variable, the members run Quorate from the start
#   PG_BIN    the folder with postgres and initdb (default: the newest version that is installed from Debian)
#   PORTS     twelve free ports
#   USERS     1: Patroni logs in. Versions before 4.1.1 can log in only if the members run etcd 3.5 when Patroni starts
#   TLS       1: members, tools and Patroni use certificates that openssl creates
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
cd "$1"
quorate=${QUORATE:-quorate}
pg_bin=${PG_BIN:-$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)}
read -ra ports <<<"${PORTS:-24001 24002 24003 24004 24005 24006 24007 24008 24009 24010 24011 24012}"
limit_secs=60
export LC_ALL=C.UTF-8

# All started processes are stopped when the script ends.
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
fail() {
    say "FAILED: $*"
    exit 1
}

# Repeats a command until it succeeds.
until_it() {
    local end=$((SECONDS + limit_secs))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "no success within $limit_secs s: $*"
        sleep 0.2
    done
}

scheme=http member_flags=() ctl_flags=() curl_flags=()
if [[ -n ${TLS:-} ]]; then
    scheme=https pki=$PWD/pki
    member_flags=(--cert-file "$pki/member.pem" --key-file "$pki/member.key" --trusted-ca-file "$pki/ca.pem" --client-cert-auth
        --peer-cert-file "$pki/peer.pem" --peer-key-file "$pki/peer.key" --peer-trusted-ca-file "$pki/peer-ca.pem" --peer-client-cert-auth)
    ctl_flags=(--cacert "$pki/ca.pem" --cert "$pki/tools.pem" --key "$pki/tools.key")
    curl_flags=("${ctl_flags[@]}")
fi
client_url() { echo "$scheme://127.0.0.1:${ports[$1]}"; }
peer_url() { echo "$scheme://127.0.0.1:${ports[$1 + 3]}"; }
endpoints=$(client_url 0),$(client_url 1),$(client_url 2)
declare -A member_pid patroni_pid

# start_member NUMBER PROGRAM [FLAG...]
start_member() {
    local number=$1 program=$2
    shift 2
    "$program" --name "m$number" --data-dir "m$number" \
        --listen-client-urls "$(client_url "$number")" --advertise-client-urls "$(client_url "$number")" \
        --listen-peer-urls "$(peer_url "$number")" --initial-advertise-peer-urls "$(peer_url "$number")" \
        --initial-cluster "m0=$(peer_url 0),m1=$(peer_url 1),m2=$(peer_url 2)" "${member_flags[@]}" "$@" >>"m$number.log" 2>&1 &
    member_pid[$number]=$!
}
stop_member() {
    kill "${2:--TERM}" "${member_pid[$1]}"
    wait "${member_pid[$1]}" 2>/dev/null || true
}
ctl() { "$quorate" ctl --endpoints "$endpoints" --user root:of-root "${ctl_flags[@]}" "$@"; }
is_healthy() { ctl --endpoints "$(client_url "$1")" endpoint health; }
cluster_version() { curl -sf "${curl_flags[@]}" "$(client_url 0)/version" | python3 -c 'import json, sys; print(json.load(sys.stdin)["etcdcluster"])'; }
is_version() { [[ $(cluster_version) == "$1"* ]]; }
# Prints the number of the leader.
leading_member() {
    ctl endpoint status --write-out json | python3 -c '
import json, sys
told = {one["Endpoint"]: one["Status"] for one in json.load(sys.stdin)}
urls = sys.argv[1].split(",")
print(next(urls.index(url) for url, status in told.items() if status["header"]["member_id"] == status["leader"]))' "$endpoints"
}

start_patroni() {
    local members=$endpoints number=$1
    sed -e "${USERS:+s|# \(username: \)|\1|; s|# \(password: \)|\1|}" -e "${TLS:+/# protocol: /,/# key: /s|# ||; s|PKI|$pki|}" -e "s|NODE|p$number|; s|REST_PORT|${ports[6 + number]}|; s|SQL_PORT|${ports[8 + number]}|; s|DATA|$PWD/p$number|" \
        -e "s|PROGRAMS|$pg_bin|; s|MEMBERS|${members//$scheme:\/\//}|" "$here/patroni.yml" >"p$number.yml"
    patroni "p$number.yml" >>"p$number.log" 2>&1 &
    patroni_pid[$number]=$!
}
# Prints the value of a Python expression over the cluster that Patroni reports; fails if the value is None or False.
told() {
    { curl -sf "http://127.0.0.1:${ports[6]}/cluster" || curl -sf "http://127.0.0.1:${ports[7]}/cluster"; } | python3 -c '
import json, sys
members = json.load(sys.stdin)["members"]
leader = next((one for one in members if one["role"] == "leader" and one["state"] == "running"), None)
replicas = [one for one in members if one["role"] in ("replica", "sync_standby") and one["state"] in ("streaming", "running")]
answer = eval(sys.argv[1])
print(answer)
sys.exit(answer in (None, False))' "$1"
}
leader_and_timeline() { told 'leader and "{name} on timeline {timeline}".format(**leader)'; }
has_leader_and_replica() { told 'leader is not None and [one["timeline"] for one in replicas] == [leader["timeline"]]'; }
leads() { told "leader is not None and leader['name'] == '$1'"; }
sql() {
    PGPASSWORD=of-postgres PGCONNECT_TIMEOUT=5 psql -qAtX -v ON_ERROR_STOP=1 \
        "host=127.0.0.1,127.0.0.1 port=${ports[8]},${ports[9]} user=postgres dbname=postgres target_session_attrs=${2:-read-write}" -c "$1"
}
# Patroni fails over only to a replica that it has recorded as synchronous, which it does some time after PostgreSQL.
has_synchronous_replica() { told 'any(one["role"] == "sync_standby" for one in members)'; }
# Inserts a row every tenth of a second. If an insert fails, it appends a line to the file `lost`.
write_on() {
    while sleep 0.1; do
        sql 'insert into rows default values' >>writer.log 2>&1 || echo lost >>lost
    done
}
engine_url=http://127.0.0.1:${ports[10]}
start_engine() {
    local peer_url="http://127.0.0.1:${ports[11]}"
    PGPASSWORD=of-postgres "$quorate" --name engine \
        --engine "postgres://postgres@127.0.0.1:${ports[8]},127.0.0.1:${ports[9]}/postgres?sslmode=disable" \
        --listen-client-urls "$engine_url" --advertise-client-urls "$engine_url" \
        --listen-peer-urls "$peer_url" --initial-advertise-peer-urls "$peer_url" >>engine.log 2>&1 &
}
engine() { "$quorate" ctl --endpoints "$engine_url" "$@"; }
# Puts a new key every tenth of a second. It appends the number of each acknowledged key to the file `acknowledged`.
put_keys() {
    local number
    for ((number = 1; ; number++)); do
        sleep 0.1
        engine put "keys/$number" value >>puts.log 2>&1 && echo "$number" >>acknowledged
    done
}
acknowledged() { sort acknowledged; }
has_all_keys() { [[ -z $(comm -23 <(acknowledged) <(engine get keys/ --prefix --keys-only | sed -n 's|^keys/||p' | sort)) ]]; }
watched() { sed -n 's|^keys/||p' watched | sort; }
has_all_events() { [[ -z $(comm -23 <(acknowledged) <(watched)) ]]; }
# Waits until a put that begins after this call has succeeded.
puts_succeed() {
    local before
    before=$(wc -l <acknowledged)
    until_it eval "((\$(wc -l <acknowledged) > $before + 1))"
}
# Waits until Patroni's leader has renewed its key since this call.
patroni_goes_on() {
    local before
    before=$(status_revision)
    until_it status_is_after "$before"
}
status_revision() {
    ctl get /service/demo/status --write-out json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["kvs"][0]["mod_revision"])'
}
status_is_after() { (($(status_revision) > $1)); }
# Checks that PostgreSQL is not affected.
undisturbed() {
    patroni_goes_on
    until_it has_leader_and_replica
    [[ $(leader_and_timeline) == "$leader" ]] || fail "$1: the leader was $leader, and is $(leader_and_timeline)"
    [[ ! -s lost ]] || fail "$1: $(wc -l <lost) writes were lost"
    say "$1: $leader, as before, and $(sql 'select count(*) from rows') rows, none lost"
}

# Creates one CA for client connections and another for peer connections, because a client certificate must not be valid for
# a peer. Patroni and the tools log in by user name, so no certificate names a user.
make_certificates() {
    local name ca
    mkdir -p "$pki"
    for ca in ca peer-ca; do
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$ca" -keyout "$pki/$ca.key" -out "$pki/$ca.pem"
    done
    for name in member tools patroni peer; do
        ca=ca
        [[ $name != peer ]] || ca=peer-ca
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/O=$name" -addext subjectAltName=IP:127.0.0.1 \
            -addext extendedKeyUsage=serverAuth,clientAuth -keyout "$pki/$name.key" -out "$pki/$name.csr"
        openssl x509 -req -in "$pki/$name.csr" -CA "$pki/$ca.pem" -CAkey "$pki/$ca.key" -CAcreateserial -days 2 \
            -copy_extensions copy -out "$pki/$name.pem"
    done
}
set_up_users() {
    local line
    for line in 'user add root:of-root' 'role add root' 'user grant-role root root' 'user add patroni:in-the-cluster' 'role add patroni' \
        'role grant-permission patroni readwrite /service/ --prefix' 'user grant-role patroni patroni' 'auth enable'; do
        # shellcheck disable=SC2086 # words
        ctl $line >/dev/null
    done
}

[[ -z ${TLS:-} ]] || make_certificates >pki.log 2>&1
first=${ETCD:-$quorate}
say "three members: $first, $("$first" --version | head -n 1)"
for number in 0 1 2; do start_member $number "$first"; done
for number in 0 1 2; do until_it is_healthy $number; done
[[ -z ${USERS:-} ]] || set_up_users

say "two nodes: $(patroni --version), $("$pg_bin/postgres" --version)"
start_patroni 0
until_it leads p0
start_patroni 1
until_it has_leader_and_replica
leader=$(leader_and_timeline)
sql 'create table rows (number bigserial primary key)'
write_on &
undisturbed 'two nodes'

start_engine
until_it engine endpoint health
# The function `engine` would run in a shell of its own, and the end of the script would stop only that shell.
"$quorate" ctl --endpoints "$engine_url" watch keys/ --prefix >watched 2>>watch.log &
: >acknowledged
put_keys &
puts_succeed
say 'a server stores its data in the two nodes'

if [[ -n ${ETCD:-} ]]; then
    hold=$("$ETCD" --version | sed -n 's/^etcd Version: \([0-9]*\.[0-9]*\).*/\1/p')
    for number in 0 1 2; do
        stop_member $number
        start_member $number "$quorate" "--hold-cluster-version=$hold"
        until_it is_healthy $number
        undisturbed "m$number is Quorate"
    done
    is_version "$hold" || fail "the cluster version is $(cluster_version), not $hold"
    for number in 0 1 2; do
        stop_member $number
        start_member $number "$quorate"
        until_it is_healthy $number
    done
    until_it is_version 3.7
    undisturbed "the cluster version is $(cluster_version)"
fi

killed=$(leading_member)
stop_member "$killed" -KILL
undisturbed "m$killed, the leader, was killed"
start_member "$killed" "$quorate"
until_it is_healthy "$killed"
undisturbed "m$killed is back"

from=${leader%% *}
to=p$((1 - ${from#p}))
curl -s "http://127.0.0.1:${ports[6]}/switchover" -d "{\"leader\": \"$from\", \"candidate\": \"$to\"}" | grep -q Success ||
    fail "no switchover to $to"
until_it leads "$to"
until_it has_leader_and_replica
say "switched over: $(leader_and_timeline)"
[[ $(leader_and_timeline) == "$to on timeline 2" ]] || fail "$to should lead, on the next timeline"
: >lost
puts_succeed

if [[ -n ${LONG:-} ]]; then
    number=${to#p}
    if [[ -n ${USERS:-} ]]; then
        # Patroni before 4.1.1 could not start again with authentication enabled.
        ctl auth disable >/dev/null
        USERS=
    fi
    # Without synchronous replication, the failover could lose acknowledged writes.
    curl -sf -X PATCH "http://127.0.0.1:${ports[6]}/config" -d '{"synchronous_mode": true}' >/dev/null
    until_it has_synchronous_replica
    # Kills all processes of the node at once, as if the machine had failed.
    kill -KILL "${patroni_pid[$number]}" "$(head -n 1 "$to/postmaster.pid")"
    wait "${patroni_pid[$number]}" 2>/dev/null || true
    until_it leads "$from"
    until_it sql 'insert into rows default values'
    puts_succeed
    say "$to was killed, and $from takes writes"
    start_patroni "$number"
    until_it has_leader_and_replica
    [[ $(leader_and_timeline) == "$from on timeline 3" ]] || fail "$from should lead, on the next timeline"
fi

count=$(sql 'select count(*) from rows')
patroni_goes_on
(($(sql 'select count(*) from rows' any) >= count)) || fail "the replica has fewer than $count rows"
until_it has_all_keys
until_it has_all_events
[[ -z $(watched | uniq --repeated) ]] || fail "the watcher has received keys twice: $(watched | uniq --repeated)"
say "done: $(leader_and_timeline), $count rows and $(wc -l <acknowledged) keys"
