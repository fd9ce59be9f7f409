//! The Node object: registered at the start, renewed by a Lease, updated after changes.
//!
//! * [`object`]: what the Node says
//! * [`devices`]: devices of device plugins
//! * [`machine`], [`apparmor`], [`selinux`], [`lock`]: the machine below
//! * [`measure`], [`pressure`], [`qos`]: usage, evictions, and the cgroups of the classes of quality of service
//! * [`log_files`]: where containers' logs lie
//! * [`oom`]: events of processes that the kernel ended
//! * [`shutdown`]: shutdown of the machine

pub(crate) mod apparmor;
pub(crate) mod devices;
pub mod lock;
pub mod log_files;
pub mod machine;
pub(crate) mod measure;
mod object;
pub(crate) mod oom;
pub(crate) mod pressure;
pub(crate) mod qos;
pub(crate) mod selinux;
pub(crate) mod shutdown;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::Error;
use crate::client::events::Kind;
use crate::client::requests::watch;
use crate::clock::Steps;
use crate::context::Context;

pub(crate) use object::VERSION;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;
const RENEWAL: Duration = Duration::from_secs(10);
/// Interval of status checks, and the age in seconds at which an unchanged status is sent again.
const LOOK: Duration = Duration::from_secs(10);
const RESEND_SECONDS: i64 = 300;
/// Longest time that the container runtime may be unavailable, for example for an upgrade.
const SILENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Creates the Node, or updates the labels of the existing one; retries until it succeeds.
pub(crate) async fn register(context: &Context) -> Node {
    insist("registered", || try_register(context)).await
}

/// Sets the Node's status, `Err` being why it is not ready; retries until it succeeds.
pub(crate) async fn announce_state(context: &Context, node: Node, ready: Result<(), String>) -> Node {
    let (node, ready) = (&node, &ready);
    insist("given its status", || send_status(context, node, ready)).await
}

async fn insist<F>(what: &str, attempt: impl Fn() -> F) -> Node
where
    F: Future<Output = Result<Node, kube::Error>>,
{
    let mut delay = RETRY;
    loop {
        match attempt().await {
            Ok(node) => return node,
            Err(error) => warn!(
                error = image::chain(&error),
                "the node could not be {what}; it will be tried again"
            ),
        }
        sleep(delay).await;
        delay = (delay * 2).min(LONGEST_RETRY);
    }
}

async fn try_register(context: &Context) -> Result<Node, kube::Error> {
    let api: Api<Node> = Api::all(context.parts.client.clone());
    let name = &context.config.node_name;
    let wanted = object::node(context);
    let node = match api.create(&PostParams::default(), &wanted).await {
        Ok(node) => {
            info!(node = name, "registered");
            node
        }
        // The creation may be forbidden although the Node exists (`tryRegisterWithAPIServer`,
        // `pkg/kubelet/kubelet_node_status.go`).
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 409) => {
            let known = api.get_opt(name).await?.ok_or(kube::Error::Api(status))?;
            if object::is_anothers(context, &known) {
                return Err(kube::Error::Service("another machine is the node, and Ready".into()));
            }
            let boot = known
                .status
                .as_ref()
                .and_then(|status| Some(status.node_info.as_ref()?.boot_id.clone()));
            let change = json!({"metadata": {
                "labels": wanted.metadata.labels,
                "annotations": wanted.metadata.annotations,
            }});
            let node = api
                .patch(name, &PatchParams::default(), &Patch::Strategic(change))
                .await?;
            // Not before, as the registration may be tried again.
            if boot.is_some_and(|boot| !boot.is_empty() && boot != context.machine.boot_id) {
                let message = format!("Node {name} has been rebooted, boot id: {}", context.machine.boot_id);
                context.recorder.node(&known, Kind::Warning, "Rebooted", message);
            }
            node
        }
        Err(error) => return Err(error),
    };
    context.see_node(&node);
    context
        .recorder
        .node(&node, Kind::Normal, "Starting", "Starting kubelet.".to_owned());
    Ok(node)
}

/// Announces the node's name server, and sends the status if it differs from the Node's, or that is
/// old.
async fn send_status(context: &Context, node: &Node, ready: &Result<(), String>) -> Result<Node, kube::Error> {
    let api: Api<Node> = Api::all(context.parts.client.clone());
    let name = &context.config.node_name;
    let told = match object::untold(context, node) {
        Some(change) => Some(api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?),
        None => None,
    };
    let node = told.as_ref().unwrap_or(node);
    let old = node.status.clone().unwrap_or_default();
    let now = context.now();
    // A later list of volumes in use is not replaced by this one.
    let _turn = context.drivers.lock("status").await;
    let new = object::status(context, &old, ready, now);
    if object::same(&old, &new) && now.duration_since(object::heartbeat(&old)).as_secs() < RESEND_SECONDS {
        return Ok(node.clone());
    }
    let mut change = json!({"status": new});
    if let Some(Value::Array(addresses)) = change.pointer_mut("/status/addresses") {
        // Addresses would be merged by type, which is the same for both families.
        addresses.push(json!({"$patch": "replace"}));
    }
    if let Some(Value::Object(allocatable)) = change.pointer_mut("/status/allocatable") {
        let withdrawn = object::withdrawn(&old).into_iter();
        allocatable.extend(withdrawn.map(|resource| (resource, Value::Null)));
    }
    let updated = api
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(change))
        .await?;
    announce(context, node, &old, &new);
    Ok(updated)
}

fn announce(context: &Context, node: &Node, old: &NodeStatus, new: &NodeStatus) {
    for condition in new.conditions.iter().flatten() {
        let before = old
            .conditions
            .iter()
            .flatten()
            .find(|known| known.type_ == condition.type_);
        if before.is_some_and(|known| known.status == condition.status) {
            continue;
        }
        let (kind, reason) = match (condition.type_.as_str(), condition.status.as_str()) {
            ("MemoryPressure", "False") => (Kind::Normal, "NodeHasSufficientMemory"),
            ("MemoryPressure", _) => (Kind::Warning, "NodeHasInsufficientMemory"),
            ("DiskPressure", "False") => (Kind::Normal, "NodeHasNoDiskPressure"),
            ("DiskPressure", _) => (Kind::Warning, "NodeHasDiskPressure"),
            ("PIDPressure", "False") => (Kind::Normal, "NodeHasSufficientPID"),
            ("PIDPressure", _) => (Kind::Warning, "NodeHasInsufficientPID"),
            (object::BLOCKED, "True") => (Kind::Warning, "NodeBlocksPods"),
            ("Ready", "True") => (Kind::Normal, "NodeReady"),
            ("Ready", _) => (Kind::Normal, "NodeNotReady"),
            (_, _) => continue,
        };
        let message = format!("Node {} status is now: {reason}", context.config.node_name);
        context.recorder.node(node, kind, reason, message);
    }
}

/// Records an event when the node was cordoned or uncordoned.
fn announce_scheduling(context: &Context, node: &Node, cordoned: &mut bool) {
    let wanted = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    if std::mem::replace(cordoned, wanted) == wanted {
        return;
    }
    let reason = if wanted {
        "NodeNotSchedulable"
    } else {
        "NodeSchedulable"
    };
    let message = format!("Node {} status is now: {reason}", context.config.node_name);
    context.recorder.node(node, Kind::Normal, reason, message);
}

/// Keeps the Node's status up to date without end.
pub(crate) async fn keep(context: Arc<Context>, mut node: Node) -> Result<Infallible, Error> {
    let api: Api<Node> = Api::all(context.parts.client.clone());
    let mut pressures = context.pressures.subscribe();
    let mut shutting_down = context.shutting_down.subscribe();
    let mut blocked = context.blocked.subscribe();
    let mut routed = context.routed.subscribe();
    let mut devices = context.devices.changes();
    let mut silent: Option<Instant> = None;
    let mut cordoned = false;
    loop {
        tokio::select! {
            () = sleep(LOOK) => {}
            // A pressure must keep pods away at once. The sender is alive in this task, so the wait
            // does not fail.
            Ok(()) = pressures.changed() => {}
            Ok(()) = shutting_down.changed() => {}
            Ok(()) = blocked.changed() => {}
            Ok(()) = routed.changed() => {}
            Ok(()) = devices.changed() => {}
        }
        let ready = health(&context).await;
        let answered = context.parts.runtime.answers();
        let ready = match context.operations.of_runtime("status", answered).await {
            Ok(()) => {
                silent = None;
                ready
            }
            Err(_) if silent.get_or_insert_with(Instant::now).elapsed() < SILENCE => ready,
            Err(error) => ready.and_then(|()| {
                warn!(error = image::chain(&error), "the container runtime is down");
                Err("container runtime is down".to_owned())
            }),
        };
        let current = match api.get_opt(&context.config.node_name).await {
            Ok(Some(current)) => current,
            Ok(None) => {
                warn!("the node was deleted; it registers again");
                let registered = register(&context).await;
                node = announce_state(&context, registered, ready).await;
                if ranges(&node).is_none() && context.allocated_ranges().is_some() {
                    // If no controller allocates pod CIDRs, the next round tries again.
                    node = timeout(LOOK, wait_for_range(&context)).await.unwrap_or(node);
                }
                keeps_ranges(&context, &node)?;
                continue;
            }
            Err(error) => {
                warn!(error = image::chain(&error), "the node could not be read");
                node.clone()
            }
        };
        node = current;
        if object::is_anothers(&context, &node) {
            return Err(Error::Replaced);
        }
        keeps_ranges(&context, &node)?;
        context.see_node(&node);
        announce_scheduling(&context, &node, &mut cordoned);
        match send_status(&context, &node, &ready).await {
            Ok(updated) => node = updated,
            Err(error) => warn!(error = image::chain(&error), "the node's status could not be stored"),
        }
    }
}

/// Returns an error if pods cannot run here.
pub(crate) async fn health(context: &Context) -> Result<(), String> {
    if *context.shutting_down.borrow() {
        return Err(agent_plan::node::shutdown::NOT_READY.to_owned());
    }
    let lacking = context.parts.runtime.lacking();
    if !lacking.is_empty() {
        return Err(format!("missing cgroup controllers: {}", lacking.join(", ")));
    }
    if let Some(why) = context.parts.network.unready().await {
        return Err(format!(
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin \
             returns error: {why}"
        ));
    }
    match context.parts.runtime.sandboxes().await {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("container runtime is down: {}", image::chain(&error))),
    }
}

/// Renews the node's Lease without end.
pub(crate) async fn renew(context: Arc<Context>) -> Result<Infallible, Error> {
    let api: Api<Lease> = Api::namespaced(context.parts.client.clone(), LEASE_NAMESPACE);
    let mut next = Instant::now();
    let mut failing = RETRY;
    let mut clock = Steps::new(context.now());
    loop {
        if clock.step(context.now()).is_some() {
            context.stepped.notify_waiters();
        }
        // Renewals have timeouts: one without an answer would delay the next ones as well.
        let renewed = timeout(RENEWAL, renew_once(&context, &api)).await;
        let failure = match renewed {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(image::chain(&error)),
            Err(elapsed) => Some(elapsed.to_string()),
        };
        if let Some(error) = failure {
            warn!(error, "the node's lease could not be renewed; it will be tried again");
            next = Instant::now() + failing;
            failing = (failing * 2).min(LONGEST_RETRY);
        } else {
            context.renewed(Instant::now());
            failing = RETRY;
            next += RENEWAL;
        }
        sleep_until(next).await;
    }
}

async fn renew_once(context: &Context, api: &Api<Lease>) -> Result<(), kube::Error> {
    let name = &context.config.node_name;
    let spec = LeaseSpec {
        holder_identity: Some(name.clone()),
        lease_duration_seconds: Some(LEASE_SECONDS),
        renew_time: Some(MicroTime(context.now())),
        ..LeaseSpec::default()
    };
    let change = json!({"spec": spec});
    match api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    let node = context.node();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node.and_then(|node| node.metadata.uid.clone()).unwrap_or_default(),
        ..OwnerReference::default()
    };
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(LEASE_NAMESPACE.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    };
    match api.create(&PostParams::default(), &lease).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the pod CIDRs of the Node.
pub(crate) fn ranges(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.as_ref().filter(|all| !all.is_empty());
    all.map(|all| all.join(",")).or_else(|| spec.pod_cidr.clone())
}

/// Fails if the Node has other CIDRs than its pods' addresses are from.
fn keeps_ranges(context: &Context, node: &Node) -> Result<(), Error> {
    let (Some(used), Some(own)) = (context.allocated_ranges(), ranges(node)) else {
        return Ok(());
    };
    match own.parse::<network::Ranges>()? {
        own if own == used => Ok(()),
        own => Err(Error::RangeLost { used, own }),
    }
}

/// Waits until the Node's `spec.podCIDR` is set.
pub(crate) async fn wait_for_range(context: &Context) -> Node {
    use futures::StreamExt;
    use kube::runtime::{WatchStreamExt, watcher};
    let api: Api<Node> = Api::all(context.parts.client.clone());
    let selector = format!("metadata.name={}", context.config.node_name);
    let changes = watch(api, watcher::Config::default().fields(&selector)).applied_objects();
    let mut changes = std::pin::pin!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(node) if ranges(&node).is_some() => return node,
            Ok(_) => {}
            Err(error) => warn!(error = image::chain(&error), "the watch of this node is interrupted"),
        }
    }
    Node::default()
}
