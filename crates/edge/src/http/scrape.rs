//! Content negotiation of `/metrics`, by the rules of Prometheus's Go library.
//!
//! The format is text unless the scraper requests length-delimited protobuf. The body is compressed with gzip if the
//! scraper prefers gzip to no compression.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName};
use quorate_telemetry::metrics::Format;

/// The format and compression agreed with the scraper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    pub(super) format: Format,
    pub(super) content_type: String,
    pub(super) is_gzip: bool,
}

/// The escaping schemes for metric names with characters that older scrapers do not support. Quorate's names
/// have no such characters.
const ESCAPING: [&str; 4] = ["allow-utf-8", "underscores", "dots", "values"];

impl Agreement {
    /// Negotiates the format and compression for a request.
    pub(super) fn with(headers: &HeaderMap) -> Self {
        let mut escaping = "underscores";
        let mut chosen = None;
        for wanted in offers(headers, &ACCEPT) {
            if let Some(known) = ESCAPING.iter().find(|it| wanted.parameter("escaping") == Some(it))
            {
                escaping = known;
            }
            chosen = format_of(&wanted);
            if chosen.is_some() {
                break;
            }
        }
        let format = chosen.unwrap_or_default();
        let media = match format {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        };
        let content_type = format!("{media}; escaping={escaping}");
        Self { format, content_type, is_gzip: prefers_gzip(headers) }
    }
}

/// Returns the format named in an item of the `Accept` header, if Quorate supports it.
fn format_of(wanted: &Offer<'_>) -> Option<Format> {
    let parameter = |name| wanted.parameter(name);
    match wanted.value {
        "application/vnd.google.protobuf"
            if parameter("proto") == Some("io.prometheus.client.MetricFamily")
                && parameter("encoding") == Some("delimited") =>
        {
            Some(Format::Protobuf)
        }
        "text/plain" if matches!(parameter("version"), None | Some("" | "0.0.4")) => {
            Some(Format::Text)
        }
        _ => None,
    }
}

/// Returns whether the scraper prefers gzip to no compression.
fn prefers_gzip(headers: &HeaderMap) -> bool {
    let weight = |encoding: &str| {
        let fit = offers(headers, &ACCEPT_ENCODING)
            .into_iter()
            .filter(|offer| offer.value == encoding || offer.value == "*");
        fit.map(|offer| offer.weight).reduce(f32::max)
    };
    weight("gzip").is_some_and(|gzip| gzip > 0.0 && weight("identity").is_none_or(|it| gzip > it))
}

/// Compresses a scrape.
pub(super) fn compress(scrape: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(scrape.len() / 8), Compression::fast());
    encoder
        .write_all(scrape)
        .and_then(|()| encoder.finish())
        .expect("writing to memory cannot fail")
}

/// An item of a header that lists preferences.
#[derive(Clone, Debug)]
struct Offer<'a> {
    value: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    weight: f32,
}

impl Offer<'_> {
    fn parameter(&self, wanted: &str) -> Option<&str> {
        self.parameters.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
    }
}

/// Returns the items of a header, the most preferred first.
fn offers<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<Offer<'a>> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    let mut offers: Vec<Offer<'a>> =
        lines.flat_map(|line| line.split(',')).filter_map(offer).collect();
    offers.sort_by(|one, other| other.weight.total_cmp(&one.weight));
    offers
}

fn offer(text: &str) -> Option<Offer<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let value = parts.next().filter(|value| !value.is_empty())?;
    let parameters: Vec<_> = parts
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
        .collect();
    let weight = parameters.iter().find(|(name, _)| *name == "q");
    let weight = weight.map_or(1.0, |(_, weight)| weight.parse().unwrap_or(1.0));
    Some(Offer { value, parameters, weight })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn agreed(lines: &[(HeaderName, &'static str)]) -> Agreement {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        Agreement::with(&headers)
    }

    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

    #[test]
    fn metrics_are_sent_as_text_by_default() {
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
            "text/html, application/json",
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
            "application/vnd.google.protobuf;encoding=delimited",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
             encoding=delimited;q=0.2,text/plain;q=0.5",
            "a;;=,;,\"",
        ] {
            let agreed = agreed(&[(ACCEPT, accept)]);
            assert_eq!((agreed.format, &agreed.content_type[..]), (Format::Text, TEXT), "{accept}");
        }
        assert_eq!(agreed(&[]).content_type, TEXT);
    }

    #[test]
    fn metrics_are_sent_as_protobuf_on_request() {
        let accept = "application/vnd.google.protobuf;\
             proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,text/plain;q=0.3";
        let plain = agreed(&[(ACCEPT, accept)]);
        assert_eq!(plain.format, Format::Protobuf);
        let expected = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
             encoding=delimited; escaping=underscores";
        assert_eq!(plain.content_type, expected);
        let accept = "application/vnd.google.protobuf; proto=\"io.prometheus.client.MetricFamily\"; \
             encoding=delimited; escaping=allow-utf-8";
        let newer = agreed(&[(ACCEPT, accept)]);
        assert!(newer.content_type.ends_with("; escaping=allow-utf-8"), "{newer:?}");
    }

    #[test]
    fn metrics_are_compressed_if_the_client_prefers_gzip() {
        for (encoding, is_gzip) in [
            ("gzip", true),
            ("gzip, deflate, br", true),
            ("identity;q=0.5, gzip", true),
            ("gzip, identity", false),
            ("*", false),
            ("gzip;q=0", false),
            ("deflate", false),
            ("", false),
        ] {
            assert_eq!(agreed(&[(ACCEPT_ENCODING, encoding)]).is_gzip, is_gzip, "{encoding}");
        }
        assert!(!agreed(&[]).is_gzip);
        let text = "etcd_server_has_leader 1\n".repeat(1_000);
        let (small, mut again) = (compress(text.as_bytes()), String::new());
        flate2::read::GzDecoder::new(&small[..]).read_to_string(&mut again).unwrap();
        assert!(again == text && small.len() < text.len() / 10);
    }
}
