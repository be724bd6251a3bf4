//! Hostile contents and hostile pages in a browser: scripts in keys and values, frames, and requests from other sites.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use quorate_tests::{Kind, Options, on_quorate};

use super::driver::Browser;
use super::{check_log, go, one_member, visit};

on_quorate! {
    alone:
    scripts_in_keys_and_values_do_not_run,
    deeply_nested_json_is_shown_as_text,
    another_site_cannot_use_or_frame_the_console,
    the_memory_of_an_open_console_page_does_not_grow,
}

async fn scripts_in_keys_and_values_do_not_run(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(Options::new(kind).unguarded()).await;
    let client = server.client();
    let script = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>";
    client.write(script, script).await;
    client.write(b"\xff\xfe/\0binary", b"\x00\x01\xff").await;
    client.write("javascript:window.hacked=1", script).await;
    client.write("long", "v".repeat(1_200_000)).await;
    visit(&browser, &console, "keys?view=list");
    browser.sees("onerror");
    for key in ["onerror", "javascript", "binary", "long"] {
        browser.click("[role=treeitem]", key);
        browser.until("all('.detail-panel').length > 0");
        browser.picture(&format!("hostile-{key}"));
    }
    go(&browser, "keys/watch");
    browser.sees("Watching since revision");
    client.write(script, "changed").await;
    browser.sees("onerror");
    go(&browser, "keys/sizes");
    browser.until("document.querySelector('main').innerText.length > 50");
    assert_eq!(browser.run("return window.hacked === undefined;"), true);
    check_log(&browser);
}

async fn deeply_nested_json_is_shown_as_text(kind: Kind) {
    const LEVELS: usize = 100_000;
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(Options::new(kind).unguarded()).await;
    let client = server.client();
    let arrays = format!("{}{}", "[".repeat(LEVELS), "]".repeat(LEVELS));
    for value in [&*arrays, "[1]", &*arrays] {
        client.write("arrays", value).await;
    }
    client.write("objects", "{\"a\":".repeat(LEVELS / 4)).await;
    visit(&browser, &console, "keys?view=list");
    for (key, text) in [("arrays", "[[[[[["), ("objects", "{\"a\":{\"a\":")] {
        browser.click("[role=treeitem]", key);
        browser.sees("nested too deeply to be shown as JSON");
        browser.sees(text);
        browser.until("all('main button').every((e) => textOf(e) !== 'JSON')");
        browser.picture(&format!("deep-{key}"));
    }
    check_log(&browser);
}

/// Serves a page at another origin. Returns its address.
fn serve(page: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // The content of the request does not matter.
            assert!(stream.read(&mut head).unwrap() > 0);
            let text = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                page.len()
            );
            // The browser may close the connection early.
            drop(stream.write_all(text.as_bytes()));
        }
    });
    format!("http://localhost:{}", address.port())
}

async fn another_site_cannot_use_or_frame_the_console(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(Options::new(kind).unguarded()).await;
    let client = server.client();
    let before = client.revision().await;
    let url = &console.url;
    let page = format!(
        "<!doctype html><title>evil</title><iframe id=f src=\"{url}/\"></iframe>\
         <form id=form method=post action=\"{url}/api/v1/write/put\" enctype=text/plain target=t>\
         <input name='{{\"key\":\"aw==\",\"value\":\"aw==\",\"if_mod_revision\":0,\"x\":\"' value='\"}}'></form>\
         <iframe name=t></iframe><img src=\"{url}/api/v1/overview\"><script src=\"{url}/main.js\"></script>"
    );
    browser.open(&serve(page));
    browser.until("document.title === 'evil'");
    browser.run("document.getElementById('form').submit();");
    let outcomes = browser.run_async(&format!(
        "const attempts = [\
           fetch('{url}/api/v1/session', {{ method: 'POST', body: '{{}}' }}),\
           fetch('{url}/api/v1/session', {{ method: 'POST', body: '{{}}', mode: 'no-cors' }}).then((r) => r.text()),\
           fetch('{url}/api/v1/write/put', {{ method: 'POST', headers: {{ 'Content-Type': 'application/json', 'X-Quorate-Console': '1' }},\
             body: '{{\"key\":\"aw==\",\"value\":\"aw==\",\"if_mod_revision\":0}}' }}),\
         ];\
         Promise.allSettled(attempts).then((all) => done(all.map((it) => it.status === 'rejected' ? 'refused' : String(it.value))));"
    ));
    // The browser also refuses a request in the mode `no-cors`, because only the console's own origin may read
    // responses.
    assert_eq!(outcomes, serde_json::json!(["refused", "refused", "refused"]));
    let framed = browser.run(
        "try { return document.getElementById('f').contentDocument.body.innerText; } catch (e) { return 'blocked'; }",
    );
    assert_eq!(framed, "blocked");
    browser.picture("framed");
    assert_eq!(client.revision().await, before, "nothing was written");
    assert_eq!(client.read("k").await, None);
}

async fn the_memory_of_an_open_console_page_does_not_grow(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (server, console) = one_member(Options::new(kind).unguarded()).await;
    let client = server.client();
    visit(&browser, &console, "cluster");
    browser.until("document.querySelectorAll('main svg path').length > 0");
    let heap = || {
        let bytes = browser.run("gc(); gc(); return performance.memory.usedJSHeapSize;");
        bytes.as_u64().unwrap()
    };
    let nodes = || browser.run("return document.querySelectorAll('*').length;").as_u64().unwrap();
    let secs = if quorate_tests::is_long() { 3600 } else { 20 };
    // The charts keep at most 15 minutes of samples. A long run waits until the charts are full, so that they do not
    // grow during the measurement.
    tokio::time::sleep(std::time::Duration::from_secs(if secs > 1000 { 1000 } else { 6 })).await;
    let (heap_before, nodes_before) = (heap(), nodes());
    for number in 0..secs {
        client.write(format!("k{}", number % 100), "v").await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let (heap_after, nodes_after) = (heap(), nodes());
    assert!(
        heap_after < heap_before + (4 << 20),
        "the heap grew from {heap_before} to {heap_after} bytes"
    );
    assert!(
        nodes_after < nodes_before + 200,
        "the page grew from {nodes_before} to {nodes_after} elements"
    );
    check_log(&browser);
}
