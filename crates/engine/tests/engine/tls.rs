//! Tests TLS connections to the database.

use std::sync::Arc;

use quorate_engine::{Engine, EngineError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::postgres::Postgres;
use crate::support::{Network, eventually, options, put_at};

/// Returns the certificate of an authority, a certificate for `localhost` that this authority has signed, and the
/// private key of the `localhost` certificate.
fn signed() -> (String, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    (issuer.pem(), certificate.pem(), key.serialize_pem())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_certificate_is_verified_as_the_url_requires() {
    let (authority, certificate, key) = signed();
    let (other_authority, _, _) = signed();
    let settings = "-c ssl=on -c ssl_cert_file=server.crt -c ssl_key_file=server.key";
    let files = [("server.crt", certificate.as_str()), ("server.key", key.as_str())];
    let Some(postgres) = Postgres::start_with(settings, &files) else { return };
    let dir = tempfile::tempdir().unwrap();
    let [trusted, untrusted] =
        [("ca", authority), ("other", other_authority)].map(|(name, pem)| {
            let path = dir.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path.display().to_string()
        });
    let start = async |host: &str, parameters: &str| -> Result<Engine, EngineError> {
        let port = postgres.port();
        let url = format!("postgres://quorate@{host}:{port}/postgres?schema=tls&{parameters}");
        Engine::start(options(&url, 1), Arc::new(Network::default())).await
    };
    for (host, parameters, works) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={trusted}"), true),
        ("localhost", format!("sslmode=verify-full&sslrootcert={untrusted}"), false),
        // The certificate is for another host name.
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={trusted}"), false),
        ("127.0.0.1", "sslmode=require".to_owned(), true),
        ("127.0.0.1", "sslmode=disable".to_owned(), true),
    ] {
        match start(host, &parameters).await {
            Ok(engine) => {
                assert!(works, "{host} {parameters}: the connection was not refused");
                put_at(&engine, "k", "1").await;
                // The sessions of the previous engine may still be closing.
                let database = crate::requests::connect(&postgres.url("tls")).await;
                let wanted = !parameters.contains("disable");
                eventually("the encryption of the sessions matches the URL", async || {
                    let count = "SELECT count(*) FROM pg_stat_ssl WHERE ssl";
                    let row = database.query_one(count, &[]).await.unwrap();
                    (row.get::<_, i64>(0) > 0) == wanted
                })
                .await;
                engine.stop().await;
            }
            Err(error) => {
                assert!(!works, "{host} {parameters}: {error}");
                assert!(error.to_string().contains("certificate"), "{error}");
            }
        }
    }
}
