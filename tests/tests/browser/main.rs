//! The web console's page in a real browser: headless Chromium, driven over WebDriver. Most tests act like a user: they
//! click elements by their visible text, type, and wait until the page shows a text. The browser's log must stay free
//! of errors. Screenshots of every page are written to the folder in `QUORATE_SCREENSHOTS`, or to a temporary folder.
//! With `AXE_CORE`, each page is also checked for accessibility.
//!
//! `cargo xtask test` provides the browser. Without `CHROMIUM` and `CHROMEDRIVER`, the tests are skipped.

#![expect(clippy::unwrap_used, reason = "a failing step must fail the test")]

mod driver;
mod hostile;
mod members;
mod modules;
mod pages;
mod scale;
mod users;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{Client, Console, Options, Server};

use driver::Browser;

/// The pages, each with the fragment of its address and a text that it shows once it is loaded.
const PAGES: [(&str, &str); 8] = [
    ("cluster", "Cluster"),
    ("keys", "Keys"),
    ("keys/sizes", "Keys"),
    ("keys/watch", "Keys"),
    ("leases", "Leases"),
    ("problems", "Problems"),
    ("operate", "Operate"),
    ("operate/access", "Users"),
];

/// Opens a page of a console in this tab.
fn visit(browser: &Browser, console: &Console, page: &str) {
    browser.open(&format!("{}/#/{page}", console.url));
    browser.until("document.querySelector('main#content h1') && all('main#content h1').length");
}

/// Opens a page by changing the fragment of the address, without loading the console again.
fn go(browser: &Browser, page: &str) {
    browser.run(&format!("location.hash = '#/{page}';"));
    browser.until(&format!("document.querySelector('main').dataset.page === '{page}'"));
}

/// Fails if the browser has logged an error. Errors about the HTTP status of a response are ignored, because the tests
/// send requests that are refused.
#[track_caller]
fn check_log(browser: &Browser) {
    let log = browser.log();
    let errors: Vec<_> = log
        .iter()
        .filter(|line| {
            line.contains("SEVERE") && !line.contains("the server responded with a status")
        })
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

/// Starts a member, and a console that allows writes.
async fn one_member(options: Options) -> (Server, Console) {
    let server = options.start().await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), &["--allow-writes"]);
    (server, console)
}

/// Creates the users root (password `p`) and ann (password `q`, with permission to read and write the prefix `a/`), and
/// enables authentication.
async fn add_users(client: &Client) {
    for (name, password) in [("root", "p"), ("ann", "q")] {
        let user = pb::AuthUserAddRequest {
            name: name.into(),
            password: password.into(),
            ..Default::default()
        };
        client.user_add(user).await.unwrap();
        // The root role may already exist.
        client.role_add(pb::AuthRoleAddRequest { name: name.into() }).await.ok();
        let role = pb::AuthUserGrantRoleRequest { user: name.into(), role: name.into() };
        client.user_grant_role(role).await.unwrap();
    }
    let perm = quorate_api::authpb::Permission {
        perm_type: quorate_api::authpb::permission::Type::Readwrite as i32,
        key: "a/".into(),
        range_end: "a0".into(),
    };
    let perm = pb::AuthRoleGrantPermissionRequest { name: "ann".into(), perm: Some(perm) };
    client.role_grant_permission(perm).await.unwrap();
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
}

/// Logs in on the page that the browser shows.
#[track_caller]
fn log_in(browser: &Browser, user: &str, password: &str) {
    browser.sees("Log in to the cluster");
    browser.fill("User", user);
    browser.fill("Password", password);
    browser.press("Log in");
}
