//! Runs the tests of the page's modules (`crates/console/assets-tests`) in the browser. `node --test` runs them as
//! well.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use quorate_tests::{Kind, on_quorate};
use serde_json::json;

use super::driver::Browser;

on_quorate! {
    alone:
    the_modules_of_the_page_pass_their_tests,
}

/// The Node modules that the tests import, and their replacements.
const SHIMS: [(&str, &str, &str); 3] = [
    ("node:test", "/shims/test.js", include_str!("shims/test.js")),
    ("node:assert/strict", "/shims/assert.js", include_str!("shims/assert.js")),
    ("node:fs", "/shims/fs.js", include_str!("shims/fs.js")),
];

async fn the_modules_of_the_page_pass_their_tests(_: Kind) {
    let Some(browser) = Browser::start() else { return };
    let console = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/console");
    let tests: Vec<String> = files(&console.join("assets-tests"))
        .iter()
        .map(|name| format!("/assets-tests/{name}"))
        .collect();
    assert!(tests.len() >= 3, "{tests:?}");
    browser.open(&serve(console));
    let outcome = browser.run_async(&format!(
        "Promise.all({}.map((name) => import(name)))\
         .then(() => import('node:test')).then(({{ runAll }}) => runAll())\
         .then(done, (error) => done({{ passed: [], failed: [String(error)] }}));",
        json!(tests)
    ));
    assert_eq!(outcome["failed"], json!([]), "{outcome:#}");
    assert!(outcome["passed"].as_array().unwrap().len() >= 30, "{outcome:#}");
}

/// Returns the paths of all files under a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

/// Serves the files of the page and their tests. Returns the address.
fn serve(console: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The browser may close a connection early.
            drop(answer(&stream.unwrap(), &console));
        }
    });
    format!("http://{address}/")
}

fn answer(mut stream: &TcpStream, console: &Path) -> std::io::Result<()> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header == "\r\n" {
            break;
        }
    }
    let shim = SHIMS.iter().find(|(_, url, _)| *url == path);
    let folder = ["/assets/", "/assets-tests/"].iter().any(|folder| path.starts_with(folder));
    let content = match (path, shim) {
        ("/", _) => {
            let map: serde_json::Map<_, _> =
                SHIMS.iter().map(|(name, url, _)| ((*name).to_owned(), json!(url))).collect();
            let map = json!({ "imports": map });
            Some(format!("<!doctype html><script type=importmap>{map}</script>").into_bytes())
        }
        (_, Some((_, _, content))) => Some(content.as_bytes().to_vec()),
        (_, None) if folder && path.ends_with('/') => {
            Some(json!(files(&console.join(&path[1..]))).to_string().into_bytes())
        }
        (_, None) if folder => std::fs::read(console.join(&path[1..])).ok(),
        (_, None) => None,
    };
    let kind = match path.rsplit('.').next() {
        Some("js" | "mjs") => "text/javascript",
        Some("css") => "text/css",
        _ => "text/html; charset=utf-8",
    };
    let status = if content.is_some() { "200 OK" } else { "404 Not Found" };
    let content = content.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&content)
}
