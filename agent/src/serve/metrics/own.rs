//! `/metrics`: metrics of the agent itself, and usage of the claims' volumes.
//!
//! * [`operations`], [`requests`]: what the agent asks of the runtime, and of the API server

pub(crate) mod operations;
pub(crate) mod requests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use api::go::architecture;
use axum::extract::State;
use axum::response::Response;
use k8s_openapi::api::core::v1::Pod;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::Statvfs;
use nix::unistd::{SysconfVar, sysconf};

use self::requests::ASKED;
use super::prometheus::{Family, answer, labels, number};
use crate::client::certificates::{CLIENT, Certificate, SERVING};
use crate::context::Context;
use crate::networking::services::programmed::{BOUNDS, Programmed};
use crate::pod::preempted::Preempted;
use crate::pod::started::Counts;

pub(in crate::serve) async fn metrics(State(context): State<Arc<Context>>) -> Response {
    let mut text = String::new();
    let mut all = vec![build(), node(&context), cgroups(), running_pods(&context)];
    all.push(containers(&context).await);
    all.extend(volumes(&context).await);
    all.push(preemptions(&context.preempted));
    all.push(context.pull_times.family());
    all.extend(pull_records(context.pull_records.counts()));
    let counts = context.started.counts();
    all.extend(begun(&counts));
    all.extend(upkeep(&counts));
    all.extend(context.operations.families());
    all.extend(ASKED.families());
    all.extend(certificates(context.now().as_second()));
    all.extend(transactions(&context.programmed));
    all.extend(policies(&context));
    all.extend(process());
    all.push(start_time());
    for family in all {
        family.write(&mut text, None);
    }
    answer(text)
}

/// `/metrics/probes`.
pub(in crate::serve) async fn probes(State(context): State<Arc<Context>>) -> Response {
    let mut text = context.probes.tell();
    start_time().write(&mut text, None);
    answer(text)
}

pub(super) fn build() -> Family<'static> {
    let platform = format!("{}/{}", std::env::consts::OS, architecture());
    let version = labels(&[
        ("git_version", crate::node::VERSION),
        ("major", "1"),
        ("minor", "36"),
        ("platform", &platform),
    ]);
    Family::new("kubernetes_build_info", [(version, Some(1.0))])
}

fn node(context: &Context) -> Family<'static> {
    let name = labels(&[("node", &context.config.node_name)]);
    Family::new("kubelet_node_name", [(name, Some(1.0))])
}

/// Lifetimes of the agent's certificates (`cmd/kubelet/app/server.go`,
/// `pkg/kubelet/certificate/kubelet.go`).
fn certificates(now: i64) -> [Family<'static>; 4] {
    let left = |name, certificate: &Certificate| {
        let seconds = certificate.left(now);
        let sign = seconds.map_or(1.0, |left| if left < 0 { -1.0 } else { 1.0 });
        Family::one(name, seconds.map(|left| sign * number(left.unsigned_abs())))
    };
    let failures = |name, certificate: &Certificate| Family::one(name, Some(number(certificate.failures())));
    [
        left("kubelet_certificate_manager_client_ttl_seconds", &CLIENT),
        left("kubelet_certificate_manager_server_ttl_seconds", &SERVING),
        failures("kubelet_certificate_manager_client_expiration_renew_errors", &CLIENT),
        failures("kubelet_server_expiration_renew_errors", &SERVING),
    ]
}

/// Version of the machine's cgroups: only the second has this file.
fn cgroups() -> Family<'static> {
    let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let version = Some(if unified { 2.0 } else { 1.0 });
    Family::one("kubelet_cgroup_version", version)
}

fn running_pods(context: &Context) -> Family<'static> {
    let running = context.running.borrow();
    let uids: std::collections::BTreeSet<&str> = running.keys().map(|run| run.pod.as_str()).collect();
    let count = Some(number(u64::try_from(uids.len()).unwrap_or(u64::MAX)));
    Family::one("kubelet_running_pods", count)
}

fn preemptions(preempted: &Preempted) -> Family<'static> {
    let each = preempted.counts().into_iter();
    let each = each.map(|(resource, count)| (labels(&[("preemption_signal", &resource)]), Some(number(count))));
    Family::new("kubelet_preemptions", each)
}

fn begun(counts: &Counts) -> [Family<'static>; 7] {
    let whole = |name, count| Family::one(name, Some(number(count)));
    let each = counts
        .containers
        .iter()
        .map(|(kind, count)| (labels(&[("container_type", kind)]), Some(number(*count))));
    let failures = counts.container_failures.iter().map(|((kind, reason), count)| {
        let labels = labels(&[("code", reason), ("container_type", kind)]);
        (labels, Some(number(*count)))
    });
    let terminations = counts.terminations.iter().map(|((kind, code, reason), count)| {
        let code = code.to_string();
        let labels = labels(&[("container_type", kind), ("exit_code", &code), ("reason", reason)]);
        (labels, Some(number(*count)))
    });
    [
        whole("kubelet_started_pods_total", counts.pods),
        whole("kubelet_started_pods_errors_total", counts.pod_failures),
        whole("kubelet_started_user_namespaced_pods_total", counts.user_pods),
        whole(
            "kubelet_started_user_namespaced_pods_errors_total",
            counts.user_pod_failures,
        ),
        Family::new("kubelet_started_containers_total", each),
        Family::new("kubelet_started_containers_errors_total", failures),
        Family::new("kubelet_terminated_containers_total", terminations),
    ]
}

/// Rejections, evictions, and removed images.
fn upkeep(counts: &Counts) -> [Family<'static>; 3] {
    let each = |label: &'static str, counts: &BTreeMap<&'static str, u64>| -> Vec<(String, Option<f64>)> {
        let each = counts.iter();
        each.map(|(name, count)| (labels(&[(label, name)]), Some(number(*count))))
            .collect()
    };
    let images = Some(number(counts.images)).filter(|count| *count > 0.0);
    [
        Family::new("kubelet_admission_rejections_total", each("reason", &counts.rejections)),
        Family::new("kubelet_evictions", each("eviction_signal", &counts.evictions)),
        Family::new(
            "kubelet_image_garbage_collected_total",
            [(labels(&[("reason", "space")]), images)],
        ),
    ]
}

/// Numbers of intents and of images on record.
fn pull_records((intents, images): (usize, usize)) -> [Family<'static>; 2] {
    let one = |name, count: usize| Family::one(name, u64::try_from(count).map(number).ok());
    [
        one("kubelet_imagemanager_ondisk_pullintents", intents),
        one("kubelet_imagemanager_ondisk_pulledrecords", images),
    ]
}

/// Transactions of Services, with kube-proxy's metric names.
pub(super) fn transactions(programmed: &Programmed) -> [Family<'static>; 2] {
    let [took, failures] = counts(programmed);
    [
        Family::new("kubeproxy_sync_proxy_rules_duration_seconds", took),
        Family::new("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", failures),
    ]
}

/// Transactions of network policies.
fn policies(context: &Context) -> [Family<'static>; 2] {
    let [took, failures] = counts(&context.admissions.programmed);
    [
        Family::new("skiff_network_policy_sync_duration_seconds", took),
        Family::new("skiff_network_policy_sync_failures_total", failures),
    ]
}

/// Durations and failures.
fn counts(programmed: &Programmed) -> [Vec<(String, Option<f64>)>; 2] {
    let took = programmed.took.lock().unwrap_or_else(PoisonError::into_inner);
    let failures = number(programmed.failures.load(Ordering::Relaxed));
    [took.samples(&BOUNDS, &[]), vec![(String::new(), Some(failures))]]
}

async fn containers(context: &Context) -> Family<'static> {
    let mut counts = BTreeMap::from([("created", 0_u64), ("exited", 0), ("running", 0)]);
    let sandboxes = context.parts.runtime.sandboxes().await.unwrap_or_default();
    for container in sandboxes.into_iter().flat_map(|sandbox| sandbox.containers) {
        let state = match container.state {
            runtime::State::Created => "created",
            runtime::State::Running { .. } => "running",
            runtime::State::Exited { .. } => "exited",
        };
        *counts.entry(state).or_default() += 1;
    }
    let each = counts
        .into_iter()
        .map(|(state, count)| (labels(&[("container_state", state)]), Some(number(count))));
    Family::new("kubelet_running_containers", each)
}

/// Name and value of a metric.
type Row = (&'static str, fn(&Statvfs) -> u64);

/// Usage of the claims' volumes; empty while one of them does not answer.
async fn volumes(context: &Arc<Context>) -> Vec<Family<'static>> {
    let found = context.asking.ask(claims(context).into_iter().collect()).await;
    let rows: [Row; 6] = [
        ("kubelet_volume_stats_available_bytes", |stat| {
            stat.blocks_available().saturating_mul(stat.fragment_size())
        }),
        ("kubelet_volume_stats_capacity_bytes", |stat| {
            stat.blocks().saturating_mul(stat.fragment_size())
        }),
        ("kubelet_volume_stats_used_bytes", |stat| {
            stat.blocks()
                .saturating_sub(stat.blocks_free())
                .saturating_mul(stat.fragment_size())
        }),
        ("kubelet_volume_stats_inodes", |stat| stat.files()),
        ("kubelet_volume_stats_inodes_free", |stat| stat.files_free()),
        ("kubelet_volume_stats_inodes_used", |stat| {
            stat.files().saturating_sub(stat.files_free())
        }),
    ];
    let row = |(name, value): Row| {
        let samples = found
            .iter()
            .map(|(names, stat)| (names.clone(), Some(number(value(stat)))));
        Family::new(name, samples)
    };
    rows.into_iter().map(row).collect()
}

/// Returns a pod's volumes from claims: the volume's name, the claim's, and the usage.
pub(super) async fn of_claims(context: &Context, pod: &Pod) -> Vec<((String, String), Statvfs)> {
    context.asking.ask(mounted(context, pod)).await
}

/// Returns the names of a pod's volumes from claims, those of the claims, and the mount points.
fn mounted(context: &Context, pod: &Pod) -> Vec<((String, String), PathBuf)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let found = volumes.filter_map(|volume| {
        let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => claim.claim_name.clone(),
            (None, Some(_)) => format!("{}-{}", pods::name(pod), volume.name),
            (None, None) => return None,
        };
        let path = context.volumes.mounted(pods::uid(pod), &volume.name)?;
        Some(((volume.name.clone(), claim), path))
    });
    found.collect()
}

/// Returns the labels and mount points of claims; one that several pods use occurs once.
fn claims(context: &Context) -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    for pod in context.known_pods() {
        for ((_, claim), path) in mounted(context, &pod) {
            let names = labels(&[("namespace", pods::namespace(&pod)), ("persistentvolumeclaim", &claim)]);
            all.insert(names, path);
        }
    }
    all
}

/// Start time of this process.
pub(in crate::serve) fn began() -> Option<Timestamp> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse::<i64>().ok())?;
    let began = i64::try_from(own_stat(22)?).ok()?.saturating_mul(1000) / ticks.max(1);
    Timestamp::from_millisecond(booted.saturating_mul(1000).saturating_add(began)).ok()
}

/// Start time of this process as a metric.
pub(super) fn start_time() -> Family<'static> {
    let time = began().map(|began| began.as_duration().as_secs_f64());
    Family::one("process_start_time_seconds", time)
}

/// A field of `/proc/self/stat`, counted from 1.
fn own_stat(field: usize) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, in parentheses, may contain any characters.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
}

pub(super) fn process() -> Vec<Family<'static>> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let ticks = number(u64::try_from(ticks).unwrap_or(100));
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    let page = u64::try_from(page).unwrap_or(4096);
    let spent = own_stat(14).and_then(|user| Some(number(user.saturating_add(own_stat(15)?)) / ticks));
    let open = std::fs::read_dir("/proc/self/fd").ok();
    // Excludes the descriptor of the directory that is being read.
    let open = open.map(|open| open.count().saturating_sub(1));
    let most = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| number(soft));
    let resident = own_stat(24).map(|pages| number(pages.saturating_mul(page)));
    vec![
        Family::one("process_cpu_seconds_total", spent),
        Family::one("process_max_fds", most),
        Family::one(
            "process_open_fds",
            open.and_then(|open| u64::try_from(open).ok()).map(number),
        ),
        Family::one("process_resident_memory_bytes", resident),
        Family::one("process_virtual_memory_bytes", own_stat(23).map(number)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_made_room_are_counted_by_what_was_missing() {
        let preempted = Preempted::default();
        let mut text = String::new();
        preemptions(&preempted).write(&mut text, None);
        assert_eq!(text, "");
        for (resource, pods) in [("memory", 2), ("cpu", 1), ("memory", 1)] {
            preempted.count(resource.to_owned(), pods);
        }
        preemptions(&preempted).write(&mut text, None);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = [
            "# TYPE kubelet_preemptions counter",
            "kubelet_preemptions{preemption_signal=\"cpu\"} 1",
            "kubelet_preemptions{preemption_signal=\"memory\"} 3",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn terminations_are_counted_by_exit_code_and_reason() {
        let mut counts = Counts::default();
        counts
            .terminations
            .insert(("container", 137, "OOMKilled".to_owned()), 2);
        let mut text = String::new();
        for family in begun(&counts) {
            family.write(&mut text, None);
        }
        let line = "\nkubelet_terminated_containers_total{container_type=\"container\",exit_code=\"137\",reason=\"OOMKilled\"} 2\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn rejections_evictions_and_removed_images_are_counted() {
        let mut text = String::new();
        let tell = |counts: &Counts, text: &mut String| {
            for family in upkeep(counts) {
                family.write(text, None);
            }
        };
        tell(&Counts::default(), &mut text);
        assert_eq!(text, "");
        let counts = Counts {
            rejections: BTreeMap::from([("OutOfcpu", 2)]),
            evictions: BTreeMap::from([("memory.available", 1)]),
            images: 3,
            ..Counts::default()
        };
        tell(&counts, &mut text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 2",
            "kubelet_evictions{eviction_signal=\"memory.available\"} 1",
            "kubelet_image_garbage_collected_total{reason=\"space\"} 3",
        ];
        assert_eq!(lines, expected);
    }
}
