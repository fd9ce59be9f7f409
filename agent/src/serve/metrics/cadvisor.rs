//! `/metrics/cadvisor`: usage of containers, pods and the machine, with cAdvisor's names for
//! dashboards.

mod families;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_plan::pod::pods;
use axum::extract::State;
use axum::response::Response;
use nix::sys::statvfs::statvfs;
use runtime::{Transfers, Usage};

use super::disk_usage;
use super::measures::{started, unmeasured};
use super::network::{self, Interface};
use super::prometheus::{Family, answer, labels, number};
use crate::context::Context;
use crate::node::measure::Look;

/// cAdvisor's metrics, in the form of the kubelet's `help.txt`.
const HELP: &str = include_str!("cadvisor/help.txt");

fn family(name: &'static str, samples: impl IntoIterator<Item = (String, Option<f64>)>) -> Family<'static> {
    Family::of(HELP, name, samples)
}

/// Sandbox and container of a control group; none is the machine.
type Group = Option<(String, Option<String>)>;

/// Control group with its labels.
struct Subject {
    /// `container`, `id`, `image`, `name`, `namespace` and `pod`.
    labels: [(&'static str, String); 6],
    usage: Usage,
    interfaces: Vec<Interface>,
    /// Unix time in seconds.
    started: Option<f64>,
    limits: Limits,
    disk: Option<Disk>,
    /// By device.
    transfers: BTreeMap<String, Transfers>,
}

/// Resource limits in the pod's specification of a container.
#[derive(Clone, Copy, Default)]
struct Limits {
    memory: Option<f64>,
    /// Cores.
    processors: Option<f64>,
    shares: Option<f64>,
}

/// Capacity of a container's file system, or its usage.
#[derive(Clone, Copy)]
struct Disk {
    used: f64,
    inodes_free: f64,
    inodes: f64,
    size: f64,
}

impl Subject {
    fn new(id: String, names: [&str; 5], usage: &Usage) -> Self {
        let [container, image, name, namespace, pod] = names.map(str::to_owned);
        Self {
            labels: [
                ("container", container),
                ("id", id),
                ("image", image),
                ("name", name),
                ("namespace", namespace),
                ("pod", pod),
            ],
            usage: *usage,
            interfaces: Vec::new(),
            started: None,
            limits: Limits::default(),
            disk: None,
            transfers: BTreeMap::new(),
        }
    }

    fn labels(&self, more: &[(&str, &str)]) -> String {
        let own = self.labels.iter().map(|(name, value)| (*name, value.as_str()));
        let mut all: Vec<(&str, &str)> = own.chain(more.iter().copied()).collect();
        all.sort_unstable();
        labels(&all)
    }
}

pub(in crate::serve) async fn metrics(State(context): State<Arc<Context>>) -> Response {
    let Some(look) = context.look().await else {
        return unmeasured();
    };
    let processes = network::processes(&context).await;
    let transfers = transfers(&context, &look).await;
    let subjects = subjects(&context, &look, &processes, transfers).await;
    let mut text = machine(&context);
    let time = look.time.as_millisecond();
    let families = families::processors(&subjects)
        .into_iter()
        .chain(families::memory(&subjects))
        .chain(families::stalls(&subjects))
        .chain(families::network(&subjects))
        .chain(families::disks(&subjects, &device(&context)))
        .chain(families::transfers(&subjects))
        .chain(families::specified(&subjects, look.time.as_duration().as_secs_f64()));
    for family in families {
        family.write(&mut text, Some(time));
    }
    family("container_scrape_error", [(String::new(), Some(0.0))]).write(&mut text, None);
    answer(text)
}

/// Reads the transfers of all groups, off the agent's thread: each has a file, and so has each device.
async fn transfers(context: &Arc<Context>, look: &Look) -> BTreeMap<Group, BTreeMap<String, Transfers>> {
    let containers = look.pods.iter().flat_map(|pod| &pod.containers);
    let of_pods = containers.flat_map(|container| {
        let sandbox = container.sandbox.clone();
        let own = Some((sandbox.clone(), Some(container.instance.clone())));
        [Some((sandbox, None)), own]
    });
    let groups: BTreeSet<Group> = of_pods.chain([None]).collect();
    let context = Arc::clone(context);
    let read = move || {
        let each = groups.into_iter().map(|group| {
            let of = group
                .as_ref()
                .map(|(sandbox, container)| (sandbox.as_str(), container.as_deref()));
            let transfers = context.parts.runtime.transfers(of);
            (group, transfers)
        });
        each.collect()
    };
    common::task::spawn_blocking(read).await.unwrap_or_default()
}

async fn subjects(
    context: &Arc<Context>,
    look: &Look,
    processes: &BTreeMap<String, i32>,
    mut transfers: BTreeMap<Group, BTreeMap<String, Transfers>>,
) -> Vec<Subject> {
    let mut transfers = |group: Group| transfers.remove(&group).unwrap_or_default();
    let mut root = Subject::new("/".to_owned(), [""; 5], &look.node);
    root.interfaces = network::of_machine();
    root.disk = disk(context, None);
    let runtime = &context.parts.runtime;
    root.transfers = transfers(None);
    let mut all = vec![root];
    for pod in &look.pods {
        let Some(sandbox) = pod.containers.first().map(|container| &container.sandbox) else {
            continue;
        };
        let (namespace, name) = (pods::namespace(&pod.pod), pods::name(&pod.pod));
        let id = |container: Option<&str>| runtime.group(sandbox, container).display().to_string();
        let mut whole = Subject::new(id(None), ["", "", "", namespace, name], &pod.usage);
        whole.interfaces = network::interfaces(pod, processes);
        whole.transfers = transfers(Some((sandbox.clone(), None)));
        all.push(whole);
        let parts = disk_usage::parts(context, &pod.pod).await;
        for container in &pod.containers {
            let wanted = pods::container(&pod.pod, &container.name);
            let image = wanted
                .as_ref()
                .and_then(|wanted| wanted.image.as_deref())
                .unwrap_or_default();
            let names = [container.name.as_str(), image, &container.instance, namespace, name];
            let mut subject = Subject::new(id(Some(&container.instance)), names, &container.usage);
            subject.started = started(pod, container).map(|time| time.0.as_duration().as_secs_f64());
            subject.limits = wanted.as_ref().map(|wanted| limits(wanted)).unwrap_or_default();
            let used = parts.as_ref().and_then(|parts| {
                let written = parts.layers.get(&container.name)?.bytes;
                let logged = parts.logs.get(&container.name).map_or(0, |log| log.bytes);
                u64::try_from(written.saturating_add(logged)).ok()
            });
            subject.disk = used.and_then(|used| disk(context, Some(used)));
            subject.transfers = transfers(Some((sandbox.clone(), Some(container.instance.clone()))));
            all.push(subject);
        }
    }
    all
}

fn limits(container: &k8s_openapi::api::core::v1::Container) -> Limits {
    let resources = container.resources.as_ref();
    let amount = |of: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
                  name: &str| {
        let quantity = api::quantity::Quantity::parse(&of?.get(name)?.0).ok()?;
        u64::try_from(quantity.milli()).ok().map(|milli| number(milli) / 1000.0)
    };
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    Limits {
        memory: amount(limits, "memory"),
        processors: amount(limits, "cpu"),
        shares: Some(amount(requests, "cpu").map_or(2.0, |cores| (cores * 1024.0).floor().max(2.0))),
    }
}

fn disk(context: &Context, used: Option<u64>) -> Option<Disk> {
    let stat = statvfs(&context.config.state_directory).ok()?;
    let bytes = |blocks: u64| number(blocks.saturating_mul(stat.fragment_size()));
    Some(Disk {
        used: used.map_or_else(|| bytes(stat.blocks().saturating_sub(stat.blocks_free())), number),
        inodes_free: number(stat.files_free()),
        inodes: number(stat.files()),
        size: bytes(stat.blocks()),
    })
}

/// Returns the device of the file system with the agent's files.
fn device(context: &Context) -> String {
    let table = trees::mounts::read().unwrap_or_default();
    let directory = context.config.state_directory.canonicalize().unwrap_or_default();
    let above = trees::mounts::parse(&table).filter(|mount| directory.starts_with(&mount.point));
    // Of mounts at the same path, the last one is on top.
    above
        .max_by_key(|mount| mount.point.as_os_str().len())
        .map_or_else(String::new, |mount| mount.source.to_owned())
}

/// Returns the metrics of the machine.
fn machine(context: &Context) -> String {
    let machine = &context.machine;
    let own = labels(&[
        ("boot_id", &machine.boot_id),
        ("machine_id", &machine.machine_id),
        ("system_uuid", &machine.system_uuid),
    ]);
    let amount = |value: i64| Some(u64::try_from(value).map_or(0.0, number));
    let version = labels(&[("kernelVersion", &machine.kernel), ("osVersion", &machine.os_image)]);
    let mut text = String::new();
    for (name, labels, value) in [
        ("cadvisor_version_info", version, Some(1.0)),
        ("machine_cpu_cores", own.clone(), amount(machine.processors)),
        ("machine_memory_bytes", own, amount(machine.memory_bytes)),
        ("machine_scrape_error", String::new(), Some(0.0)),
    ] {
        family(name, [(labels, value)]).write(&mut text, None);
    }
    text
}
