//! Chooses which of a peer's URLs to use: the current URL until it fails, and then the next one.

use parking_lot::Mutex;

/// A peer's URLs.
#[derive(Debug)]
pub(crate) struct Urls {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    urls: Vec<String>,
    picked: usize,
}

impl Urls {
    pub(crate) fn new(urls: &[String]) -> Self {
        Self { state: Mutex::new(State { urls: sorted(urls), picked: 0 }) }
    }

    /// If the URLs differ from the current URLs, replaces them and selects the first new URL. Returns whether the URLs
    /// have changed.
    pub(crate) fn update(&self, urls: &[String]) -> bool {
        let urls = sorted(urls);
        let mut state = self.state.lock();
        let is_change = state.urls != urls;
        if is_change {
            *state = State { urls, picked: 0 };
        }
        is_change
    }

    /// Returns the URL to use. For a member without URLs, the returned URL is empty, and connecting to it fails.
    pub(crate) fn pick(&self) -> String {
        let state = self.state.lock();
        state.urls.get(state.picked).cloned().unwrap_or_default()
    }

    pub(crate) fn count(&self) -> usize {
        self.state.lock().urls.len()
    }

    /// Records that a URL failed. The next URL is used from then on, unless the failure was already recorded.
    pub(crate) fn failed(&self, url: &str) {
        let mut state = self.state.lock();
        if state.urls.get(state.picked).is_some_and(|picked| picked == url) {
            state.picked = (state.picked + 1) % state.urls.len();
        }
    }
}

fn sorted(urls: &[String]) -> Vec<String> {
    let mut urls: Vec<String> =
        urls.iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
    urls.sort_unstable();
    urls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_url_is_used_until_it_fails() {
        let urls = Urls::new(&["http://b".to_owned(), "http://a/".to_owned()]);
        assert_eq!(urls.pick(), "http://a");
        urls.failed("http://b");
        assert_eq!(urls.pick(), "http://a");
        urls.failed("http://a");
        // A second report of the same failure does not select another URL.
        urls.failed("http://a");
        assert_eq!(urls.pick(), "http://b");
        urls.failed("http://b");
        assert_eq!(urls.pick(), "http://a");
        assert!(!urls.update(&["http://a".to_owned(), "http://b".to_owned()]));
        assert!(urls.update(&["http://c".to_owned()]));
        assert_eq!(urls.pick(), "http://c");
        urls.failed("http://c");
        assert_eq!(urls.pick(), "http://c");
    }
}
