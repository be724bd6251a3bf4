//! Discovers members through DNS SRV records, for the TCP gateway and the gRPC proxy.

use std::io;

use quorate_cli::gotext;
use quorate_dns::{Resolver, Service};
use quorate_telemetry::log;
use quorate_tls::{
    Allowed, Connector, ConnectorSettings, Protocols, ServerCheck, SetupError, Trust,
};
use thiserror::Error;

use crate::dial::{address, connect};

/// The discovery settings.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// The domain to look up. If it is empty, no members are found.
    pub domain: String,
    /// The suffix of the SRV service name, as in etcd.
    pub service: String,
    /// Whether members without TLS are accepted. If so, the certificates of members with TLS are not verified.
    pub is_insecure_accepted: bool,
    /// The path of a file with trusted authorities. If it is empty, the system's authorities are trusted.
    pub authorities: String,
}

/// A discovered member.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// The address of the member.
    pub service: Service,
    /// Whether the member uses TLS.
    pub is_secured: bool,
}

impl Discovered {
    /// Returns the member's address with a scheme.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.is_secured { "https" } else { "http" };
        format!("{scheme}://{}", address(&self.service))
    }
}

/// The reason why no members were found. The texts are etcd's.
#[derive(Debug, Error)]
pub enum DiscoveryError {
    /// The lookups of members with and without TLS both failed. Contains the error of each.
    #[error("dns lookup errors: {0} and {1}")]
    Lookup(String, String),
    /// The file with trusted authorities cannot be used.
    #[error(transparent)]
    Authorities(#[from] SetupError),
}

impl Discovery {
    /// Returns the name for which the certificates of discovered members must be valid, or `None` if it is the address
    /// of the member.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        (!self.is_insecure_accepted).then_some(&self.domain)
    }

    /// Looks up the records of members with and without TLS. Unless members without TLS are accepted, returns only
    /// members whose certificate is valid for the domain.
    ///
    /// # Errors
    ///
    /// See [`DiscoveryError`].
    pub async fn find(&self) -> Result<Vec<Discovered>, DiscoveryError> {
        if self.domain.is_empty() {
            return Ok(Vec::new());
        }
        self.ask(&Resolver::of_system()).await
    }

    async fn ask(&self, resolver: &Resolver) -> Result<Vec<Discovered>, DiscoveryError> {
        let Self { domain, service, .. } = self;
        let dash = if service.is_empty() { "" } else { "-" };
        let lookup = async |kind: &str, is_secured| {
            let name = format!("_{kind}{dash}{service}._tcp.{domain}");
            let records = resolver.services(&name).await;
            let records = records
                .map_err(|error| format!("lookup {name}: {}", gotext::reason(&error)))?
                .into_iter();
            Ok::<Vec<_>, String>(
                records.map(|service| Discovered { service, is_secured }).collect(),
            )
        };
        let (secured, plain) =
            tokio::join!(lookup("etcd-client-ssl", true), lookup("etcd-client", false));
        let (secured, plain) = match (secured, plain) {
            (Err(secured), Err(plain)) => return Err(DiscoveryError::Lookup(secured, plain)),
            (secured, plain) => (secured.unwrap_or_default(), plain.unwrap_or_default()),
        };
        let shown = shown(secured.iter().chain(&plain));
        log::info!("discovered cluster from SRV", "srv-server" = domain, "endpoints" = shown);
        if self.is_insecure_accepted {
            return Ok([secured, plain].concat());
        }
        self.validated(secured).await
    }

    async fn validated(&self, secured: Vec<Discovered>) -> Result<Vec<Discovered>, DiscoveryError> {
        let domain = &self.domain;
        let connector = Connector::new(ConnectorSettings {
            pair: None,
            protocols: Protocols::default(),
            check: ServerCheck::Verify(match self.authorities.as_str() {
                "" => Trust::System,
                path => Trust::File(path.into()),
            }),
            allowed: Allowed::All,
            http2: false,
            server_name: self.server_name().map(str::to_owned),
        })?;
        let mut valid = Vec::new();
        for found in secured {
            match shake_hands(&connector, &found.service).await {
                Ok(()) => valid.push(found),
                Err(error) => log::warn!(
                    "failed to validate discovered endpoints",
                    "srv-server" = domain,
                    "endpoints" = vec![address(&found.service)],
                    "error" = error.to_string()
                ),
            }
        }
        let shown = shown(&valid);
        log::info!(
            "using validated discovered SRV endpoints",
            "srv-server" = domain,
            "endpoints" = shown
        );
        Ok(valid)
    }
}

fn shown<'a>(found: impl IntoIterator<Item = &'a Discovered>) -> Vec<String> {
    found.into_iter().map(|found| address(&found.service)).collect()
}

async fn shake_hands(connector: &Connector, service: &Service) -> io::Result<()> {
    let stream = connect(&address(service)).await?;
    let shaken = connector.connect(Some(&service.target), stream).await;
    shaken.map(drop).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::thread;

    use quorate_tls::{Acceptor, AcceptorSettings, Pair};
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use simple_dns::rdata::{RData, SRV};
    use simple_dns::{CLASS, Name, Packet, RCODE, ResourceRecord};
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a DNS server with these SRV records, each for a port on this host. The server runs until the test process
    /// ends.
    fn serve(records: &[(&'static str, u16)]) -> Resolver {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let records = records.to_vec();
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((count, peer)) = socket.recv_from(&mut question) {
                socket.send_to(&answer(&question[..count], &records), peer).unwrap();
            }
        });
        Resolver::at(vec![address])
    }

    fn answer(question: &[u8], records: &[(&'static str, u16)]) -> Vec<u8> {
        let mut packet = Packet::parse(question).unwrap().into_reply();
        let owner = packet.questions[0].qname.clone();
        for (_, port) in records.iter().filter(|(name, _)| *name == owner.to_string()) {
            let target = Name::new_unchecked("localhost");
            let srv = RData::SRV(SRV { priority: 0, weight: 0, port: *port, target });
            packet.answers.push(ResourceRecord::new(owner.clone(), CLASS::IN, 60, srv));
        }
        if packet.answers.is_empty() {
            *packet.rcode_mut() = RCODE::NameError;
        }
        packet.build_bytes_vec_compressed().unwrap()
    }

    fn of_domain() -> Discovery {
        Discovery {
            domain: "example.org".to_owned(),
            service: String::new(),
            is_insecure_accepted: true,
            authorities: String::new(),
        }
    }

    async fn urls(discovery: &Discovery, resolver: &Resolver) -> Vec<String> {
        let found = discovery.ask(resolver).await.unwrap();
        found.iter().map(Discovered::url).collect()
    }

    #[tokio::test]
    async fn members_with_and_without_tls_are_discovered_from_srv_records() {
        let resolver = serve(&[
            ("_etcd-client-ssl._tcp.example.org", 1),
            ("_etcd-client._tcp.example.org", 2),
            ("_etcd-client-mine._tcp.example.org", 3),
        ]);
        let plain = of_domain();
        assert_eq!(urls(&plain, &resolver).await, ["https://localhost:1", "http://localhost:2"]);
        let named = Discovery { service: "mine".to_owned(), ..of_domain() };
        assert_eq!(urls(&named, &resolver).await, ["http://localhost:3"]);
        let unknown = Discovery { service: "other".to_owned(), ..of_domain() };
        let error = unknown.ask(&resolver).await.unwrap_err().to_string();
        let wanted = "dns lookup errors: lookup _etcd-client-ssl-other._tcp.example.org: no such host and lookup \
                      _etcd-client-other._tcp.example.org: no such host";
        assert_eq!(error, wanted);
        let nowhere = Discovery { domain: String::new(), ..of_domain() };
        assert!(nowhere.find().await.unwrap().is_empty());
    }

    /// Starts a member with TLS whose certificate is valid for this domain. Returns its port.
    async fn member(authority: &CertifiedIssuer<'static, KeyPair>, domain: &str) -> u16 {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![domain.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        let pair = Pair::new(dir.path().join("cert"), dir.path().join("key"));
        std::fs::write(&pair.cert, certificate.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        let acceptor = Acceptor::new(AcceptorSettings {
            pair,
            protocols: Protocols::default(),
            clients: None,
            http2: true,
            endpoint: "client",
        })
        .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let _dir = dir;
            while let Ok((stream, _)) = listener.accept().await {
                // An error is ignored, because the client may reject the certificate.
                drop(acceptor.accept(stream, None).await);
            }
        });
        port
    }

    #[tokio::test]
    async fn only_members_with_a_certificate_for_the_domain_are_accepted() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let (good, of_other) =
            (member(&authority, "example.org").await, member(&authority, "other.org").await);
        let resolver = serve(&[
            ("_etcd-client-ssl._tcp.example.org", good),
            ("_etcd-client-ssl._tcp.example.org", of_other),
            ("_etcd-client._tcp.example.org", 1),
        ]);
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca");
        std::fs::write(&ca, authority.pem()).unwrap();
        let discovery = Discovery {
            is_insecure_accepted: false,
            authorities: ca.display().to_string(),
            ..of_domain()
        };
        assert_eq!(urls(&discovery, &resolver).await, [format!("https://localhost:{good}")]);
    }
}
