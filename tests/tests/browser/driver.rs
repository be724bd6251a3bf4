//! A headless Chromium, driven over the WebDriver protocol.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quorate_tests::{Port, missing, try_request_with};
use serde_json::{Value, json};

/// Timeout for a condition of the page.
const DEADLINE: Duration = Duration::from_secs(30);

/// File name of the driver's log.
const LOG: &str = "chromedriver.log";

/// The key of the element id in responses of the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Functions with which scripts find elements by their visible text.
const HELPERS: &str = r#"
const shown = (e) => e.checkVisibility ? e.checkVisibility({ visibilityProperty: true }) : true;
const all = (css) => [...document.querySelectorAll(css)].filter(shown);
const textOf = (e) => (e.innerText || e.textContent || '').replace(/\s+/g, ' ').trim();
const named = (css, text) => all(css).find((e) => textOf(e) === text || e.getAttribute('aria-label') === text)
  || all(css).find((e) => textOf(e).includes(text));
const dialog = () => document.querySelector('dialog[open]');
"#;

/// A browser with one window, closed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Browser {
    driver: Child,
    port: Port,
    session: String,
    /// Folder for screenshots.
    pictures: PathBuf,
    /// Folder in which the browser saves downloads.
    downloads: tempfile::TempDir,
    /// Folder for the driver's log and for the temporary files of the driver and the browser, which do not remove all
    /// of them.
    temporary: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser, if one is installed.
    pub(crate) fn start() -> Option<Self> {
        let driver = std::env::var_os("CHROMEDRIVER").map(PathBuf::from);
        let chromium = std::env::var_os("CHROMIUM").map(PathBuf::from);
        let (Some(driver), Some(chromium)) = (driver, chromium) else {
            missing(
                "chromium",
                "browser tests (Chromium is missing: set CHROMIUM and CHROMEDRIVER)",
            );
            return None;
        };
        let port = Port::free();
        let temporary = tempfile::tempdir().unwrap();
        let child = Command::new(driver)
            .arg(format!("--port={}", port.number()))
            .arg(format!("--log-path={}", temporary.path().join(LOG).display()))
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pictures = std::env::var_os("QUORATE_SCREENSHOTS")
            .map_or_else(|| std::env::temp_dir().join("quorate-screenshots"), PathBuf::from);
        std::fs::create_dir_all(&pictures).unwrap();
        let downloads = tempfile::tempdir().unwrap();
        let mut browser =
            Self { driver: child, port, session: String::new(), pictures, downloads, temporary };
        browser.await_driver();
        let options = json!({
            "binary": chromium,
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--window-size=1280,900", "--hide-scrollbars", "--ignore-certificate-errors",
                "--enable-precise-memory-info", "--js-flags=--expose-gc",
            ],
            "prefs": {
                "download.default_directory": browser.downloads.path(),
                "download.prompt_for_download": false,
            },
        });
        let capabilities = json!({
            "capabilities": { "alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": { "browser": "ALL" },
            } }
        });
        let opened = browser.send("POST", "/session", &capabilities);
        browser.session = opened["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let headers = [("Content-Type", "application/json")];
        let body = body.to_string();
        let response =
            try_request_with(self.port.number(), method, path, &headers, body.as_bytes())
                .unwrap_or_else(|error| {
                    panic!("{method} {path}: {error}\n{}", self.driver_state())
                });
        let value: Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!(response.status, 200, "{path}: {value}");
        value["value"].clone()
    }

    /// Waits until the driver answers requests. A connection that fails while the driver starts is tried again.
    fn await_driver(&self) {
        let start = Instant::now();
        loop {
            let error = match try_request_with(self.port.number(), "GET", "/status", &[], &[]) {
                Ok(response) if response.status == 200 => return,
                Ok(response) => response.text(),
                Err(error) => error.to_string(),
            };
            assert!(
                start.elapsed() < DEADLINE,
                "the driver did not start: {error}\n{}",
                self.driver_state()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Describes whether the driver is running, and returns the end of its log.
    fn driver_state(&self) -> String {
        let status = format!("/proc/{}/status", self.driver.id());
        let status = std::fs::read_to_string(status).unwrap_or_default();
        let state = status.lines().find(|line| line.starts_with("State:"));
        let log = std::fs::read(self.temporary.path().join(LOG)).unwrap_or_default();
        let end = String::from_utf8_lossy(&log[log.len().saturating_sub(4096)..]).into_owned();
        format!("driver: {}\n{end}", state.unwrap_or("not running"))
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        self.send(method, &format!("/session/{}/{path}", self.session), body)
    }

    /// Opens an address.
    pub(crate) fn open(&self, url: &str) {
        self.ask("POST", "url", &json!({ "url": url }));
    }

    /// Sets the size of the window's content.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let params = json!({
            "cmd": "Emulation.setDeviceMetricsOverride",
            "params": { "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false },
        });
        self.ask("POST", "goog/cdp/execute", &params);
    }

    /// Sets the preferred colour scheme, `dark` or `light`.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let params =
            json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
        self.ask("POST", "goog/cdp/execute", &params);
    }

    /// Runs a script, and returns the value that the script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        let script = format!("{HELPERS}{script}");
        self.ask("POST", "execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script until it calls `done`, and returns the argument of the call.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        let script = format!("const done = arguments[arguments.length - 1];{HELPERS}{script}");
        self.ask("POST", "execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&self, expression: &str) {
        let start = Instant::now();
        loop {
            let found = self.run(&format!("return Boolean({expression});"));
            if found == true {
                return;
            }
            if start.elapsed() > DEADLINE {
                let page = self.run("return document.body.innerText;");
                self.picture("failed");
                let log = self.log();
                panic!(
                    "this condition did not become true: {expression}\n{}\n{log:?}",
                    page.as_str().unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows a text.
    #[track_caller]
    pub(crate) fn sees(&self, text: &str) {
        self.until(&format!("textOf(document.body).includes({})", json!(text)));
    }

    /// Clicks an element that matches a selector and has this text or label.
    #[track_caller]
    pub(crate) fn click(&self, css: &str, text: &str) {
        let find = format!("named({}, {})", json!(css), json!(text));
        self.until(&format!("{find} && !{find}.disabled"));
        let element = self.run(&format!("return {find};"));
        let id = element[ELEMENT].as_str().unwrap();
        self.run(&format!("{find}.scrollIntoView({{ block: 'center' }});"));
        self.ask("POST", &format!("element/{id}/click"), &json!({}));
    }

    /// Clicks a button.
    #[track_caller]
    pub(crate) fn press(&self, text: &str) {
        self.click("button, a.button, [role=button]", text);
    }

    /// Clicks a button of the open dialog.
    #[track_caller]
    pub(crate) fn confirm(&self, text: &str) {
        self.until("dialog()");
        self.click("dialog[open] button", text);
    }

    /// Types into the input with this label, replacing its content.
    #[track_caller]
    pub(crate) fn fill(&self, label: &str, text: &str) {
        // While a dialog is open, only the inputs in the dialog are considered.
        let find = format!(
            "(() => {{ const t = {}; const root = dialog() || document; \
             const usable = (e) => e && !e.disabled && !['radio', 'checkbox'].includes(e.type); \
             const within = (e) => root.contains(e); \
             const labels = all('label').filter(within).filter((e) => textOf(e).startsWith(t)); \
             const controls = labels.map((e) => e.control || e.querySelector('input, textarea, select')); \
             return controls.find(usable) || all('input, textarea, select').filter(within) \
             .find((e) => usable(e) && e.getAttribute('aria-label') === t); }})()",
            json!(label)
        );
        self.until(&find);
        let element = self.run(&format!("return {find};"));
        let id = element[ELEMENT].as_str().unwrap();
        self.ask("POST", &format!("element/{id}/clear"), &json!({}));
        self.ask("POST", &format!("element/{id}/value"), &json!({ "text": text }));
    }

    /// Presses keys in the focused element.
    pub(crate) fn keys(&self, keys: &[&str]) {
        let actions: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        let body = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.ask("POST", "actions", &body);
    }

    /// Writes a screenshot, and returns its path.
    pub(crate) fn picture(&self, name: &str) -> PathBuf {
        let data = self.ask("GET", "screenshot", &json!({}));
        let path = self.pictures.join(format!("{name}.png"));
        std::fs::write(&path, decode(data.as_str().unwrap())).unwrap();
        path
    }

    /// Returns the messages of the console log since the last call.
    pub(crate) fn log(&self) -> Vec<String> {
        let entries = self.ask("POST", "se/log", &json!({ "type": "browser" }));
        let text = |entry: &Value| {
            format!("{}: {}", entry["level"], entry["message"].as_str().unwrap_or_default())
        };
        entries.as_array().map(|all| all.iter().map(text).collect()).unwrap_or_default()
    }

    /// Returns the files that have been downloaded.
    pub(crate) fn downloaded(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.downloads.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_whole = |path: &Path| path.extension().is_some_and(|it| it == "db");
        paths.filter(|path| is_whole(path)).collect()
    }

    /// Checks the page with axe-core, if it is installed. Fails if axe-core finds violations.
    #[track_caller]
    pub(crate) fn check_accessibility(&self, page: &str) {
        let Some(axe) = std::env::var_os("AXE_CORE") else {
            missing("axe", "accessibility checks (axe-core is missing: set AXE_CORE)");
            return;
        };
        let axe = std::fs::read_to_string(axe).unwrap();
        // The content-security policy forbids scripts in the document, but not scripts that the driver runs.
        self.ask("POST", "execute/sync", &json!({ "script": axe, "args": [] }));
        let found = self.run_async(
            "const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'];\
             axe.run(document, { runOnly: tags }).then((result) => done(result.violations.map(\
             (it) => `${it.id}: ${it.help}: ${it.nodes.map((node) => node.target + ' ' + node.failureSummary).join(' | ')}`)),\
             (error) => done(['axe failed: ' + error]));",
        );
        let violations = found.as_array().unwrap();
        assert!(violations.is_empty(), "{page}: {violations:#?}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.session.is_empty() {
            // After a panic, no request is sent to the driver. The browser ends with the driver.
            drop(self.driver.kill());
            drop(self.driver.wait());
            return;
        }
        if !self.session.is_empty() {
            self.send("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

fn decode(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let letters: Vec<u8> = text.bytes().filter(|letter| *letter != b'=').map(value).collect();
    let mut bytes = Vec::new();
    for four in letters.chunks(4) {
        let number = four.iter().fold(0_u32, |sum, six| sum << 6 | u32::from(*six));
        let number = number << (6 * (4 - four.len()));
        bytes.extend_from_slice(&number.to_be_bytes()[1..four.len()]);
    }
    bytes
}
