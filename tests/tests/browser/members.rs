//! Three members with TLS and users. The page lists the members, names the current leader, and shows a killed member as
//! down.

use quorate_tests::{ClusterOptions, Console, Kind, run_cluster};

use super::driver::Browser;
use super::{check_log, go, log_in};

mod three_members_with_tls_and_users_are_shown_and_operated {
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

async fn check(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let mut cluster = ClusterOptions::new(kind, 3).guarded().start().await;
    let leader = cluster.leader().await;
    let path = |name: &str| cluster.server(leader).guard_dir().join(name).display().to_string();
    let flags = [
        format!("--cacert={}", path("ca")),
        format!("--cert={}", path("client")),
        format!("--key={}", path("client.key")),
        "--allow-writes".to_owned(),
    ];
    let user = cluster.server(leader).user_of_tools().unwrap();
    let (user, password) = user.split_once(':').unwrap();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let urls: Vec<String> =
        cluster.members().into_iter().map(|member| cluster.server(member).url()).collect();
    // The members advertise URLs without TLS. A console whose endpoint uses TLS does not send the user's token to such
    // URLs.
    let secured = Console::start(&cluster.server(leader).listen_url(), &flags);
    browser.open(&secured.url);
    log_in(&browser, user, password);
    browser.sees("No request is sent: the client URL");
    browser.sees("2 without TLS");
    browser.check_accessibility("members without TLS");
    browser.picture(&format!("members-without-tls-{kind:?}").to_lowercase());
    let console = Console::start(&urls.join(","), &flags);
    browser.open(&console.url);
    log_in(&browser, user, password);
    for member in ["m0", "m1", "m2"] {
        browser.sees(member);
    }
    browser.until("all('main *').some((e) => textOf(e) === 'leader')");
    browser.check_accessibility("three members");
    browser.picture(&format!("three-members-{kind:?}").to_lowercase());
    // The user transfers leadership to another member.
    let other = cluster.follower().await;
    go(&browser, "operate");
    browser.press(&format!("Make leader: m{other}"));
    browser.confirm("Move the leader");
    browser.sees(&format!("m{other} is the leader now"));
    assert_eq!(cluster.leader().await, other);
    // The page shows that a killed member is down.
    let victim = leader;
    cluster.kill(victim);
    go(&browser, "cluster");
    browser.sees(&format!("Member m{victim} is not responding"));
    go(&browser, "problems");
    browser.sees(&format!("Member m{victim} is not responding"));
    browser.sees("The loss of one more member stops the cluster");
    browser.check_accessibility("problems");
    browser.picture(&format!("problems-{kind:?}").to_lowercase());
    check_log(&browser);
}
