//! Writes a CA (`ca`) and certificates that it signed (`server`, `client`, each with its `.key`) into a folder, for
//! comparisons over TLS. They are valid for 90 days, on this machine.

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
