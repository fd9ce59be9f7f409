//! Usage of the node's disks, for `/stats/summary`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_plan::Timestamp;
use agent_plan::node::storage::{Parts, Used};
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nix::sys::statvfs::{Statvfs, statvfs};
use serde_json::{Map, Value, json};

use super::{disk_usage, own};
use crate::context::Context;
use crate::node::measure::PodLook;

/// Formats a file system and a usage of it; the total usage if `used` is `None`.
fn told(stat: &Statvfs, used: Option<Used>, time: Timestamp) -> Map<String, Value> {
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    let all = (
        bytes(stat.blocks().saturating_sub(stat.blocks_free())),
        stat.files().saturating_sub(stat.files_free()),
    );
    let own = used.map(|used| {
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        (count(used.bytes), count(used.inodes))
    });
    let (used, inodes) = own.unwrap_or(all);
    let members = [
        ("time", json!(Time(time))),
        ("availableBytes", json!(bytes(stat.blocks_available()))),
        ("capacityBytes", json!(bytes(stat.blocks()))),
        ("usedBytes", json!(used)),
        ("inodesFree", json!(stat.files_free())),
        ("inodes", json!(stat.files())),
        ("inodesUsed", json!(inodes)),
    ];
    members
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

fn whole(path: &Path, time: Timestamp) -> Option<Value> {
    let stat = statvfs(path).ok()?;
    Some(Value::Object(told(&stat, None, time)))
}

/// Adds the node's file systems, boot time and processes.
pub(super) fn of_node(context: &Context, time: Timestamp, node: &mut Map<String, Value>) {
    let fs = whole(&context.config.state_directory, time);
    node.extend(fs.map(|fs| ("fs".to_owned(), fs)));
    let images = whole(&context.image_directory(), time);
    node.extend(images.map(|fs| ("runtime".to_owned(), json!({"imageFs": fs, "containerFs": fs}))));
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let most = read("/proc/sys/kernel/pid_max").trim().parse::<i64>().ok();
    // `0.00 0.01 0.05 1/234 5678`: running and total.
    let load = read("/proc/loadavg");
    let now = load
        .split(' ')
        .nth(3)
        .and_then(|field| field.split('/').nth(1)?.parse::<i64>().ok());
    if let (Some(most), Some(now)) = (most, now) {
        let limit = json!({"time": Time(time), "maxpid": most, "curproc": now});
        node.insert("rlimit".to_owned(), limit);
    }
    let kernel = read("/proc/stat");
    let start = kernel
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse().ok());
    let start = start.and_then(|seconds: i64| Timestamp::from_second(seconds).ok());
    node.extend(start.map(|start| ("startTime".to_owned(), json!(Time(start)))));
}

/// Adds the disk usage of a pod and its containers.
pub(in crate::serve) async fn add(
    context: &Arc<Context>,
    pod: &PodLook,
    time: Timestamp,
    summary: &mut Map<String, Value>,
) {
    let Ok(stat) = statvfs(&context.config.state_directory) else {
        return;
    };
    let Some(parts) = disk_usage::parts(context, &pod.pod).await else {
        return;
    };
    let containers = summary.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        let name = container
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        for (field, all) in [("rootfs", &parts.layers), ("logs", &parts.logs)] {
            let used = all.get(&name).map(|used| told(&stat, Some(*used), time));
            container.extend(used.map(|used| (field.to_owned(), Value::Object(used))));
        }
    }
    let volume = |(name, used): (&String, &Used)| {
        let mut volume = told(&stat, Some(*used), time);
        volume.insert("name".to_owned(), json!(name));
        Value::Object(volume)
    };
    let mut volumes: Vec<Value> = parts.volumes.iter().map(volume).collect();
    volumes.extend(others(context, &pod.pod, time).await);
    for ((name, claim), stat) in own::of_claims(context, &pod.pod).await {
        let mut volume = told(&stat, None, time);
        volume.insert("name".to_owned(), json!(name));
        let claim = json!({"name": claim, "namespace": pods::namespace(&pod.pod)});
        volume.insert("pvcRef".to_owned(), claim);
        volumes.push(Value::Object(volume));
    }
    if !volumes.is_empty() {
        summary.insert("volume".to_owned(), Value::from(volumes));
    }
    let all = told(&stat, Some(Parts::clone(&parts).together().total()), time);
    summary.insert("ephemeral-storage".to_owned(), Value::Object(all));
}

/// Returns a pod's volumes on tmpfs, and those that show API objects.
async fn others(context: &Context, pod: &Arc<Pod>, time: Timestamp) -> Vec<Value> {
    // One at a time for any number of requests; a cancelled request frees its place.
    let counting = Arc::clone(&context.counting).lock_owned().await;
    let (volumes, pod) = (context.volumes.clone(), Arc::clone(pod));
    let looking = common::task::spawn_blocking(move || {
        let _counting = counting;
        let told = |(name, path): (String, PathBuf)| {
            let (stat, used) = (statvfs(&path).ok()?, volume::measure(&path).ok()?);
            let mut volume = told(&stat, Some(used), time);
            volume.insert("name".to_owned(), json!(name));
            Some(Value::Object(volume))
        };
        volumes.others(&pod).into_iter().filter_map(told).collect()
    });
    looking.await.unwrap_or_default()
}
