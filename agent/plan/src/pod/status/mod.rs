//! The pod's status as the API shows it.

mod conditions;
mod containers;
mod logs;
mod unlocated;

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::pod::as_container;
use api::pod::ending::Group;
use k8s_openapi::api::core::v1::{Container, HostIP, Pod, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::Timestamp;
use crate::pod::observed::{Instance, Sandbox, State, View};
use crate::pod::resize::{self, WHOLE};
use crate::pod::{lifecycle, pods};
pub use logs::logged;

/// The reason of a container's end, and of its wait, during a restart of all containers.
pub const RESETTING: &str = "RestartingAllContainers";
/// Its message.
pub const RESET_MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// Returns the status of `pod`, observed as `view` at `now`. Conditions of other owners and fields
/// of the API server are kept. `scheme` is the runtime's name, the prefix of every container ID.
pub fn build(pod: &Pod, view: &View, scheme: &str, now: Timestamp) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    if let Some(told) = without_containers(pod, view, &old) {
        return told;
    }
    let end = lifecycle::end(pod, view, now);
    // While a process may still run, the pod has not ended: its resources are not free.
    let settled = pods::terminal_phase(pod).is_some() || !view.any_alive();
    let shown = end.as_ref().filter(|_| settled);
    let phase = phase(pod, view, shown);
    let addresses = addresses(pod, view);
    let of = |group, own: &[Container]| containers::statuses(pod, view, (group, own), scheme, end.is_some());
    let mut main = of(Group::Main, pods::main_containers(pod));
    let mut initial = of(Group::Init, pods::init_containers(pod));
    // A pod that was failed through the API may run on until its grace period is over.
    if !view.any_alive() && (shown.is_some() || is_deleted(pod, view)) {
        unlocated::settle(pod, &mut main, &mut initial);
    }
    let added: Vec<_> = pods::ephemeral_containers(pod).iter().map(as_container).collect();
    let added = of(Group::Ephemeral, &added);
    let mut status = PodStatus {
        phase: Some(phase.to_owned()),
        reason: shown.and_then(|end| end.reason.clone()),
        message: shown.and_then(|end| end.message.clone()),
        start_time: old.start_time.clone().or(Some(Time(view.start_time))),
        observed_generation: pod.metadata.generation,
        container_statuses: (!main.is_empty()).then_some(main),
        init_container_statuses: (!initial.is_empty()).then_some(initial),
        ephemeral_container_statuses: (!added.is_empty()).then_some(added),
        host_ip: view
            .host_addresses
            .first()
            .map(ToString::to_string)
            .or_else(|| old.host_ip.clone()),
        host_ips: (!view.host_addresses.is_empty()).then(|| {
            view.host_addresses
                .iter()
                .map(|address| HostIP {
                    ip: address.to_string(),
                })
                .collect()
        }),
        ..old
    };
    if !addresses.is_empty() {
        status.pod_ip = addresses.first().map(ToString::to_string);
        status.pod_ips = Some(
            addresses
                .iter()
                .map(|address| PodIP {
                    ip: address.to_string(),
                })
                .collect(),
        );
    }
    if let Some(whole) = view.actual.get(WHOLE) {
        status.resources = Some(whole.clone());
        let allocated = view.allocated.get(WHOLE).unwrap_or(whole);
        status.allocated_resources.clone_from(&allocated.requests);
    } else {
        status.allocated_resources = given_together(pod, view);
    }
    status.conditions = Some(conditions::build(pod, view, &status, now));
    status
}

/// The status of a pod without containers to report: the node rejected it, or it had ended before
/// this agent started, and only the API knows its containers.
fn without_containers(pod: &Pod, view: &View, old: &PodStatus) -> Option<PodStatus> {
    if view.instances.values().any(|instances| !instances.is_empty()) || view.any_alive() {
        return None;
    }
    let observed_generation = pod.metadata.generation;
    if pods::terminal_phase(pod).is_some() {
        return Some(PodStatus {
            observed_generation,
            ..old.clone()
        });
    }
    let rejection = view.rejection.as_ref()?;
    Some(PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(rejection.reason.clone().into_owned()),
        message: Some(rejection.message.clone()),
        start_time: old.start_time.clone().or(Some(Time(view.start_time))),
        observed_generation,
        ..old.clone()
    })
}

/// Allocated requests of all containers together; `None` where they have no requests.
fn given_together(pod: &Pod, view: &View) -> Option<BTreeMap<String, Quantity>> {
    let given = resize::given(pod, &view.allocated);
    let spec = given.as_ref().unwrap_or(pod).spec.as_ref()?;
    let all = api::pod::container_requests(spec);
    let told = all.into_iter().map(|(name, amount)| (name, amount.to_text()));
    Some(told.collect()).filter(|all: &BTreeMap<_, _>| !all.is_empty())
}

fn addresses(pod: &Pod, view: &View) -> Vec<IpAddr> {
    if pod.spec.as_ref().is_some_and(pods::host_network) {
        return view.host_addresses.clone();
    }
    match &view.sandbox {
        Sandbox::Ready { addresses } => addresses.clone(),
        // The addresses stay known, also those of a pod that ended before they were reported.
        Sandbox::Removing | Sandbox::Removed => view.addresses.clone(),
        Sandbox::Absent | Sandbox::Preparing | Sandbox::Failed { .. } => Vec::new(),
    }
}

/// True if nothing is left of a pod that is being deleted.
fn is_deleted(pod: &Pod, view: &View) -> bool {
    pods::deletion_grace(pod).is_some() && view.sandbox == Sandbox::Removed && !view.any_alive()
}

fn phase(pod: &Pod, view: &View, end: Option<&lifecycle::End>) -> &'static str {
    if let Some(end) = end {
        return if end.succeeded { "Succeeded" } else { "Failed" };
    }
    let containers = pods::main_containers(pod);
    let is_new = |name: &str| {
        view.latest(name)
            .is_none_or(|instance| instance.state == State::Created)
    };
    let never_started = |name: &str| is_new(name) || view.is_hooked(name) && view.previous(name).is_none();
    if is_deleted(pod, view)
        && containers
            .iter()
            .any(|container| view.latest(&container.name).is_none())
    {
        return "Failed";
    }
    if !conditions::is_initialized(pod, view) || containers.iter().any(|container| never_started(&container.name)) {
        return "Pending";
    }
    if pods::deletion_grace(pod).is_some() && !view.any_alive() {
        let failed = containers
            .iter()
            .filter_map(|container| view.latest(&container.name).and_then(Instance::exit))
            .any(|exit| exit.code != 0);
        return if failed { "Failed" } else { "Succeeded" };
    }
    "Running"
}
