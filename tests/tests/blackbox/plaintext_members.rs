//! Members that advertise client URLs without TLS, in a cluster whose configured endpoint uses TLS. The console and the
//! tools must not send passwords and tokens to such URLs, because only the member list names them.

use quorate_tests::{ClusterOptions, Console, Finished, Kind, Tool, eventually, run_cluster};
use serde_json::{Value, json};

use super::console::{answer, code};
use super::tls;

mod credentials_are_not_sent_in_plaintext_to_members_that_only_the_member_list_names {
    use super::*;

    #[test]
    fn quorate() {
        run_cluster(Kind::Quorate, check);
    }

    #[test]
    fn etcd() {
        run_cluster(Kind::Etcd, check);
    }
}

/// Starts two members that listen with TLS, and advertise the `http://` URLs of tunnels to them. The tools connect to
/// the first member with TLS.
async fn check(kind: Kind) {
    let cluster = ClusterOptions::new(kind, 2).guarded().start().await;
    let endpoint = cluster.server(0).listen_url();
    assert!(endpoint.starts_with("https://"), "{endpoint}");
    let path = |name: &str| cluster.server(0).guard_dir().join(name).display().to_string();
    let tls = [
        format!("--cacert={}", path("ca")),
        format!("--cert={}", path("client")),
        format!("--key={}", path("client.key")),
    ];
    let user = cluster.server(0).user_of_tools().unwrap();

    let flags: Vec<&str> = tls.iter().map(String::as_str).chain(["--allow-writes"]).collect();
    let console = Console::start(&endpoint, &flags);
    let page = console.page();
    let (name, password) = user.split_once(':').unwrap();
    let login = json!({ "user": name, "password": password }).to_string();
    let page = page.with_token(answer(&page.call("login", &login))["token"].as_str().unwrap());
    let overview = eventually("both members are listed", async || {
        let overview = answer(&page.call("overview", ""));
        (overview["members"].as_array().unwrap().len() == 2).then_some(overview)
    })
    .await;
    let member = |at: usize| &overview["members"][at];
    assert!(["leader", "follower"].contains(&member(0)["role"].as_str().unwrap()), "{overview:#}");
    assert_eq!(member(1)["role"], "no TLS", "{overview:#}");
    let error = member(1)["error"].as_str().unwrap();
    assert!(error.contains(&cluster.server(1).url()), "{error}");
    assert!(error.contains("does not use TLS"), "{error}");
    let problems = overview["problems"].as_array().unwrap();
    assert!(problems.iter().any(|it| it["id"] == "member-plaintext"), "{problems:#?}");
    assert!(problems.iter().all(|it| it["id"] != "member-down"), "{problems:#?}");
    let id = json!({ "member": format!("{:x}", cluster.id(1)) }).to_string();
    assert_eq!(code(&page.call("write/defragment", &id)), "plaintext_member");

    let ctl = |endpoint: &str, args: &[&str]| -> Finished {
        let user = format!("--user={user}");
        let all: Vec<&str> = tls.iter().map(String::as_str).chain([&*user]).collect();
        tls::ctl(Tool::QuorateCtl, endpoint, &[&all, args].concat())
    };
    for command in ["endpoint status", "endpoint health", "endpoint hashkv", "defrag"] {
        let args: Vec<&str> = command.split(' ').chain(["--cluster"]).collect();
        let refused = ctl(&endpoint, &args);
        assert_eq!(refused.code, Some(1), "{command}: {refused:?}");
        assert!(refused.stderr.contains("does not use TLS"), "{command}: {refused:?}");
    }
    let top = ["top", "--once", "--interval=500ms", "--write-out=json"];
    let line: Value = serde_json::from_str(&ctl(&endpoint, &top).success()).unwrap();
    assert_eq!(line["members"][1]["role"], "no TLS", "{line:#}");
    // Endpoints that the user names are used, with or without TLS.
    let named = [endpoint, cluster.server(0).url(), cluster.server(1).url()].join(",");
    let line: Value = serde_json::from_str(&ctl(&named, &top).success()).unwrap();
    assert!(
        ["leader", "follower"].contains(&line["members"][1]["role"].as_str().unwrap()),
        "{line:#}"
    );
    assert!(ctl(&named, &["endpoint", "status", "--cluster"]).success().lines().count() == 2);
}
