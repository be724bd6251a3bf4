//! Users on the page: the login, missing permissions, and an expired token.

use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{Console, Kind, Options, on_both_servers, on_quorate};

use super::driver::Browser;
use super::{add_users, check_log, go, log_in, one_member, visit};

on_both_servers! {
    alone:
    a_user_logs_in_and_sees_which_actions_are_forbidden,
    a_user_whose_token_has_expired_logs_in_and_returns_to_the_page,
    the_page_notices_when_authentication_is_turned_on_or_off,
}

on_quorate! {
    alone:
    a_login_that_would_send_the_password_in_plaintext_is_not_offered,
}

async fn a_user_logs_in_and_sees_which_actions_are_forbidden(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) =
        one_member(Options::new(kind).unguarded().flag("--bcrypt-cost=4")).await;
    let client = server.client();
    client.write("a/own", "value of ann").await;
    client.write("secret", "SECRET").await;
    add_users(&client).await;
    browser.open(&console.url);
    browser.sees("Log in to the cluster");
    browser.check_accessibility("login");
    browser.picture("login");
    log_in(&browser, "ann", "wrong");
    browser.sees("invalid user ID or password");
    log_in(&browser, "ann", "q");
    browser.sees("default");
    // The browser stores neither the password nor the token, so scripts and other pages cannot find them later.
    let stored = browser.run(
        "return [document.cookie, sessionStorage.length, Object.keys(localStorage).join(), location.href].join(' ');",
    );
    let stored = stored.as_str().unwrap();
    assert!(stored.starts_with(" 0 ") && !stored.contains("token"), "{stored}");
    go(&browser, "keys");
    browser.sees("permission denied");
    browser.fill("Prefix of the keys", "a/");
    browser.sees("own");
    go(&browser, "operate");
    browser.sees("may not operate the cluster");
    browser.until(
        "all('main button').filter((e) => textOf(e) === 'Compact').every((e) => e.disabled)",
    );
    browser.check_accessibility("operate as ann");
    go(&browser, "operate/access");
    browser.picture("access-of-ann");
    // After a reload, the user must log in again.
    browser.open(&console.url);
    log_in(&browser, "root", "p");
    browser.sees("default");
    go(&browser, "operate/access");
    browser.sees("ann");
    browser.check_accessibility("users");
    browser.picture("users");
    check_log(&browser);
}

async fn a_user_whose_token_has_expired_logs_in_and_returns_to_the_page(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let options =
        Options::new(kind).unguarded().flag("--bcrypt-cost=4").flag("--auth-token-ttl=3600");
    let (server, console) = one_member(options).await;
    let client = server.client();
    client.write("a/own", "value of ann").await;
    add_users(&client).await;
    visit_logged_in(&browser, &console, "ann", "q");
    go(&browser, "keys/watch");
    // The test changes the password, so that all tokens of the user become invalid.
    let root = client.log_in("root", "p").await.unwrap();
    let password = quorate_api::etcdserverpb::AuthUserChangePasswordRequest {
        name: "ann".into(),
        password: "r".into(),
        ..Default::default()
    };
    root.user_change_password(password).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    go(&browser, "leases");
    browser.sees("Your login is no longer valid");
    browser.picture("expired");
    log_in(&browser, "ann", "r");
    browser.until("document.querySelector('main').dataset.page === 'leases'");
    check_log(&browser);
}

async fn the_page_notices_when_authentication_is_turned_on_or_off(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) =
        one_member(Options::new(kind).unguarded().flag("--bcrypt-cost=4")).await;
    let client = server.client();
    visit(&browser, &console, "keys/watch");
    browser.sees("Watching since");
    add_users(&client).await;
    browser.sees("Authentication was turned on in this cluster");
    browser.picture("authentication-on");
    log_in(&browser, "root", "p");
    browser.sees("Watching since");
    browser.sees("Log out");
    let root = client.log_in("root", "p").await.unwrap();
    root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    browser.sees("Authentication was turned off in this cluster");
    browser.picture("authentication-off");
    browser.sees("No authentication");
    browser.sees("Watching since");
    client.write("k", "after the change").await;
    browser.sees("after the change");
    check_log(&browser);
}

async fn a_login_that_would_send_the_password_in_plaintext_is_not_offered(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let server = Options::new(kind).unguarded().flag("--bcrypt-cost=4").start().await;
    add_users(&server.client()).await;
    let endpoints = format!("127.0.0.1:{},http://192.0.2.1:2379", server.port());
    let console = Console::start(&endpoints, &[]);
    browser.open(&console.url);
    browser.sees("over the network in plaintext");
    browser.sees("--allow-plaintext-login");
    assert_eq!(browser.run("return all('input').length;"), 0);
    browser.check_accessibility("refused login");
    browser.picture("refused-login");
}

fn visit_logged_in(browser: &Browser, console: &Console, user: &str, password: &str) {
    browser.open(&console.url);
    log_in(browser, user, password);
    browser.until("document.querySelector('main#content')");
}
