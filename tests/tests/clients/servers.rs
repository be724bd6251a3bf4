//! Servers for the clients, with users or with certificates.

use std::path::PathBuf;
use std::process::Command;

use quorate_tests::pki::{Authority, Leaf};
use quorate_tests::{Kind, Options, Server};

/// A server that requires client certificates, and the client's files.
pub(crate) struct Secured {
    pub(crate) server: Server,
    /// Paths of the CA, the client's certificate and its key.
    pub(crate) files: [String; 3],
    _place: Server,
}

/// Starts a server without TLS.
pub(crate) async fn plain(kind: Kind) -> Server {
    Options::new(kind).unguarded().start().await
}

/// Starts a server that requires client certificates. The client's certificate is named `client`.
pub(crate) async fn secured(kind: Kind) -> Secured {
    // The flags name the certificate files, and the server's folder does not exist until its flags are set, so the
    // files are in the folder of another server, which never starts.
    let place = Options::new(kind).unguarded().prepare();
    let folder = place.scratch();
    let authority = Authority::new();
    let path = folder.join("ca.pem");
    std::fs::write(&path, authority.pem()).unwrap();
    let [server, client] =
        ["server", "client"].map(|name| authority.sign(&Leaf::new(name)).write(folder, name));
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (ca, (cert, key)) = (text(path), (text(client.0), text(client.1)));
    let options = Options::new(kind)
        .secured()
        .flag(format!("--cert-file={}", server.0.display()))
        .flag(format!("--key-file={}", server.1.display()))
        .flag(format!("--trusted-ca-file={ca}"))
        .flag("--client-cert-auth");
    Secured { server: options.start().await, files: [ca, cert, key], _place: place }
}

/// Creates root, and `app` with the password `secret` and permission for the keys under `app/`, and enables
/// authentication.
pub(crate) fn with_users(server: &Server, files: &[String]) {
    let tool = |line: &str| {
        let mut command = Command::new(Kind::Quorate.program());
        command.args(["ctl", "--endpoints", &server.url()]);
        let names = ["--cacert", "--cert", "--key"];
        command.args(names.iter().zip(files).flat_map(|(name, path)| [*name, path.as_str()]));
        let said = command.args(line.split(' ')).output().unwrap();
        assert!(said.status.success(), "{line}: {}", String::from_utf8_lossy(&said.stderr));
    };
    for line in [
        "user add root:root",
        "role add root",
        "user grant-role root root",
        "user add app:secret",
        "role add app",
        "role grant-permission app readwrite app/ --prefix",
        "user grant-role app app",
        "auth enable",
    ] {
        tool(line);
    }
}
