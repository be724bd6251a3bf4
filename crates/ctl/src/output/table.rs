//! The format for terminals: tables.

use quorate_cli::table::draw;

use super::{Reply, Shown, columns};

/// Formats a reply. Returns false if the reply has no table form.
pub(super) fn render(reply: &Reply, shown: &mut Shown) -> bool {
    let (header, rows) = match reply {
        Reply::MemberList(response) => (&columns::MEMBERS[..], columns::members(response)),
        Reply::Health(list) => (&columns::HEALTH[..], columns::health(list)),
        Reply::Status(list) => (&columns::STATUS[..], columns::status(list)),
        Reply::HashKv(list) => (&columns::HASH_KV[..], columns::hash_kv(list)),
        _ => return false,
    };
    shown.output.extend_from_slice(draw(header, &rows).as_bytes());
    true
}
