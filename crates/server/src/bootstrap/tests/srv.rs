//! Tests of finding founders with SRV records.

use super::*;
use crate::bootstrap::initial::Initial;

/// A domain with three hosts, 10.0.0.1 to 10.0.0.3, and with the SRV records of two services.
struct Domain {
    with_tls: &'static [(&'static str, u16)],
    without: &'static [(&'static str, u16)],
}

impl Names for Domain {
    fn addresses<'a>(&'a self, host: &'a str) -> Lookup<'a, Vec<IpAddr>> {
        let number =
            ["one.a.com", "two.a.com", "three.a.com"].iter().position(|name| *name == host);
        let found = number.map(|number| vec![IpAddr::from([10, 0, 0, number as u8 + 1])]);
        Box::pin(std::future::ready(found.ok_or_else(no_such_host)))
    }

    fn services<'a>(&'a self, name: &'a str) -> Lookup<'a, Vec<Service>> {
        let records = match name {
            "_etcd-server-ssl._tcp.a.com" => self.with_tls,
            "_etcd-server._tcp.a.com" | "_etcd-server-blue._tcp.a.com" => self.without,
            _ => &[],
        };
        let found: Vec<Service> = records
            .iter()
            .map(|(target, port)| Service {
                priority: 0,
                weight: 0,
                target: (*target).to_owned(),
                port: *port,
            })
            .collect();
        let found = if found.is_empty() { Err(no_such_host()) } else { Ok(found) };
        Box::pin(std::future::ready(found))
    }
}

const THREE: &[(&str, u16)] = &[("one.a.com", 2380), ("two.a.com", 2380), ("three.a.com", 2380)];

fn find(domain: &Domain, srv_name: &str, advertised: &str) -> Result<String, String> {
    let advertised = quorate_config::InitialMembers::parse(&format!("m={advertised}")).unwrap();
    let config = Config {
        name: "m".to_owned(),
        initial_cluster: String::new(),
        discovery_srv: "a.com".to_owned(),
        discovery_srv_name: srv_name.to_owned(),
        initial_advertise_peer_urls: advertised.urls_of("m").unwrap().to_vec(),
        ..Config::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = runtime.block_on(Initial::find(&config, domain));
    found.map(|initial| initial.members.to_string()).map_err(|error| error.to_string())
}

#[test]
fn srv_records_define_the_founding_members() {
    let domain = Domain { with_tls: &[], without: THREE };
    let expected = "0=http://one.a.com:2380,1=http://three.a.com:2380,m=http://two.a.com:2380";
    for advertised in ["http://two.a.com:2380", "http://10.0.0.2:2380"] {
        assert_eq!(find(&domain, "", advertised), Ok(expected.to_owned()));
        assert_eq!(find(&domain, "blue", advertised), Ok(expected.to_owned()));
    }
    let unknown = find(&domain, "green", "http://10.0.0.2:2380").unwrap_err();
    assert!(unknown.contains("_etcd-server-green._tcp.a.com"), "{unknown}");
    let both = Domain { with_tls: &THREE[..1], without: &THREE[1..] };
    assert_eq!(
        find(&both, "", "http://10.0.0.2:2380").unwrap(),
        "0=http://three.a.com:2380,0=https://one.a.com:2380,m=http://two.a.com:2380"
    );
    // A host that cannot be resolved is skipped.
    let gone = Domain { with_tls: &[], without: &[("gone.a.com", 2380), ("one.a.com", 2380)] };
    assert_eq!(find(&gone, "", "http://10.0.0.1:2380").unwrap(), "m=http://one.a.com:2380");
}

#[test]
fn srv_records_that_do_not_describe_the_cluster_are_refused_with_etcd_errors() {
    let setup = "error setting up initial cluster:";
    let empty = Domain { with_tls: &[], without: &[] };
    assert_eq!(
        find(&empty, "", "http://10.0.0.1:2380").unwrap_err(),
        format!(
            "{setup} error querying DNS SRV records for _etcd-server-ssl lookup \
             _etcd-server-ssl._tcp.a.com: no such host\nerror querying DNS SRV records for \
             _etcd-server lookup _etcd-server._tcp.a.com: no such host"
        )
    );
    let domain = Domain { with_tls: &[], without: THREE };
    let stranger = format!("{setup} cannot find local etcd member \"m\" in SRV records");
    for advertised in ["http://10.0.0.9:2380", "http://10.0.0.1:2381"] {
        assert_eq!(find(&domain, "", advertised).unwrap_err(), stranger);
    }
    let tls = Domain { with_tls: &THREE[..1], without: &[] };
    let refused = find(&tls, "", "http://10.0.0.1:2380").unwrap_err();
    let mismatch = "bootstrap at https://one.a.com:2380 from DNS for etcd-server-ssl has scheme \
                    mismatch with expected peer http://10.0.0.1:2380";
    assert!(refused.contains(mismatch), "{refused}");
    assert!(
        find(&domain, "", "http://unknown:1").unwrap_err().contains("lookup unknown: no such host")
    );
}
