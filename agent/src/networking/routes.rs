//! Routes to the pods of other nodes, for networks that need them: follows the Nodes, and updates
//! the kernel when they, or the machine's own links and routes, change.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::network::node_routes::{Peer, Routed};
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use network::{Nodes, RouteNews};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::Error;
use crate::client::events::Kind;
use crate::client::requests::watch;
use crate::context::Context;

/// Namespace whose UID identifies the cluster.
const CLUSTER: &str = "kube-system";
/// Longest time that the start waits for the first routes.
const FIRST: Duration = Duration::from_secs(5);
/// Changes within this time are applied together.
const SETTLE: Duration = Duration::from_millis(50);
/// Time between two attempts after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Interval between checks of entries whose removal the kernel does not report.
const LOOK: Duration = Duration::from_secs(10);

/// Follower of the Nodes.
pub(crate) struct Follower {
    news: RouteNews,
    changes: BoxStream<'static, Result<Event<Node>, watcher::Error>>,
    /// Nodes of an incomplete list.
    listed: BTreeMap<String, Peer>,
    /// `None` until the Nodes are listed.
    peers: Option<BTreeMap<String, Peer>>,
    cluster: Option<u32>,
    /// Time of the next update of the kernel.
    due: Instant,
}

/// Starts to follow, and waits a while for the first routes; `None` if the network needs none.
pub(crate) async fn begin(context: &Context) -> Option<Follower> {
    let news = match context.parts.network.hear_routes() {
        Ok(news) => news?,
        Err(error) => {
            warn!(error = image::chain(&error), "pods of other nodes are not reached");
            context.routed.send_replace(Routed::Failed);
            return None;
        }
    };
    context.routed.send_replace(Routed::Pending);
    let api: Api<Node> = Api::all(context.parts.client.clone());
    let mut follower = Follower {
        news,
        changes: watch(api, watcher::Config::default()).boxed(),
        listed: BTreeMap::new(),
        peers: None,
        cluster: None,
        due: Instant::now() + LOOK,
    };
    let first = async {
        while *context.routed.borrow() == Routed::Pending {
            follower.step(context).await?;
        }
        Ok::<_, Error>(())
    };
    if timeout(FIRST, first).await.is_err() {
        debug!("the first routes to other nodes take long");
    }
    Some(follower)
}

/// Maintains the routes without end.
pub(crate) async fn run(context: Arc<Context>, follower: Option<Follower>) -> Result<Infallible, Error> {
    let Some(mut follower) = follower else {
        return std::future::pending().await;
    };
    loop {
        follower.step(&context).await?;
    }
}

impl Follower {
    async fn step(&mut self, context: &Context) -> Result<(), Error> {
        if self.cluster.is_none() {
            self.cluster = cluster(context).await;
            if self.cluster.is_none() {
                sleep(RETRY).await;
                return Ok(());
            }
        }
        tokio::select! {
            change = self.changes.next() => {
                let mut next = Some(change);
                while let Some(change) = next {
                    self.hear(change.ok_or(Error::WatchEnded)?);
                    next = self.changes.next().now_or_never();
                }
            }
            heard = self.news.changed() => {
                if let Err(error) = heard {
                    warn!(%error, "changes of the machine's routes are not heard");
                    sleep(RETRY).await;
                }
                // Rejected routes are retried on a timer; the change may be the agent's own
                // attempt.
                if *context.routed.borrow() != Routed::Failed {
                    self.due = self.due.min(Instant::now() + SETTLE);
                }
            }
            () = sleep_until(self.due) => self.lead(context).await,
        }
        Ok(())
    }

    /// Applies a change; one that the routes do not depend on is ignored.
    fn hear(&mut self, change: Result<Event<Node>, watcher::Error>) {
        let changed = match change {
            Ok(Event::Init) => {
                self.listed.clear();
                false
            }
            Ok(Event::InitApply(node)) => {
                self.listed.insert(node.name_any(), Peer::of(&node));
                false
            }
            Ok(Event::InitDone) => {
                let all = Some(std::mem::take(&mut self.listed));
                std::mem::replace(&mut self.peers, all.clone()) != all
            }
            Ok(Event::Apply(node)) => {
                let peer = Peer::of(&node);
                let peers = self.peers.get_or_insert_default();
                peers.insert(node.name_any(), peer.clone()).as_ref() != Some(&peer)
            }
            Ok(Event::Delete(node)) => {
                let peers = self.peers.get_or_insert_default();
                peers.remove(&node.name_any()).is_some()
            }
            Err(error) => {
                debug!(error = image::chain(&error), "the watch of Nodes is interrupted");
                false
            }
        };
        if changed {
            self.due = Instant::now();
        }
    }

    async fn lead(&mut self, context: &Context) {
        self.due = Instant::now() + LOOK;
        let (Some(peers), Some(id)) = (&self.peers, self.cluster) else {
            return;
        };
        let own = Peer {
            name: context.config.node_name.clone(),
            created: None,
            addresses: context.config.addresses.clone(),
            ranges: Vec::new(),
        };
        let nodes = Nodes {
            own,
            peers: peers.values().cloned().collect(),
            id,
        };
        let state = match context.parts.network.route(nodes).await {
            Ok(unreached) => Routed::of(&unreached),
            Err(error) => {
                warn!(
                    error = image::chain(&error),
                    "routes to other nodes are not what they should be; it will be tried again"
                );
                self.due = Instant::now() + RETRY;
                Routed::Failed
            }
        };
        context.rerouted.notify_one();
        let mut was_partly = false;
        let is_new = |known: &mut Routed| {
            was_partly = matches!(known, Routed::Partly(_));
            std::mem::replace(known, state.clone()) != state
        };
        if !context.routed.send_if_modified(is_new) {
            return;
        }
        if state == Routed::Done {
            info!(nodes = peers.len(), "pods of other nodes are reached");
        } else if let Routed::Partly(why) = state {
            warn!(why, "pods of some nodes are not reached");
            // The condition tells of changes.
            if !was_partly {
                // The reason of upstream's route controller.
                context.node_event(Kind::Warning, "FailedToCreateRoute", why);
            }
        }
    }
}

/// VXLAN network identifier (VNI) of the cluster: 24 bits, not 0, different in each cluster.
async fn cluster(context: &Context) -> Option<u32> {
    let api: Api<Namespace> = Api::all(context.parts.client.clone());
    match api.get(CLUSTER).await {
        Ok(namespace) => namespace.uid().map(|uid| number(&uid)),
        Err(error) => {
            warn!(
                error = image::chain(&error),
                "which cluster this is cannot be read; it will be tried again"
            );
            None
        }
    }
}

/// FNV-1a.
fn number(uid: &str) -> u32 {
    let mix = |hash: u32, octet: u8| (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193);
    1 + uid.bytes().fold(0x811c_9dc5, mix) % 0x00ff_ffff
}
