//! `/debug/requests`: an HTML page with the numbers of active, ended and failed requests by method, and the length of
//! each queue.
//!
//! All numbers on the page are counted anyway, so the page adds no cost to calls. The page shows no clients, keys or
//! users. etcd's page with this path lists recent calls if the log level is debug. Quorate instead logs calls at that
//! level (`request stats`), and records clients and users in the audit log.

use std::fmt::Write as _;

use quorate_telemetry::metrics::{CallCounts, Metrics, Waiting};

/// The path of the page.
pub const PATH: &str = "/debug/requests";

/// Returns the page as HTML.
#[must_use]
pub fn page(metrics: &Metrics) -> String {
    let mut calls = String::new();
    for CallCounts { service, method, started, ended, failed } in metrics.grpc.counts() {
        if started == 0 {
            continue;
        }
        let under_way = started.saturating_sub(ended);
        row(&mut calls, &format!("{service}/{method}"), &[under_way, ended, failed]);
    }
    let mut queues = String::new();
    for Waiting { name, about, count } in metrics.waiting() {
        let about = about.trim_end_matches('.');
        row(&mut queues, &format!("{about} (<code>{name}</code>)"), &[count]);
    }
    format!(
        "<!DOCTYPE html>\n<html><head><title>{PATH}</title></head><body>\n<p>Requests on this member by \
         method, and its queues. The limits of the queues are listed in docs/bounds.md.</p>\n<table>\n<tr>\
         <th>method</th><th>in progress</th><th>ended</th><th>failed</th></tr>\n{calls}</table>\n<table>\n<tr>\
         <th>queue</th><th>length</th></tr>\n{queues}</table>\n</body></html>\n"
    )
}

fn row(rows: &mut String, name: &str, numbers: &[impl std::fmt::Display]) {
    write!(rows, "<tr><td>{name}</td>").expect("writing to a string cannot fail");
    for number in numbers {
        write!(rows, "<td>{number}</td>").expect("writing to a string cannot fail");
    }
    rows.push_str("</tr>\n");
}
