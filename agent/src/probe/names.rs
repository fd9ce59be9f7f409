//! Connections to hosts that probes and hooks name. The system's resolver blocks a thread until its
//! name servers time out, even if the lookup was cancelled. Logs, starts and deletions need threads
//! of the same pool, so the number of concurrent lookups is limited.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::confined::aside;

/// Concurrent lookups of a pod: a pod with names that are never resolved delays only its own
/// lookups.
const OF_POD: usize = 2;
/// Concurrent lookups of all pods.
const OF_NODE: usize = 64;

/// Threads for name lookups.
static LOOKUPS: Mutex<Option<Lookups>> = Mutex::new(None);

#[derive(Clone)]
struct Lookups {
    node: Arc<Semaphore>,
    /// By UID; pods without a lookup have no entry.
    pods: Arc<Mutex<BTreeMap<String, Weak<Semaphore>>>>,
}

impl Lookups {
    fn new(node: usize) -> Self {
        Self {
            node: Arc::new(Semaphore::new(node)),
            pods: Arc::default(),
        }
    }

    fn of_node() -> Self {
        let mut all = LOOKUPS.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_with(|| Self::new(OF_NODE)).clone()
    }

    fn of_pod(&self, uid: &str) -> Arc<Semaphore> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|_, own| own.strong_count() > 0);
        if let Some(own) = pods.get(uid).and_then(Weak::upgrade) {
            return own;
        }
        let own = Arc::new(Semaphore::new(OF_POD));
        pods.insert(uid.to_owned(), Arc::downgrade(&own));
        own
    }
}

/// Thread for one lookup.
pub(super) struct Thread {
    _of_pod: OwnedSemaphorePermit,
    _of_node: OwnedSemaphorePermit,
}

/// Resolution of a host.
pub(super) enum Way {
    /// The host is an IP address.
    Known(SocketAddr),
    /// The host is looked up. A lookup in progress holds its thread until it ends.
    Lookup(Thread),
    /// The pod's own lookups take too long.
    Late,
}

/// Resolves the host of an address with a port; `None` if other pods hold all threads for that
/// long.
pub(super) async fn way(pod: &str, address: &str, patience: Duration) -> Option<Way> {
    way_by(&Lookups::of_node(), pod, address, patience).await
}

async fn way_by(lookups: &Lookups, pod: &str, address: &str, patience: Duration) -> Option<Way> {
    if let Ok(address) = address.parse() {
        return Some(Way::Known(address));
    }
    let deadline = Instant::now() + patience;
    let Ok(of_pod) = timeout(patience, lookups.of_pod(pod).acquire_owned()).await else {
        return Some(Way::Late);
    };
    let of_node = timeout_at(deadline, Arc::clone(&lookups.node).acquire_owned()).await;
    // The semaphores are never closed.
    Some(Way::Lookup(Thread {
        _of_pod: of_pod.ok()?,
        _of_node: of_node.ok()?.ok()?,
    }))
}

/// Returns Go's text for a failed lookup.
pub(super) fn unknown(host: &str, error: &io::Error) -> String {
    let why = if error.kind() == io::ErrorKind::TimedOut {
        "i/o timeout"
    } else {
        "no such host"
    };
    format!("dial tcp: lookup {host}: {why}")
}

impl Way {
    pub(super) async fn connect(self, address: &str) -> io::Result<TcpStream> {
        let addresses = self.addresses(address).await?;
        TcpStream::connect(addresses.as_slice()).await
    }

    pub(super) async fn addresses(self, address: &str) -> io::Result<Vec<SocketAddr>> {
        let address = address.to_owned();
        self.addresses_by(move || address.to_socket_addrs().map(Iterator::collect))
            .await
    }

    async fn addresses_by(
        self,
        lookup: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Known(address) => Ok(vec![address]),
            Self::Late => Err(io::Error::new(io::ErrorKind::TimedOut, "i/o timeout")),
            Self::Lookup(thread) => {
                let looking = aside(move || {
                    let found = lookup();
                    drop(thread);
                    found
                });
                looking.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_mins(1);

    /// Starts a lookup that times out and continues until its server is dropped.
    async fn silent(lookups: &Lookups, pod: &str) -> mpsc::Sender<()> {
        let (server, answer) = mpsc::channel::<()>();
        let waits = move || {
            answer.recv().ok();
            Ok(Vec::new())
        };
        let way = way_by(lookups, pod, "silent.example:80", MOMENT).await.unwrap();
        assert!(timeout(MOMENT, way.addresses_by(waits)).await.is_err());
        server
    }

    #[tokio::test]
    async fn attack_names_that_nobody_answers_for_keep_few_threads() {
        let lookups = Lookups::new(OF_POD + 1);
        let mut servers = Vec::new();
        for _ in 0..OF_POD {
            servers.push(silent(&lookups, "hostile").await);
        }
        let late = way_by(&lookups, "hostile", "silent.example:80", MOMENT).await.unwrap();
        let failed = late.addresses("silent.example:80").await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut, "its own fault");
        for address in ["10.0.0.7:80", "[fd00::7]:80"] {
            let way = way_by(&lookups, "hostile", address, MOMENT).await.unwrap();
            let found = way.addresses(address).await.unwrap();
            let expected = [address.parse::<SocketAddr>().unwrap()];
            assert_eq!(found, expected, "an address needs no lookup");
        }
        let way = way_by(&lookups, "other", "localhost:80", LONG).await.unwrap();
        let found = way.addresses("localhost:80").await.unwrap();
        assert!(found.iter().any(|found| found.ip().is_loopback()), "{found:?}");
        servers.push(silent(&lookups, "second").await);
        let none = way_by(&lookups, "other", "localhost:80", MOMENT).await;
        assert!(none.is_none(), "others' fault");
        // Once it ends, another lookup can start.
        servers.pop();
        let way = way_by(&lookups, "other", "localhost:80", LONG).await.unwrap();
        assert!(matches!(way, Way::Lookup(_)));
        drop((way, servers));
        assert_eq!(lookups.of_pod("new").available_permits(), OF_POD);
    }
}
