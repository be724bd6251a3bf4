//! Chooses a member for each connection, and forwards the connection's bytes.
//!
//! Members are chosen by their SRV records (RFC 2782). Among the reachable members with the lowest priority value,
//! members with a weight are chosen at random in proportion to their weights, and members without a weight are chosen
//! in turn.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quorate_dns::Service;
use quorate_gotext::quote::go_dial_reason;
use quorate_seeded_random::SplitMix64;
use quorate_telemetry::log;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::dial::{address, connect};

/// Pause after a failure to accept a connection. The most likely cause is that the process has run out of file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// If only some members have weights, one in this many connections, on average, goes to a member without a weight.
const WITHOUT_WEIGHT_ONE_IN: u64 = 100;

#[derive(Debug)]
struct Remote {
    service: Service,
    address: String,
    is_passed_over: AtomicBool,
}

impl Remote {
    fn is_there(&self) -> bool {
        !self.is_passed_over.load(Ordering::Relaxed)
    }
}

/// Forwards connections to members.
#[derive(Debug)]
pub(crate) struct Proxy {
    remotes: Vec<Remote>,
    retry_delay: Duration,
    /// Number of members chosen in turn so far.
    turn: AtomicUsize,
    draw: Mutex<SplitMix64>,
}

impl Proxy {
    pub(crate) fn to(services: Vec<Service>, retry_delay: Duration) -> Arc<Self> {
        let remote = |service| Remote {
            address: address(&service),
            service,
            is_passed_over: AtomicBool::new(false),
        };
        // Any seed is sufficient, because connections only need to be distributed.
        let draw = Mutex::new(SplitMix64::new(std::process::id().into()));
        let remotes = services.into_iter().map(remote).collect();
        Arc::new(Self { remotes, retry_delay, turn: AtomicUsize::new(0), draw })
    }

    /// Accepts connections until the process ends, and assigns them to the workers in turn.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, workers: &[Handle]) {
        let addresses: Vec<String> =
            self.remotes.iter().map(|remote| remote.address.clone()).collect();
        log::info!("ready to proxy client requests", "endpoints" = addresses);
        tokio::spawn(Arc::clone(&self).reactivate_skipped_endpoints());
        for worker in workers.iter().cycle() {
            let client = loop {
                match listener.accept().await.and_then(|(client, _)| client.into_std()) {
                    Ok(client) => break client,
                    Err(error) => {
                        log::warn!("failed to accept a connection", "error" = log::Shown(&error));
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            };
            let proxy = Arc::clone(&self);
            worker.spawn(async move {
                // An error affects only this connection, which is then dropped.
                if let Ok(client) = TcpStream::from_std(client) {
                    drop(proxy.pass_on(client).await);
                }
            });
        }
    }

    async fn pass_on(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        while let Some(remote) = self.choose() {
            match connect(&remote.address).await {
                Ok(mut member) => {
                    return copy_bidirectional(&mut client, &mut member).await.map(drop);
                }
                Err(error) => {
                    remote.is_passed_over.store(true, Ordering::Relaxed);
                    log::warn!(
                        "deactivated endpoint",
                        "address" = remote.address,
                        "interval" = self.retry_delay,
                        "error" = go_dial_reason(format_args!("tcp {}", remote.address), &error)
                    );
                }
            }
        }
        Ok(())
    }

    /// Returns the member for the next connection, or `None` if all members are skipped.
    fn choose(&self) -> Option<&Remote> {
        let there = || self.remotes.iter().filter(|remote| remote.is_there());
        let priority = there().map(|remote| remote.service.priority).min()?;
        let best = there().filter(|remote| remote.service.priority == priority);
        let (weighted, others): (Vec<&Remote>, Vec<&Remote>) =
            best.partition(|remote| remote.service.weight > 0);
        let sum = weighted.iter().map(|remote| u64::from(remote.service.weight)).sum();
        let is_for_others =
            || !others.is_empty() && self.draw.lock().below(WITHOUT_WEIGHT_ONE_IN) == 0;
        if weighted.is_empty() || is_for_others() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            return others.get(turn % others.len().max(1)).copied();
        }
        let mut chosen = self.draw.lock().below(sum);
        weighted.into_iter().find(|remote| {
            let weight = u64::from(remote.service.weight);
            let is_it = chosen < weight;
            chosen = chosen.saturating_sub(weight);
            is_it
        })
    }

    async fn reactivate_skipped_endpoints(self: Arc<Self>) {
        loop {
            sleep(self.retry_delay).await;
            for remote in self.remotes.iter().filter(|remote| !remote.is_there()) {
                match connect(&remote.address).await {
                    Ok(_) => {
                        remote.is_passed_over.store(false, Ordering::Relaxed);
                        log::info!("activated", "address" = remote.address);
                    }
                    Err(error) => log::warn!(
                        "failed to activate endpoint (stay inactive for another interval)",
                        "address" = remote.address,
                        "interval" = self.retry_delay,
                        "error" = go_dial_reason(format_args!("tcp {}", remote.address), &error)
                    ),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn service(priority: u16, weight: u16, port: u16) -> Service {
        Service { priority, weight, target: "127.0.0.1".to_owned(), port }
    }

    /// Returns how often each port was chosen.
    fn chosen(proxy: &Proxy, times: usize) -> BTreeMap<u16, usize> {
        let mut count = BTreeMap::new();
        for _ in 0..times {
            let remote = proxy.choose().expect("a member is reachable");
            *count.entry(remote.service.port).or_default() += 1;
        }
        count
    }

    #[test]
    fn members_without_weights_are_chosen_in_turn() {
        let proxy = Proxy::to(vec![service(0, 0, 1), service(0, 0, 2), service(0, 0, 3)], LONG);
        assert_eq!(chosen(&proxy, 30), [(1, 10), (2, 10), (3, 10)].into());
        proxy.remotes[1].is_passed_over.store(true, Ordering::Relaxed);
        assert_eq!(chosen(&proxy, 30), [(1, 15), (3, 15)].into());
    }

    #[test]
    fn endpoints_are_chosen_by_priority_and_then_by_weight() {
        let services =
            vec![service(2, 9, 1), service(1, 30, 2), service(1, 10, 3), service(1, 0, 4)];
        let proxy = Proxy::to(services, LONG);
        let count = chosen(&proxy, 10_000);
        assert!(!count.contains_key(&1), "{count:?}");
        assert!((7_000..8_000).contains(&count[&2]), "{count:?}");
        assert!((2_000..3_000).contains(&count[&3]), "{count:?}");
        assert!((20..300).contains(&count[&4]), "{count:?}");
        for remote in &proxy.remotes[1..] {
            remote.is_passed_over.store(true, Ordering::Relaxed);
        }
        assert_eq!(chosen(&proxy, 10), [(1, 10)].into());
        proxy.remotes[0].is_passed_over.store(true, Ordering::Relaxed);
        assert!(proxy.choose().is_none());
    }

    /// Starts a server that sends its name and then echoes what it receives, until the client closes its direction.
    async fn echo(name: u8) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut said = Vec::new();
                client.read_to_end(&mut said).await.unwrap();
                client.write_all(&[&[name], &said[..]].concat()).await.unwrap();
            }
        });
        port
    }

    #[tokio::test]
    async fn an_unreachable_endpoint_is_skipped_and_retried_later() {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gone_port = gone.local_addr().unwrap().port();
        drop(gone);
        let there = echo(b'a').await;
        let retry = Duration::from_millis(20);
        let proxy = Proxy::to(vec![service(0, 0, gone_port), service(0, 0, there)], retry);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(&proxy);
        tokio::spawn(async move { serving.serve(listener, &[Handle::current()]).await });
        let ask = async || {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        for _ in 0..4 {
            assert_eq!(ask().await, b"ahello");
        }
        assert!(!proxy.remotes[0].is_there());
        let back = TcpListener::bind(("127.0.0.1", gone_port)).await.unwrap();
        while !proxy.remotes[0].is_there() {
            sleep(retry).await;
        }
        drop(back);
    }
}
