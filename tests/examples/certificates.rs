//! Writes a CA (`ca`) and the certificates that it signed (`server` and `client`, each with its `.key`) to a folder,
//! for comparisons over TLS. The certificates are valid on this machine for 90 days.

use std::path::Path;
use std::process::ExitCode;

use quorate_tests::pki::{Authority, Leaf, replace};

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else { return ExitCode::from(2) };
    let (folder, authority) = (Path::new(&folder), Authority::new());
    replace(&folder.join("ca"), authority.pem().as_bytes());
    for name in ["server", "client"] {
        drop(authority.sign(&Leaf::new(name)).write(folder, name));
    }
    ExitCode::SUCCESS
}
