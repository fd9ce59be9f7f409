//! The members of etcd: requests go to one of them, and to the next one if it does not answer.
//!
//! Certificates matter when a connection is made. After a failed request their files are read
//! again, and changed ones replace the clients.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, KvClient, MaintenanceClient, TlsOptions, WatchClient};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::OpenError;
use crate::address::{Address, Identity};

/// Timeout of one member, before the next one is tried.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Timeout of a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// etcd closes connections that send keepalives more often (`--grpc-keepalive-min-time`).
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(3));
/// A page of large objects is far above the default limit of 4 MiB.
const MESSAGE: usize = 1 << 30;

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The quota of etcd's database is used up.
    #[error("etcd has no space left")]
    Full(#[source] etcd_client::Error),
    /// The requested revision is compacted.
    #[error("the revision is compacted")]
    Compacted,
    /// etcd refuses the request, whichever member gets it.
    #[error("etcd refuses the request")]
    Refused(#[source] etcd_client::Error),
    /// No member answered in time; the request may have been done.
    #[error("no member of etcd answers: {last}")]
    Silent {
        /// Error of the last attempt.
        last: String,
    },
    /// A value is not one of the ledger's.
    #[error("etcd holds something else under {key}")]
    Foreign {
        /// Key of the value.
        key: String,
    },
}

impl Failure {
    /// True if a member has answered.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self, Self::Silent { .. })
    }
}

/// Clients of all members.
pub(crate) struct Members {
    address: Address,
    identity: Identity,
    connected: RwLock<Connected>,
    current: watch::Sender<usize>,
}

struct Connected {
    clients: Vec<Member>,
    /// Contents of the files when they were last read.
    files: Pem,
}

/// Contents of the certificate files.
#[derive(Clone, PartialEq, Eq)]
struct Pem {
    authority: Option<Vec<u8>>,
    /// Client certificate and its key.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

/// Clients of one member's services.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) kv: KvClient,
    pub(crate) watch: WatchClient,
    pub(crate) maintenance: MaintenanceClient,
}

impl Members {
    pub(crate) async fn connect(address: &Address, identity: &Identity) -> Result<Self, OpenError> {
        let files = Pem::read(identity)?;
        Ok(Self {
            connected: RwLock::new(Connected {
                clients: clients(address, &files).await?,
                files,
            }),
            address: address.clone(),
            identity: identity.clone(),
            current: watch::Sender::new(0),
        })
    }

    pub(crate) fn all(&self) -> Vec<Member> {
        let connected = self.connected.read().unwrap_or_else(PoisonError::into_inner);
        connected.clients.clone()
    }

    /// The current member and its number.
    pub(crate) fn current(&self) -> (usize, Option<Member>) {
        let at = *self.current.borrow();
        let connected = self.connected.read().unwrap_or_else(PoisonError::into_inner);
        (at, connected.clients.get(at).cloned())
    }

    /// Switches to the next member, unless another task already has, and to changed certificates.
    pub(crate) async fn leave(&self, at: usize) {
        self.renew().await;
        let count = self.address.members.len().max(1);
        self.current.send_if_modified(|current| {
            let same = *current == at && count > 1;
            if same {
                *current = (at + 1) % count;
            }
            same
        });
    }

    /// Replaces the clients if the files have changed.
    async fn renew(&self) {
        let files = match Pem::read(&self.identity) {
            Ok(files) => files,
            Err(error) => return warn!(error = &error as &dyn std::error::Error, "the certificates for etcd"),
        };
        {
            let mut connected = self.connected.write().unwrap_or_else(PoisonError::into_inner);
            if connected.files == files {
                return;
            }
            // Unusable files are not tried again until they change.
            connected.files = files.clone();
        }
        match clients(&self.address, &files).await {
            Ok(clients) => {
                info!("the certificates for etcd have changed");
                let mut connected = self.connected.write().unwrap_or_else(PoisonError::into_inner);
                // Another request may have read newer ones meanwhile.
                if connected.files == files {
                    connected.clients = clients;
                }
            }
            Err(error) => warn!(
                error = &error as &dyn std::error::Error,
                "the changed certificates for etcd are not used"
            ),
        }
    }

    /// Waits until a member other than this one is current.
    pub(crate) async fn left(&self, at: usize) {
        let mut current = self.current.subscribe();
        // The sender lives in `self`.
        drop(current.wait_for(|current| *current != at).await);
    }

    /// Tries members until one answers, or the time is up. Also returns the number of attempts.
    pub(crate) async fn call<T, F>(&self, limit: Duration, ask: impl Fn(KvClient) -> F) -> (u32, Result<T, Failure>)
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let attempts = AtomicU32::new(0);
        let deadline = Instant::now() + limit;
        loop {
            let (at, member) = self.current();
            let Some(member) = member else {
                return (0, Err(Failure::Silent { last: String::new() }));
            };
            let number = attempts.fetch_add(1, Ordering::Relaxed) + 1;
            let until = deadline.min(Instant::now() + ATTEMPT);
            let last = match tokio::time::timeout_at(until, ask(member.kv)).await {
                Ok(Ok(answer)) => return (number, Ok(answer)),
                Ok(Err(error)) => match classify(error) {
                    Ok(failure) => return (number, Err(failure)),
                    Err(passing) => passing.to_string(),
                },
                Err(_elapsed) => format!("no answer in {ATTEMPT:?}"),
            };
            self.leave(at).await;
            if Instant::now() + PAUSE >= deadline {
                return (number, Err(Failure::Silent { last }));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Classifies an error: `Ok` for a failure that every member would answer with, `Err` if another
/// member may succeed.
fn classify(error: etcd_client::Error) -> Result<Failure, etcd_client::Error> {
    let etcd_client::Error::GRpcStatus(status) = &error else {
        return Err(error);
    };
    let (code, message) = (i32::from(status.code()), status.message());
    // gRPC codes: 3 invalid argument, 7 permission denied, 8 resource exhausted, 9 failed
    // precondition, 11 out of range, 16 unauthenticated. The messages are in
    // `etcdserver/api/v3rpc/rpctypes/error.go`.
    match code {
        8 if message.contains("space exceeded") => Ok(Failure::Full(error)),
        11 if message.contains("compacted") => Ok(Failure::Compacted),
        3 | 7 | 9 | 16 => Ok(Failure::Refused(error)),
        _ => Err(error),
    }
}

impl Pem {
    fn read(identity: &Identity) -> Result<Self, OpenError> {
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path).map_err(|source| OpenError::Read {
                path: path.clone(),
                source,
            })
        };
        let own = identity.certificate.as_ref();
        Ok(Self {
            authority: identity.authority.as_ref().map(read).transpose()?,
            own: own
                .map(|(certificate, key)| Ok::<_, OpenError>((read(certificate)?, read(key)?)))
                .transpose()?,
        })
    }
}

/// Creates a client for each member, which connects on its first use.
async fn clients(address: &Address, files: &Pem) -> Result<Vec<Member>, OpenError> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT)
        .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
        .with_require_leader(true);
    let scheme = if let Some(authority) = &files.authority {
        let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(authority));
        options = options.with_tls(match &files.own {
            Some((certificate, key)) => tls.identity(etcd_client::Identity::from_pem(certificate, key)),
            None => tls,
        });
        "https"
    } else {
        "http"
    };
    let mut clients = Vec::new();
    for member in &address.members {
        let client = Client::connect([format!("{scheme}://{member}")], Some(options.clone())).await;
        let client = client.map_err(|source| OpenError::Ask {
            members: member.clone(),
            source: Failure::Refused(source),
        })?;
        clients.push(Member {
            kv: client.kv_client().max_decoding_message_size(MESSAGE),
            watch: client.watch_client().max_decoding_message_size(MESSAGE),
            maintenance: client.maintenance_client(),
        });
    }
    Ok(clients)
}
