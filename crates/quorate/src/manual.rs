//! `quorate manual`: prints the manual and reference pages.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use quorate_cli::manual::Page;
use quorate_config::flag_docs;
use quorate_telemetry::metrics::documented_series;

const USAGE: &str = "Usage: quorate manual [server | ctl | utl | bench | metrics] [--markdown]\n";

/// The exit code for an invalid command line.
const BAD_LINE: u8 = 2;

/// Prints the requested page.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let words: Vec<_> = args.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let (written, code) = match page(&words) {
        Some(page) => (io::stdout().write_all(page.as_bytes()), 0),
        None => (io::stderr().write_all(USAGE.as_bytes()), BAD_LINE),
    };
    // An error is ignored, because the reader may have closed the pipe early.
    drop(written);
    ExitCode::from(code)
}

fn page(words: &[&str]) -> Option<String> {
    Some(match words {
        [] | ["server"] => server_page(),
        ["--markdown"] | ["server", "--markdown"] => quorate_config::reference(),
        ["ctl"] => quorate_ctl::man_page(),
        ["ctl", "--markdown"] => quorate_ctl::reference(),
        ["utl"] => quorate_utl::man_page(),
        ["utl", "--markdown"] => quorate_utl::reference(),
        ["bench"] => quorate_bench::man_page(),
        ["bench", "--markdown"] => quorate_bench::reference(),
        ["metrics"] => metrics_page(),
        ["metrics", "--markdown"] => quorate_telemetry::metrics::reference(),
        _ => return None,
    })
}

fn server_page() -> String {
    let mut page = Page::new("quorate", "a member of an etcd cluster");
    page.section("SYNOPSIS");
    page.synopsis("quorate", &["[flags]"]);
    for (program, rest) in [
        ("quorate ctl", &["command"][..]),
        ("quorate utl", &["command"]),
        ("quorate bench", &["command"]),
        ("quorate gateway start", &["[flags]"]),
        ("quorate grpc-proxy start", &["[flags]"]),
    ] {
        page.line_break();
        page.synopsis(program, rest);
    }
    page.section("DESCRIPTION");
    page.paragraph(
        "Runs a member of a replicated key-value store with the API, the file formats and the peer protocol of etcd \
         3.7. It can replace an etcd member on the same data directory, and etcd can replace it in turn.",
    );
    page.paragraph(
        "Every flag can also be set by an environment variable, whose name is ETCD_ followed by the flag's name in \
         capitals with underscores. Setting both the flag and the variable is an error. With --config-file, all \
         settings are read from a file, and other flags and the environment are ignored.",
    );
    let mut section = "";
    for flag in flag_docs() {
        if flag.section != section {
            section = flag.section;
            page.section(&format!("{} FLAGS", section.to_uppercase()));
        }
        let value = if flag.default.is_empty() { "value".to_owned() } else { flag.default };
        page.item(&format!("--{}", flag.name), Some(&value), flag.help);
    }
    page.section("EXIT STATUS");
    page.item("0", None, "The member was stopped, or removed from its cluster.");
    page.item(
        "1",
        None,
        "The member could not start or continue; the last log line gives the reason.",
    );
    page.item("2", None, "The command line is invalid.");
    page.section("SEE ALSO");
    page.text("quorate-ctl(1), quorate-utl(1), quorate-bench(1)");
    page.finish()
}

fn metrics_page() -> String {
    let mut page = Page::new("quorate-metrics", "the metrics of a member");
    page.section("DESCRIPTION");
    page.paragraph(
        "A member reports these series at /metrics, as text or protobuf. A series with labels appears when it \
         has its first value. grpc_server_handling_seconds exists only with --metrics=extensive.",
    );
    let mut section = "";
    for series in documented_series() {
        if series.section != section {
            section = series.section;
            page.section(&section.to_uppercase());
        }
        let kind = match &series.labels[..] {
            [] => series.kind.to_owned(),
            labels => format!("{} by {}", series.kind, labels.join(", ")),
        };
        page.item(series.name, Some(&kind), series.help);
    }
    page.section("SEE ALSO");
    page.text("quorate(1)");
    page.finish()
}
