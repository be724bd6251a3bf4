//! One member without users: every page, and every operation that one member permits.

use std::time::Duration;

use quorate_tests::{Kind, Options, on_both_servers, put_leased};

use super::driver::Browser;
use super::{PAGES, check_log, go, one_member, visit};

on_both_servers! {
    alone:
    every_page_is_shown_and_accessible,
    keys_are_created_changed_compared_and_deleted,
    a_watch_shows_changes_and_can_be_paused,
    the_page_performs_maintenance_and_revokes_leases,
    keys_can_be_browsed_with_the_keyboard_alone,
}

fn options(kind: Kind) -> Options {
    Options::new(kind).unguarded()
}

async fn every_page_is_shown_and_accessible(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(options(kind)).await;
    let client = server.client();
    for number in 0..300 {
        client.write(format!("/registry/pods/ns{}/pod{number}", number % 7), "x".repeat(200)).await;
    }
    client.write("config/app.json", r#"{"log":{"level":"info"},"replicas":3}"#).await;
    client.grant(77, 600).await;
    client.put(put_leased("locks/leader", "m1", 77)).await.unwrap();
    visit(&browser, &console, "cluster");
    browser.sees("default");
    for (scheme, width, height) in [("light", 1280, 900), ("dark", 1280, 900), ("light", 400, 800)]
    {
        browser.prefer(scheme);
        browser.resize(width, height);
        for (page, title) in PAGES {
            go(&browser, page);
            browser.sees(title);
            browser.until(
                "!named('main *', 'Loading') && !named('main *', 'Waiting for the first sample')",
            );
            // No part of the page is wider than the window, except parts that have their own scroll bar.
            browser.until("document.documentElement.scrollWidth <= innerWidth");
            let name = page.replace('/', "-");
            browser.picture(&format!("{}-{name}-{scheme}-{width}", name_of(kind)));
            browser.check_accessibility(&format!("{page} {scheme} {width}"));
        }
    }
    browser.resize(1280, 900);
    go(&browser, "cluster");
    let queue = match kind {
        Kind::Quorate => "/^queue .*s$/",
        Kind::Etcd => "/^queue not available$/",
    };
    client.write("k", "v").await;
    browser.until(&format!("all('.chart-legend li').some((e) => {queue}.test(textOf(e)))"));
    // A chart draws a path once it has two points.
    browser.until("document.querySelectorAll('main svg path').length > 0");
    check_log(&browser);
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Quorate => "quorate",
        Kind::Etcd => "etcd",
    }
}

async fn keys_are_created_changed_compared_and_deleted(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(options(kind)).await;
    let client = server.client();
    visit(&browser, &console, "keys");
    browser.press("New key");
    browser.fill("Key", "app/greeting");
    browser.fill("Value", "hello");
    browser.confirm("Create the key");
    browser.sees("Created the key");
    assert_eq!(client.read("app/greeting").await.unwrap(), b"hello");
    // The page selects the new key, so that the user can change it.
    browser.sees("hello");
    browser.press("Edit");
    browser.fill("Value", "goodbye");
    browser.confirm("Write the value");
    browser.sees("goodbye");
    assert_eq!(client.read("app/greeting").await.unwrap(), b"goodbye");
    browser.click("label, [role=tab], [role=radio], button", "History");
    browser.sees("version 2");
    browser.until("all('.diff-line.add').some((e) => textOf(e).includes('goodbye'))");
    browser.until("all('.diff-line.del').some((e) => textOf(e).includes('hello'))");
    browser.picture(&format!("{}-history", name_of(kind)));
    browser.check_accessibility("history");
    // Another client changes the key while the page shows it. A write that is based on the shown value is then refused.
    browser.click("label, [role=tab], [role=radio], button", "Value");
    browser.press("Edit");
    client.write("app/greeting", "from elsewhere").await;
    browser.fill("Value", "lost update");
    browser.confirm("Write the value");
    browser.sees("changed since it was shown");
    assert_eq!(client.read("app/greeting").await.unwrap(), b"from elsewhere");
    browser.confirm("Cancel");
    browser.press("Show the new state");
    browser.sees("from elsewhere");
    browser.press("Delete");
    browser.fill("Type app/greeting to confirm", "app/greeting");
    browser.picture(&format!("{}-confirmation", name_of(kind)));
    browser.check_accessibility("confirmation");
    browser.confirm("Delete the key");
    browser.sees("Deleted the key");
    assert_eq!(client.read("app/greeting").await, None);
    check_log(&browser);
}

async fn a_watch_shows_changes_and_can_be_paused(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(options(kind)).await;
    let client = server.client();
    visit(&browser, &console, "keys/watch");
    browser.sees("Watching since revision");
    client.write("seen/first", "one").await;
    browser.sees("seen/first");
    browser.press("Pause");
    client.write("seen/second", "two").await;
    browser.until("named('button', 'Continue') || named('button', 'Resume')");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(browser.run("return textOf(document.body).includes('seen/second');"), false);
    browser.click(
        "button",
        if browser.run("return Boolean(named('button', 'Continue'));") == true {
            "Continue"
        } else {
            "Resume"
        },
    );
    browser.sees("seen/second");
    check_log(&browser);
}

async fn the_page_performs_maintenance_and_revokes_leases(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(options(kind)).await;
    let client = server.client();
    for number in 0..50 {
        client.write("k", format!("{number}")).await;
    }
    client.grant(77, 600).await;
    client.put(put_leased("leased", "v", 77)).await.unwrap();
    visit(&browser, &console, "operate");
    browser.press("Compact");
    browser.fill("Revision", "20");
    browser.confirm("Compact");
    browser.sees("Compacted up to revision 20");
    let old = quorate_api::etcdserverpb::RangeRequest { revision: 5, ..quorate_tests::key("k") };
    assert!(client.range(old).await.unwrap_err().message().contains("compacted"));
    browser.press("Defragment: default");
    browser.confirm("Defragment");
    browser.sees("Defragmented default");
    browser.press("Download a snapshot");
    browser.sees("The snapshot is complete");
    browser.picture(&format!("{}-snapshot", name_of(kind)));
    let files = quorate_tests::eventually("the file is saved", async || {
        Some(browser.downloaded()).filter(|files| files.len() == 1)
    })
    .await;
    assert_eq!(std::fs::metadata(&files[0]).unwrap().len() % 512, 32);
    go(&browser, "leases");
    browser.sees("4d");
    browser.click("main *", "4d");
    browser.press("Revoke");
    browser.until("dialog()");
    let typed = browser.run("return dialog().querySelector('input') !== null;");
    if typed == true {
        browser.fill("Type 4d to confirm", "4d");
    }
    browser.click("dialog[open] button[type=submit]", "Revoke");
    quorate_tests::eventually("the lease is revoked", async || {
        client.read("leased").await.is_none().then_some(())
    })
    .await;
    check_log(&browser);
}

async fn keys_can_be_browsed_with_the_keyboard_alone(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(options(kind)).await;
    let client = server.client();
    for key in ["a/1", "a/2", "b"] {
        client.write(key, format!("value of {key}")).await;
    }
    visit(&browser, &console, "cluster");
    browser.keys(&["g", "k"]);
    browser.sees("Keys");
    browser.until("document.querySelector('main').dataset.page === 'keys'");
    browser.keys(&["/"]);
    browser.until("document.activeElement.getAttribute('aria-label') === 'Prefix of the keys'");
    // The arrow keys move the focus down to the tree, open the prefix, and move to the first key with the prefix.
    let (down, right, enter) = ("\u{e015}", "\u{e014}", "\u{e007}");
    browser.until("all('[role=treeitem]').length === 2");
    browser.keys(&[down]);
    browser.until("document.activeElement.getAttribute('role') === 'tree'");
    browser.keys(&[right]);
    browser.until("all('[role=treeitem]').length === 4");
    browser.keys(&[down, enter]);
    browser.sees("value of a/1");
    browser.keys(&["?"]);
    browser.sees("Keyboard shortcuts");
    browser.check_accessibility("shortcuts");
    browser.keys(&["\u{e00c}"]);
    browser.until("!dialog()");
    check_log(&browser);
}
