//! Leader election among control planes that share etcd: only the leader runs the controllers and
//! the scheduler.
//!
//! The leader holds the Leases by which upstream's kube-controller-manager and kube-scheduler elect
//! theirs, and renews both together. As in `client-go/tools/leaderelection`, a candidate takes the
//! Lease of another one when it has not changed for a while by the candidate's own clock; the times
//! in it are for people. A late former leader is kept from writing not by a clock but by the fence
//! ([`Fence`]): its controllers' writes are stored only while the Lease names it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, GetParams, PostParams};
use server::Server;
use server::authn::identity::{Fence, User, assume};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{Error, clock};

/// Interval between renewals, and between checks of a Lease that another candidate holds.
const RETRY: Duration = Duration::from_millis(300);
/// A Lease that has not moved for so long is taken.
const LEASE: Duration = Duration::from_millis(1500);
/// A leader that could not renew for so long leads no longer.
const RENEWAL: Duration = Duration::from_secs(1);
/// `leaseDurationSeconds` of the Lease.
const SECONDS: i32 = 2;

const NAMESPACE: &str = "kube-system";
/// The deciding Lease, and the one that follows it: the scheduler runs with the controllers.
const LEASES: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// Outcome of a write to a Lease.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    Done,
    /// Another candidate has written meanwhile.
    Overtaken,
    /// Another candidate holds it.
    Held,
}

/// Control plane as a candidate in the election.
struct Candidate {
    leases: [(&'static str, Api<Lease>); 2],
    identity: String,
    /// The version of the Lease that was last seen, and since when it is that.
    seen: Option<(String, Instant)>,
}

/// Runs the controllers whenever this control plane leads, until `stop`.
pub(crate) async fn lead(
    server: Server,
    options: controllers::Options,
    stop: CancellationToken,
) -> Result<Infallible, Error> {
    let identity = format!("{}_{}", options.machine, uuid::Uuid::new_v4());
    let mut candidate = Candidate::new(&server, identity);
    loop {
        tokio::select! {
            () = candidate.win() => {}
            () = stop.cancelled() => return Err(Error::Ended),
        }
        let clients = clients(&server, candidate.fence());
        let running = controllers::run(clients, options.clone(), stop.child_token());
        // When the Lease is lost, the controllers are dropped at once: they can no longer write.
        let ended = tokio::select! {
            ended = running => Some(ended),
            () = candidate.keep() => None,
        };
        match ended {
            Some(Err(_)) if stop.is_cancelled() => {
                candidate.resign().await;
                return Err(Error::Ended);
            }
            Some(ended) => return ended.map_err(Error::Controllers),
            None => {}
        }
    }
}

/// In-process clients: each user's requests pass through the same router as external ones, and
/// writes are fenced.
pub(crate) fn clients(server: &Server, fence: Option<Fence>) -> controllers::Clients {
    let router = server.router();
    Arc::new(move |user, user_agent| {
        let service = assume(User::component(user), user_agent, router.clone()).fenced(fence.clone());
        kube::Client::new(service, "default")
    })
}

impl Candidate {
    fn new(server: &Server, identity: String) -> Self {
        let unfenced = clients(server, None);
        let leases = LEASES.map(|name| {
            let client = unfenced(&format!("system:{name}"), &format!("{name}/leader-election"));
            (name, Api::namespaced(client, NAMESPACE))
        });
        Self {
            leases,
            identity,
            seen: None,
        }
    }

    fn fence(&self) -> Option<Fence> {
        let [decides, _] = LEASES;
        Fence::new(NAMESPACE, decides, &self.identity)
    }

    /// Waits until it leads.
    async fn win(&mut self) {
        loop {
            match self.try_win().await {
                Ok(true) => {
                    info!(identity = self.identity, "leads");
                    return;
                }
                Ok(false) => {}
                Err(error) => debug!(%error, "take the lease"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_win(&mut self) -> kube::Result<bool> {
        let [first, second] = &self.leases;
        if let Some(lease) = known(first).await?
            && self.holder(&lease).is_some()
        {
            let version = lease.metadata.resource_version.unwrap_or_default();
            let now = Instant::now();
            let since = match &self.seen {
                Some((before, since)) if *before == version => *since,
                _ => now,
            };
            self.seen = Some((version, since));
            if now.duration_since(since) < LEASE {
                return Ok(false);
            }
        }
        if self.write(first, true).await? != Written::Done {
            return Ok(false);
        }
        if let Err(error) = self.write(second, true).await {
            debug!(%error, "take the scheduler's lease");
        }
        Ok(true)
    }

    /// Renews until that is no longer possible.
    async fn keep(&mut self) {
        let mut renewed = Instant::now();
        let [first, second] = &self.leases;
        loop {
            tokio::time::sleep(RETRY).await;
            let asked = Instant::now();
            // Together: one transaction stores both.
            let both = async { tokio::join!(self.write(first, false), self.write(second, true)) };
            match tokio::time::timeout_at(renewed + RENEWAL, both).await {
                Ok((Ok(Written::Done), _)) => renewed = asked,
                Ok((Ok(Written::Overtaken), _)) => {}
                Ok((Ok(Written::Held), _)) => {
                    warn!(identity = self.identity, "another control plane leads");
                    return;
                }
                Ok((Err(error), _)) => debug!(%error, "renew the lease"),
                Err(_elapsed) => {
                    warn!(identity = self.identity, "the lease could not be renewed in time");
                    return;
                }
            }
        }
    }

    /// Releases the Leases, so that another candidate can lead at once.
    async fn resign(&self) {
        for lease in &self.leases {
            let (name, api) = lease;
            let Ok(Some(mut held)) = known(lease).await else {
                continue;
            };
            let spec = held.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.identity) {
                // Upstream's leaves the name empty and the time at a second, too (`leaderelection.go`, `release`).
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                spec.renew_time = Some(MicroTime(clock::now()));
                if let Err(error) = api.replace(name, &PostParams::default(), &held).await {
                    warn!(%error, name, "give the lease back");
                }
            }
        }
    }

    /// Holder of the Lease if it is another candidate.
    fn holder<'a>(&self, lease: &'a Lease) -> Option<&'a str> {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder.filter(|holder| !holder.is_empty() && *holder != self.identity)
    }

    /// Renews a Lease or creates it; takes one that another candidate holds only if `takes` is set.
    async fn write(&self, lease: &(&'static str, Api<Lease>), takes: bool) -> kube::Result<Written> {
        let (name, api) = lease;
        let found = known(lease).await?;
        if !takes && found.as_ref().is_none_or(|found| self.holder(found).is_some()) {
            return Ok(Written::Held);
        }
        let now = MicroTime(clock::now());
        let exists = found.is_some();
        let mut lease = found.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some((*name).to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec::default()),
        });
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            spec.holder_identity = Some(self.identity.clone());
            spec.acquire_time = Some(now.clone());
            // As upstream counts, a new Lease has no transitions.
            spec.lease_transitions = Some(if exists {
                spec.lease_transitions.unwrap_or(0) + 1
            } else {
                0
            });
        }
        spec.lease_duration_seconds = Some(SECONDS);
        spec.renew_time = Some(now);
        let written = if exists {
            api.replace(name, &PostParams::default(), &lease).await
        } else {
            api.create(&PostParams::default(), &lease).await
        };
        match written {
            Ok(_) => Ok(Written::Done),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Written::Overtaken),
            Err(error) => Err(error),
        }
    }
}

/// The Lease as this server has it: that is enough, since only a write upon the newest is done.
async fn known((name, api): &(&'static str, Api<Lease>)) -> kube::Result<Option<Lease>> {
    let any = GetParams {
        resource_version: Some("0".to_owned()),
    };
    match api.get_with(name, &any).await {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}
