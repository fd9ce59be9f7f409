//! Network policies of the API, and the kernel's tables that enforce them.
//!
//! 1. Policies are always followed; pods and namespaces of the whole cluster only while there is a
//!    policy.
//! 2. Nothing is programmed before all relevant objects are listed: until then the tables of an
//!    earlier agent apply.
//! 3. A pod's addresses are added before its containers start, and it waits until its policies are
//!    enforced.

pub(crate) mod admissions;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use admissions::Admission;
use agent_plan::network::network_policy::{Change, Input, Pod, Policies as Plan, Policy, PolicyName};
use agent_plan::pod::pods;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use network::policies::{Policies as Tables, Watch};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::Error;
use crate::client::requests::watch;
use crate::context::Context;
use crate::pod::orphans::owner;

/// Time between two attempts to write all rules.
const RETRY: Duration = Duration::from_secs(1);
/// Changes by other programs within this time are repaired together.
const SETTLE: Duration = Duration::from_millis(20);
/// Minimum number of pods at which those that are gone are removed.
const MIN_SWEPT: usize = 64;

enum Heard {
    Policy(Event<NetworkPolicy>),
    Namespace(Event<v1::Namespace>),
    Pod(Box<Event<v1::Pod>>),
}

type Watched = BoxStream<'static, Result<Heard, watcher::Error>>;

fn changes<K>(client: &Client, heard: fn(Event<K>) -> Heard) -> Watched
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    let changes = watch(api, watcher::Config::default());
    changes.map(move |change| change.map(heard)).boxed()
}

/// Follows the policies without end.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    let asked = &context.admissions.asked;
    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (Some(table), Some(mut asked)) = (&context.config.network_policies, asked) else {
        return std::future::pending().await;
    };
    let tables = Tables::open(table.clone())?;
    let mut follower = Follower::new(Arc::clone(&context), tables);
    for attachment in context.parts.network.attachments().await? {
        let addresses = attachment.addresses.iter().map(|held| held.address).collect();
        follower.own.insert(owner(&attachment.sandbox_id).to_owned(), addresses);
    }
    let client = &context.parts.client;
    let mut policies = changes(client, Heard::Policy);
    let mut peers: SelectAll<Watched> = SelectAll::new();
    loop {
        tokio::select! {
            change = policies.next() => follower.hear(change.ok_or(Error::WatchEnded)?),
            Some(change) = peers.next() => follower.hear(change),
            Some(admission) = asked.recv() => follower.admit(admission),
            () = follower.disturbed() => {}
        }
        // Changes that are queued become one transaction.
        loop {
            if let Some(change) = policies.next().now_or_never() {
                follower.hear(change.ok_or(Error::WatchEnded)?);
            } else if let Some(Some(change)) = peers.next().now_or_never() {
                follower.hear(change);
            } else if let Ok(admission) = asked.try_recv() {
                follower.admit(admission);
            } else {
                break;
            }
        }
        follower.take();
        if follower.plan.is_empty() && !peers.is_empty() {
            peers.clear();
            follower.forget_peers();
        } else if !follower.plan.is_empty() && peers.is_empty() {
            peers.push(changes(client, Heard::Namespace));
            peers.push(changes(client, |change| Heard::Pod(Box::new(change))));
        }
        follower.program().await;
    }
}

/// Names of one kind in an incomplete list, and whether a list was ever complete.
#[derive(Default)]
struct Listing {
    names: BTreeSet<PolicyName>,
    complete: bool,
}

struct Follower {
    context: Arc<Context>,
    plan: Plan,
    tables: Arc<Tables>,
    watch: Option<Watch>,
    policies: Listing,
    namespaces: Listing,
    pods: Listing,
    /// Addresses of this node's pods, by UID, from the network.
    own: BTreeMap<String, Vec<IpAddr>>,
    /// Number of pods in `own` at which those that are gone are removed from it.
    most: usize,
    inputs: Vec<Input>,
    changes: Vec<Change>,
    waiting: Vec<oneshot::Sender<()>>,
    /// True if the tables are as planned before `changes`.
    filled: bool,
    /// Time of the next complete rewrite.
    due: Option<Instant>,
    /// True if the last attempt failed, which is reported once.
    failed: bool,
}

impl Follower {
    fn new(context: Arc<Context>, tables: Tables) -> Self {
        Self {
            context,
            plan: Plan::default(),
            tables: Arc::new(tables),
            watch: None,
            policies: Listing::default(),
            namespaces: Listing::default(),
            pods: Listing::default(),
            own: BTreeMap::new(),
            most: MIN_SWEPT,
            inputs: Vec::new(),
            changes: Vec::new(),
            waiting: Vec::new(),
            filled: false,
            due: None,
            failed: false,
        }
    }

    /// Returns when all rules must be written again: another program changed the tables, or a retry
    /// is due.
    async fn disturbed(&mut self) {
        match (&mut self.watch, self.due) {
            (_, Some(due)) => sleep_until(due).await,
            (Some(watch), None) => {
                if let Err(error) = watch.changed().await {
                    warn!(%error, "changes of the tables of NetworkPolicies by others are not heard");
                }
                warn!("somebody else changed the tables of NetworkPolicies; they are filled again");
                self.due = Some(Instant::now() + SETTLE);
                sleep_until(Instant::now() + SETTLE).await;
            }
            (None, None) => std::future::pending().await,
        }
    }

    fn hear(&mut self, change: Result<Heard, watcher::Error>) {
        match change {
            Ok(Heard::Policy(change)) => self.hear_of_policy(change),
            Ok(Heard::Namespace(change)) => self.hear_of_namespace(change),
            Ok(Heard::Pod(change)) => self.hear_of_pod(*change),
            Err(error) => debug!(
                error = image::chain(&error),
                "a watch for NetworkPolicies is interrupted"
            ),
        }
    }

    fn hear_of_policy(&mut self, change: Event<NetworkPolicy>) {
        let kept = |policy: &NetworkPolicy| {
            let (name, policy) = Policy::new(policy);
            (name.clone(), Input::Policy(name, Some(Arc::new(policy))))
        };
        match change {
            Event::Init => self.policies.names.clear(),
            Event::InitApply(policy) => {
                let (name, input) = kept(&policy);
                self.policies.names.insert(name);
                self.inputs.push(input);
            }
            Event::InitDone => {
                self.take();
                let gone = self.plan.names().filter(|name| !self.policies.names.contains(*name));
                self.inputs.extend(gone.map(|name| Input::Policy(name.clone(), None)));
                self.policies.complete = true;
            }
            Event::Apply(policy) => self.inputs.push(kept(&policy).1),
            Event::Delete(policy) => {
                let name = (policy.namespace().unwrap_or_default(), policy.name_any());
                self.inputs.push(Input::Policy(name, None));
            }
        }
    }

    fn hear_of_namespace(&mut self, change: Event<v1::Namespace>) {
        let kept = |namespace: v1::Namespace| {
            let labels = namespace.metadata.labels.unwrap_or_default();
            Input::Namespace(namespace.metadata.name.unwrap_or_default(), Some(labels))
        };
        match change {
            Event::Init => self.namespaces.names.clear(),
            Event::InitApply(namespace) => {
                self.namespaces.names.insert((namespace.name_any(), String::new()));
                self.inputs.push(kept(namespace));
            }
            Event::InitDone => {
                self.take();
                let listed = |name: &str| self.namespaces.names.contains(&(name.to_owned(), String::new()));
                let gone = self.plan.namespaces().filter(|name| !listed(name));
                self.inputs
                    .extend(gone.map(|name| Input::Namespace(name.to_owned(), None)));
                self.namespaces.complete = true;
            }
            Event::Apply(namespace) => self.inputs.push(kept(namespace)),
            Event::Delete(namespace) => self.inputs.push(Input::Namespace(namespace.name_any(), None)),
        }
    }

    fn hear_of_pod(&mut self, change: Event<v1::Pod>) {
        match change {
            Event::Init => self.pods.names.clear(),
            Event::InitApply(pod) => {
                self.pods.names.insert((pods::uid(&pod).to_owned(), String::new()));
                self.keep(&pod);
            }
            Event::InitDone => {
                self.take();
                let is_gone = |uid: &&str| {
                    // The list may be older than a pod that already waits.
                    !self.pods.names.contains(&((*uid).to_owned(), String::new()))
                        && self.context.known_pod(uid).is_none()
                };
                let gone = self.plan.pods().filter(is_gone);
                self.inputs.extend(gone.map(|uid| Input::Pod(uid.to_owned(), None)));
                self.pods.complete = true;
            }
            Event::Apply(pod) => self.keep(&pod),
            Event::Delete(pod) => self.inputs.push(Input::Pod(pods::uid(&pod).to_owned(), None)),
        }
    }

    /// Passes a pod to the plan. Addresses of this node's pods are the network's: the API's lag.
    fn keep(&mut self, pod: &v1::Pod) {
        let uid = pods::uid(pod).to_owned();
        let mut kept = Pod::new(pod, &self.context.config.node_name);
        if let Some(pod) = kept.as_mut().filter(|pod| pod.here) {
            pod.addresses = self.own.get(&uid).cloned().unwrap_or_default();
        }
        self.inputs.push(Input::Pod(uid, kept.map(Arc::new)));
    }

    fn admit(&mut self, Admission { pod, addresses, done }: Admission) {
        let (uid, known) = (pods::uid(&pod).to_owned(), &self.context);
        // Not at each admission: that would take longer the more pods there are.
        let looks = self.own.len() >= self.most;
        self.own.retain(|other, held| {
            held.retain(|held| !addresses.contains(held));
            !held.is_empty() && (!looks || known.known_pod(other).is_some())
        });
        if looks {
            self.most = self.own.len().saturating_mul(2).max(MIN_SWEPT);
        }
        self.own.insert(uid, addresses.clone());
        if !self.plan.is_empty() || !self.inputs.is_empty() {
            let holders = self.plan.holders(&addresses);
            self.inputs.extend(holders.into_iter().map(|uid| Input::Pod(uid, None)));
            self.keep(&pod);
        }
        self.waiting.push(done);
    }

    /// Passes queued changes to the plan.
    fn take(&mut self) {
        if !self.inputs.is_empty() {
            let inputs = std::mem::take(&mut self.inputs);
            self.changes.extend(self.plan.update(inputs));
        }
    }

    fn forget_peers(&mut self) {
        self.changes.extend(self.plan.forget_peers());
        self.namespaces.complete = false;
        self.pods.complete = false;
    }

    fn is_ready(&self) -> bool {
        self.policies.complete && (self.plan.is_empty() || (self.pods.complete && self.namespaces.complete))
    }

    /// Updates the kernel, and releases the pods that waited for it.
    async fn program(&mut self) {
        if !self.is_ready() {
            self.filled = false;
            self.changes.clear();
            return;
        }
        let again = match self.due {
            Some(due) if due > Instant::now() => return,
            Some(_) => true,
            None => false,
        };
        let all = !self.filled || again;
        let changes = std::mem::take(&mut self.changes);
        let done = (!all && changes.is_empty()) || self.carry_out(changes, all).await;
        if !done && !self.plan.is_empty() {
            return;
        }
        for waiting in self.waiting.drain(..) {
            // The receiver may have timed out.
            waiting.send(()).ok();
        }
    }

    async fn carry_out(&mut self, changes: Vec<Change>, all: bool) -> bool {
        if all {
            // Each element would be reported to it.
            self.watch = None;
        }
        let begun = Instant::now();
        let mut done = self.send(if all { self.plan.all() } else { changes }, all).await;
        if let (false, Err(error)) = (all, &done) {
            warn!(error, "a change of NetworkPolicies was refused; all are filled in");
            done = self.send(self.plan.all(), true).await;
        }
        self.context.admissions.programmed.note(begun.elapsed(), done.is_ok());
        self.due = None;
        self.filled = done.is_ok();
        match done {
            Ok(()) if all => {
                self.failed = false;
                info!(policies = self.plan.len(), took = ?begun.elapsed(), "all NetworkPolicies hold");
            }
            Ok(()) => self.failed = false,
            Err(error) => {
                if std::mem::replace(&mut self.failed, true) {
                    debug!(error, "NetworkPolicies still do not hold");
                } else {
                    warn!(error, "NetworkPolicies do not hold as they should");
                }
                self.due = Some(Instant::now() + RETRY);
            }
        }
        if self.watch.is_none() {
            let watch = self.tables.watch();
            self.watch = watch.map_err(|error| warn!(%error, "others are not watched")).ok();
        }
        self.filled
    }

    async fn send(&self, changes: Vec<Change>, all: bool) -> Result<(), String> {
        let tables = Arc::clone(&self.tables);
        let work = move || {
            if all {
                tables.refill(&changes)
            } else {
                tables.change(&changes)
            }
        };
        let done = common::task::spawn_blocking(work).await;
        done.map_err(|error| error.to_string())?
            .map_err(|error| image::chain(&error))
    }
}
