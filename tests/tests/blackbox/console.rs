//! `quorate console`: the data that its page shows, and the operations that it performs.

use quorate_tests::{
    Cluster, Console, ConsolePage, Kind, Options, Response, Server, TIMEOUT, bytes, eventually,
    eventually_within, on_both_servers, put, put_leased,
};
use serde_json::{Value, json};

on_both_servers! {
    alone:
    a_level_of_the_tree_shows_prefixes_with_their_counts,
    a_list_is_read_in_pages_at_one_revision,
    a_value_is_shown_at_any_revision_and_with_its_history,
    a_watch_shows_changes_as_they_happen,
    leases_are_shown_with_their_keys,
    a_write_is_refused_if_the_key_has_changed,
    maintenance_and_membership_operations_are_executed,
    a_snapshot_is_downloaded_once,
    pending_downloads_are_limited_for_each_client,
    users_and_roles_are_managed,
    the_overview_shows_the_figures_of_the_member,
    a_read_only_console_refuses_all_writes,
    the_keys_and_bytes_of_prefixes_are_measured,
    a_killed_member_is_shown_as_down,
}

/// Decodes the answer of a call that succeeded.
#[track_caller]
pub(super) fn answer(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

/// Returns the code of a call that failed.
#[track_caller]
pub(super) fn code(response: &Response) -> String {
    assert_ne!(response.status, 200, "{}", response.text());
    let error: Value = serde_json::from_slice(&response.body).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

/// Encodes bytes as the page does.
pub(super) fn base64(data: impl AsRef<[u8]>) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in data.as_ref().chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..4 {
            let at = usize::try_from(number >> (18 - 6 * place) & 63).unwrap();
            text.push(if place > chunk.len() { '=' } else { char::from(LETTERS[at]) });
        }
    }
    text
}

/// Starts a server, and a console with these flags.
async fn begin(kind: Kind, flags: &[&str]) -> (Server, Console, ConsolePage) {
    let server = Options::new(kind).start().await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), flags);
    let page = console.page();
    (server, console, page)
}

fn call(page: &ConsolePage, name: &str, body: &Value) -> Value {
    answer(&page.call(name, &body.to_string()))
}

async fn a_level_of_the_tree_shows_prefixes_with_their_counts(kind: Kind) {
    let (server, _console, page) = begin(kind, &[]).await;
    let client = server.client();
    for number in 0..100 {
        client.write(format!("app/one/{number}"), "v").await;
    }
    for key in ["app/key", "app/two/1", "app0", "zoo"] {
        client.write(key, "v").await;
    }
    let body = json!({ "prefix": base64("app/"), "separator": base64("/") });
    let level = call(&page, "keys/tree", &body);
    let entries = level["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 3, "{level}");
    assert_eq!(entries[0]["key"], base64("app/key"));
    let one = json!({ "type": "prefix", "prefix": base64("app/one/"), "count": 100 });
    assert_eq!(entries[1], one);
    assert_eq!(entries[2]["count"], 1);
    assert_eq!(level["next"], Value::Null);
    // A page of a tree level ends at the limit, and the next page starts after the last entry of this page.
    let first = call(&page, "keys/tree", &json!({ "separator": base64("/"), "limit": 2 }));
    assert_eq!(first["entries"].as_array().unwrap().len(), 2, "{first}");
    let rest = json!({ "separator": base64("/"), "limit": 2, "cursor": first["next"] });
    let rest = call(&page, "keys/tree", &rest);
    assert_eq!(rest["entries"][0]["key"], base64("zoo"), "{rest}");
    assert_eq!(rest["next"], Value::Null);
}

async fn a_list_is_read_in_pages_at_one_revision(kind: Kind) {
    let (server, _console, page) = begin(kind, &[]).await;
    let client = server.client();
    for number in 0..25 {
        client.write(format!("k{number:02}"), "v").await;
    }
    let (mut found, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let body = json!({ "prefix": base64("k"), "limit": 10, "cursor": cursor });
        let list = call(&page, "keys/list", &body);
        assert_eq!(list["count"], 25);
        // Keys that are written between two pages do not appear in the list, even if there are many of them. Keys that
        // are deleted between two pages still appear.
        client.write(format!("k{:02}x", found.len()), "v").await;
        if found.is_empty() {
            for number in 0..60 {
                client.write(format!("k09y{number:02}"), "v").await;
            }
            client.delete_range(quorate_tests::delete("k12", "k15")).await.unwrap();
        }
        let keys = list["entries"].as_array().unwrap();
        found.extend(keys.iter().map(|entry| entry["key"].clone()));
        cursor = list["next"].clone();
        if cursor.is_null() {
            break;
        }
    }
    let expected: Vec<_> = (0..25).map(|n| json!(base64(format!("k{n:02}")))).collect();
    assert_eq!(found, expected);
}

async fn a_value_is_shown_at_any_revision_and_with_its_history(kind: Kind) {
    let (server, _console, page) = begin(kind, &[]).await;
    let client = server.client();
    let mut revisions = Vec::new();
    for number in 0..5 {
        revisions.push(client.write("k", format!("v{number}")).await);
        client.write("other", "v").await;
    }
    let body = json!({ "key": base64("k"), "revision": revisions[1] });
    let shown = call(&page, "keys/get", &body);
    assert_eq!((&shown["value"], &shown["size"]), (&json!(base64("v1")), &json!(2)));
    let first = call(&page, "keys/history", &json!({ "key": base64("k"), "limit": 3 }));
    assert_eq!(first["entries"].as_array().unwrap().len(), 3, "{first}");
    assert_eq!(first["entries"][0]["value"], base64("v4"));
    let body = json!({ "key": base64("k"), "limit": 3, "before": first["next"] });
    let rest = call(&page, "keys/history", &body);
    assert_eq!(rest["entries"][1]["value"], base64("v0"), "{rest}");
    assert_eq!((&rest["next"], &rest["end"]), (&Value::Null, &json!("created")));
    // A search of the history also finds deletions, and the changes before them.
    client.delete_range(quorate_tests::delete("k", "")).await.unwrap();
    client.write("k", "again").await;
    let found = call(&page, "keys/history", &json!({ "key": base64("k"), "search": true }));
    let kinds: Vec<_> =
        found["entries"].as_array().unwrap().iter().map(|it| it["type"].clone()).collect();
    assert_eq!(kinds, ["put", "delete", "put", "put", "put", "put", "put"], "{found}");
    assert_eq!(found["end"], "complete");
    client.compact_to(revisions[3]).await;
    let body = json!({ "key": base64("k"), "revision": revisions[0] });
    assert_eq!(code(&page.call("keys/get", &body.to_string())), "compacted");
    let found = call(&page, "keys/history", &json!({ "key": base64("k"), "search": true }));
    assert_eq!(found["end"], "compacted", "{found}");
    let body = json!({ "key": base64("k"), "revision": 1_000_000 });
    assert_eq!(code(&page.call("keys/get", &body.to_string())), "future_revision");
    let absent = json!({ "key": base64("absent") });
    assert_eq!(code(&page.call("keys/get", &absent.to_string())), "not_found");
}

async fn a_watch_shows_changes_as_they_happen(kind: Kind) {
    let (server, _console, page) = begin(kind, &[]).await;
    let client = server.client();
    let body = json!({ "prefix": base64("a/"), "previous": true }).to_string();
    let lines = tokio::task::spawn_blocking(move || {
        let mut lines = page.lines("keys/watch", &body);
        let first = lines.next().unwrap();
        (first, lines)
    });
    let (first, mut lines) = lines.await.unwrap();
    assert!(first.contains("\"created\""), "{first}");
    client.write("b", "unseen").await;
    let at = client.write("a/k", "seen").await;
    client.delete_range(quorate_tests::delete("a/k", "")).await.unwrap();
    let events = tokio::task::spawn_blocking(move || {
        let mut events: Vec<Value> = Vec::new();
        while events.len() < 2 {
            let line: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
            events.extend(line["events"].as_array().cloned().unwrap_or_default());
        }
        events
    });
    let events = events.await.unwrap();
    assert_eq!(events[0]["value"], base64("seen"), "{events:?}");
    assert_eq!(events[0]["mod_revision"], at);
    assert_eq!((&events[1]["type"], &events[1]["key"]), (&json!("delete"), &json!(base64("a/k"))));
    assert_eq!(events[1]["previous"]["value"], base64("seen"));
}

async fn leases_are_shown_with_their_keys(kind: Kind) {
    let (server, _console, page) = begin(kind, &["--allow-writes"]).await;
    let client = server.client();
    for id in 1..=5 {
        client.grant(id, 600).await;
    }
    client.put(put_leased("leased", "v", 3)).await.unwrap();
    let first = call(&page, "leases/list", &json!({ "limit": 3 }));
    assert_eq!(first["total"], 5);
    assert_eq!(first["entries"][2]["keys"], 1, "{first}");
    let rest = call(&page, "leases/list", &json!({ "limit": 3, "cursor": first["next"] }));
    assert_eq!(rest["entries"][1]["id"], "5", "{rest}");
    let lease = call(&page, "leases/get", &json!({ "id": "3" }));
    assert_eq!(lease["keys"], json!([base64("leased")]));
    assert_eq!(lease["granted_ttl_secs"], 600);
    call(&page, "write/lease_revoke", &json!({ "id": "3" }));
    assert_eq!(client.read("leased").await, None);
    assert_eq!(code(&page.call("leases/get", r#"{"id":"3"}"#)), "not_found");
}

async fn a_write_is_refused_if_the_key_has_changed(kind: Kind) {
    let (server, _console, page) = begin(kind, &["--allow-writes"]).await;
    let client = server.client();
    let body = |value: &str, shown: i64| {
        json!({ "key": base64("k"), "value": base64(value), "if_mod_revision": shown }).to_string()
    };
    let written = answer(&page.call("write/put", &body("1", 0)))["revision"].as_i64().unwrap();
    assert_eq!(code(&page.call("write/put", &body("2", 0))), "changed");
    let changed = client.write("k", "another").await;
    let refused = page.call("write/put", &body("2", written));
    assert_eq!(code(&refused), "changed");
    let error: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(error["error"]["current"]["mod_revision"], changed);
    let delete = |shown: i64| json!({ "key": base64("k"), "if_mod_revision": shown }).to_string();
    assert_eq!(code(&page.call("write/delete", &delete(written))), "changed");
    assert_eq!(client.read("k").await.unwrap(), b"another");
    answer(&page.call("write/delete", &delete(changed)));
    assert_eq!(client.read("k").await, None);
    let unconditional = json!({ "key": base64("k"), "value": "" }).to_string();
    assert_eq!(code(&page.call("write/put", &unconditional)), "bad_request");
}

async fn maintenance_and_membership_operations_are_executed(kind: Kind) {
    let (server, _console, page) = begin(kind, &["--allow-writes"]).await;
    let client = server.client();
    for number in 0..200 {
        client.write("k", format!("{number}").repeat(1000)).await;
    }
    let at = client.revision().await;
    call(&page, "write/compact", &json!({ "revision": at, "physical": true }));
    let overview = call(&page, "overview", &json!({}));
    let member = overview["members"][0]["id"].clone();
    let done = call(&page, "write/defragment", &json!({ "member": member }));
    let bytes = |name: &str| done[name].as_i64().unwrap();
    assert!(bytes("db_bytes_after") <= bytes("db_bytes_before"), "{done}");
    let alarm = quorate_api::etcdserverpb::AlarmRequest {
        action: 1,
        member_id: u64::from_str_radix(member.as_str().unwrap(), 16).unwrap(),
        alarm: 1,
    };
    client.alarm(alarm).await.unwrap();
    eventually("the alarm is shown as a problem", async || {
        let overview = call(&page, "overview", &json!({}));
        let shown = overview["problems"].as_array().unwrap();
        let shown = shown.iter().find(|problem| problem["id"] == "no-space")?;
        assert!(shown["runbook_url"].as_str().unwrap().ends_with("#quoratenospace"));
        Some(())
    })
    .await;
    call(&page, "write/alarm_disarm", &json!({ "member": member, "name": "NOSPACE" }));
    client.put(put("k", "v")).await.unwrap();
    let urls = json!({ "peer_urls": ["http://127.0.0.1:1"], "learner": true });
    let added = call(&page, "write/member_add", &urls);
    call(&page, "write/member_remove", &json!({ "id": added["id"] }));
    let unknown = json!({ "id": "1234" }).to_string();
    assert_eq!(code(&page.call("write/member_remove", &unknown)), "not_found");
}

async fn a_snapshot_is_downloaded_once(kind: Kind) {
    let (server, console, page) = begin(kind, &["--allow-writes"]).await;
    let client = server.client();
    for number in 0..100 {
        client.write(format!("k{number}"), "v".repeat(1000)).await;
    }
    let asked = call(&page, "write/snapshot", &json!({ "member": null }));
    let progress = || call(&page, "snapshot_progress", &json!({ "id": asked["id"] }));
    assert_eq!(progress()["state"], "waiting");
    let path = asked["path"].as_str().unwrap();
    let file = quorate_tests::get(console.port(), path);
    assert_eq!(file.status, 200);
    assert!(file.header("content-disposition").unwrap().starts_with("attachment; filename="));
    assert_eq!(file.body.len() % 512, 32, "the file consists of database pages and a digest");
    let state = eventually("the download is complete", async || {
        let state = progress();
        (state["state"] == "done").then_some(state)
    })
    .await;
    assert_eq!(state["sent_bytes"], file.body.len());
    assert_eq!(
        quorate_tests::get(console.port(), path).status,
        404,
        "the id is valid for one download"
    );
}

async fn pending_downloads_are_limited_for_each_client(kind: Kind) {
    let (_server, console, page) = begin(kind, &["--allow-writes"]).await;
    let ask = || page.call("write/snapshot", r#"{"member":null}"#);
    let first = answer(&ask());
    let refused = (0..32).map(|_| ask()).find(|response| response.status != 200).unwrap();
    assert_eq!(code(&refused), "busy");
    assert!(refused.text().contains("unfinished downloads"), "{}", refused.text());
    // The first download is still pending. Once this download has ended, another download is accepted.
    let path = first["path"].as_str().unwrap();
    assert_eq!(quorate_tests::get(console.port(), path).status, 200);
    eventually("the next download is accepted", async || (ask().status == 200).then_some(())).await;
}

async fn users_and_roles_are_managed(kind: Kind) {
    let (_server, _console, page) = begin(kind, &["--allow-writes"]).await;
    let nobody = call(&page, "whoami", &json!({}));
    assert_eq!(nobody["is_root"], true);
    for (name, body) in [
        ("write/user_add", json!({ "name": "root", "password": "p" })),
        ("write/user_grant", json!({ "name": "root", "role": "root" })),
        ("write/user_add", json!({ "name": "ann", "password": "q" })),
        ("write/role_add", json!({ "name": "reader" })),
        (
            "write/role_grant",
            json!({ "name": "reader", "type": "read", "key": base64("a/"), "range_end": base64("a0") }),
        ),
        ("write/user_grant", json!({ "name": "ann", "role": "reader" })),
    ] {
        if body["role"] == "root" {
            // In some versions, the root role already exists.
            drop(page.call("write/role_add", r#"{"name":"root"}"#));
        }
        call(&page, name, &body);
    }
    let all = call(&page, "auth/list", &json!({}));
    let ann = json!({ "name": "ann", "roles": ["reader"] });
    assert!(all["users"].as_array().unwrap().contains(&ann), "{all}");
    let role = call(&page, "auth/role", &json!({ "name": "reader" }));
    assert_eq!(role["permissions"][0]["is_prefix"], true, "{role}");
    call(&page, "write/auth_enable", &json!({}));
    assert_eq!(code(&page.call("auth/list", "")), "login_required");
    let login = call(&page, "login", &json!({ "user": "root", "password": "p" }));
    let root = page.with_token(login["token"].as_str().unwrap());
    assert_eq!(call(&root, "auth/list", &json!({}))["enabled"], true);
    call(
        &root,
        "write/role_revoke",
        &json!({ "name": "reader", "key": base64("a/"), "range_end": base64("a0") }),
    );
    call(&root, "write/user_revoke", &json!({ "name": "ann", "role": "reader" }));
    call(&root, "write/user_password", &json!({ "name": "ann", "password": "r" }));
    call(&root, "write/user_delete", &json!({ "name": "ann" }));
    call(&root, "write/role_delete", &json!({ "name": "reader" }));
    call(&root, "write/auth_disable", &json!({}));
    assert_eq!(call(&page, "auth/list", &json!({}))["enabled"], false);
}

async fn the_overview_shows_the_figures_of_the_member(kind: Kind) {
    let (server, _console, page) = begin(kind, &[]).await;
    let client = server.client();
    let first = call(&page, "overview", &json!({}));
    let member = &first["members"][0];
    assert_eq!((&member["role"], &member["error"]), (&json!("leader"), &Value::Null), "{first}");
    assert_eq!(first["cluster"]["leader"], member["id"]);
    assert!(member["uptime_secs"].as_f64().unwrap() >= 0.0, "{member}");
    assert!(member["db_bytes"].as_u64().unwrap() > 0);
    let rates = eventually("rates are computed", async || {
        client.write("k", "v").await;
        let next = call(&page, "overview", &json!({}));
        assert!(next["sequence"].as_u64() >= first["sequence"].as_u64());
        let puts = next["requests"].as_array().unwrap().iter().find(|row| row["kind"] == "put")?;
        (puts["per_sec"].as_f64()? > 0.0).then(|| next.clone())
    })
    .await;
    assert!(rates["members"][0]["fsync_secs"]["p99"].as_f64().is_some(), "{rates}");
    let stages = &rates["members"][0]["stages"];
    for stage in ["disk", "apply"] {
        assert!(stages[stage]["p99"].as_f64().unwrap() > 0.0, "{stages}");
    }
    match kind {
        Kind::Quorate => assert!(stages["queue"]["p99"].as_f64().unwrap() > 0.0, "{stages}"),
        // etcd does not measure this stage.
        Kind::Etcd => assert_eq!(stages["queue"], Value::Null, "{stages}"),
    }
    // Several pages share the samples.
    let (one, other) = (call(&page, "overview", &json!({})), call(&page, "overview", &json!({})));
    let gap = other["sequence"].as_u64().unwrap() - one["sequence"].as_u64().unwrap();
    assert!(gap <= 1, "{gap}");
}

async fn a_read_only_console_refuses_all_writes(kind: Kind) {
    let (server, _console, page) = begin(kind, &[]).await;
    let client = server.client();
    assert_eq!(call(&page, "session", &json!({}))["writes"], false);
    let before = client.revision().await;
    for (name, body) in [
        ("put", json!({ "key": base64("k"), "value": "", "if_mod_revision": 0 })),
        ("delete", json!({ "key": base64("k"), "if_mod_revision": 0 })),
        ("compact", json!({ "revision": 1 })),
        ("snapshot", json!({})),
        ("auth_enable", json!({})),
        ("anything", json!({})),
    ] {
        let refused = page.call(&format!("write/{name}"), &body.to_string());
        assert_eq!(code(&refused), "read_only", "{name}");
    }
    assert_eq!(client.revision().await, before);
}

async fn the_keys_and_bytes_of_prefixes_are_measured(kind: Kind) {
    let (server, _console, page) = begin(kind, &[]).await;
    let client = server.client();
    for number in 0..60 {
        client.put(put(format!("big/{number}"), bytes(vec![b'x'; 2000]))).await.unwrap();
        client.write(format!("small/{number}"), "v").await;
    }
    let body = json!({ "depth": 1 }).to_string();
    let rows = tokio::task::spawn_blocking(move || {
        for line in page.lines("keys/prefixes", &body) {
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["complete"] == true {
                return line["rows"].clone();
            }
        }
        panic!("the stream ended");
    });
    let rows = rows.await.unwrap();
    assert_eq!(rows[0]["prefix"], base64("big/"), "{rows}");
    assert_eq!((&rows[0]["keys"], &rows[1]["keys"]), (&json!(60), &json!(60)));
    assert!(rows[0]["bytes_estimated"].as_f64() > rows[1]["bytes_estimated"].as_f64());
}

async fn a_killed_member_is_shown_as_down(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    let leader = cluster.leader().await;
    let other = cluster.follower().await;
    let endpoint = format!("127.0.0.1:{}", cluster.server(other).port());
    let console = Console::start(&endpoint, &["--allow-writes"]);
    let page = console.page();
    let overview = call(&page, "overview", &json!({}));
    assert_eq!(overview["members"].as_array().unwrap().len(), 3, "{overview}");
    assert_eq!(overview["problems"], json!([]), "{overview}");
    // The console uses the member list to find members that its flags do not name.
    let to = format!("{:x}", cluster.id(other));
    call(&page, "write/move_leader", &json!({ "to": to }));
    eventually("the leader has moved", async || {
        (call(&page, "overview", &json!({}))["cluster"]["leader"] == to).then_some(())
    })
    .await;
    cluster.kill(leader);
    let down = eventually_within(TIMEOUT, "the member is shown as down", async || {
        let overview = call(&page, "overview", &json!({}));
        let members = overview["members"].as_array().unwrap();
        members.iter().find(|member| member["role"] == "down").cloned()
    })
    .await;
    assert!(down["error"].as_str().unwrap().contains("onnection refused"), "{down}");
    let overview = call(&page, "overview", &json!({}));
    let ids: Vec<_> =
        overview["problems"].as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
    assert!(ids.contains(&json!("member-down")), "{ids:?}");
    assert!(ids.contains(&json!("quorum-at-risk")), "{ids:?}");
}
