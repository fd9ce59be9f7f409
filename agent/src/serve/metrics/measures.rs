//! Resource usage in three formats: `/stats/summary` and `/metrics/resource` as a kubelet serves
//! them, `/measures` for the metrics API.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_plan::pod::pods;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::ContainerStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::{Stall, Stalls, Usage};
use serde_json::{Map, Value, json};

use super::prometheus::{Family, answer, number};
use super::{disks, network, own};
use crate::context::Context;
use crate::node::measure::{ContainerLook, Look, Measured, PodLook};

pub(super) fn unmeasured() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "the node could not be measured\n").into_response()
}

/// `/measures`
pub(in crate::serve) async fn measures(State(context): State<Arc<Context>>) -> Response {
    match context.measure().await {
        Some(measured) => Json(measured.measures()).into_response(),
        None => unmeasured(),
    }
}

/// `/stats/summary`
pub(in crate::serve) async fn summary(State(context): State<Arc<Context>>, RawQuery(query): RawQuery) -> Response {
    let Some(measured) = context.measure().await else {
        return unmeasured();
    };
    let query = query.unwrap_or_default();
    let brief = query.split('&').any(|pair| pair == "only_cpu_and_memory=true");
    let processes = if brief {
        BTreeMap::new()
    } else {
        network::processes(&context).await
    };
    let mut pods = Vec::new();
    for pod in measured.look.pods.iter().filter(|pod| !pod.containers.is_empty()) {
        let mut told = pod_summary(&measured, pod);
        if !brief {
            disks::add(&context, pod, measured.look.time, &mut told).await;
            network::of_pod(pod, &processes, measured.look.time, &mut told);
        }
        pods.push(Value::Object(told));
    }
    let mut node = used(&measured, &measured.look.node, measured.node_rate());
    node.insert("nodeName".to_owned(), json!(context.config.node_name));
    node.insert("systemContainers".to_owned(), Value::from(parts(&measured)));
    if !brief {
        disks::of_node(&context, measured.look.time, &mut node);
        network::of_node(measured.look.time, &mut node);
    }
    let memory = i64::try_from(measured.look.node.working_set.unwrap_or(0)).unwrap_or(i64::MAX);
    if let Some(told) = node.get_mut("memory").and_then(Value::as_object_mut) {
        let available = context.machine.memory_bytes.saturating_sub(memory).max(0);
        told.insert("availableBytes".to_owned(), json!(available));
    }
    Json(json!({"node": node, "pods": pods})).into_response()
}

/// System containers: the node's own programs, and all pods together, since this agent started.
fn parts(measured: &Measured) -> Vec<Value> {
    let began = own::began();
    let part = |(name, usage): &(&str, Usage)| {
        let mut told = used(measured, usage, measured.part_rate(name));
        told.insert("name".to_owned(), json!(name));
        told.insert("startTime".to_owned(), json!(began.map(Time)));
        Value::Object(told)
    };
    let known = measured.look.parts.iter().filter(|(_, usage)| usage.memory.is_some());
    known.map(part).collect()
}

fn pod_summary(measured: &Measured, pod: &PodLook) -> Map<String, Value> {
    let containers: Vec<Value> = pod
        .containers
        .iter()
        .map(|container| {
            let mut told = used(measured, &container.usage, measured.container_rate(container));
            told.insert("name".to_owned(), json!(container.name));
            told.insert("startTime".to_owned(), json!(started(pod, container)));
            Value::Object(told)
        })
        .collect();
    let mut told = used(measured, &pod.usage, measured.pod_rate(pod));
    let status = pod.pod.status.as_ref();
    told.insert(
        "startTime".to_owned(),
        json!(status.and_then(|status| status.start_time.clone())),
    );
    let reference = json!({
        "name": pods::name(&pod.pod),
        "namespace": pods::namespace(&pod.pod),
        "uid": pods::uid(&pod.pod),
    });
    told.insert("podRef".to_owned(), reference);
    told.insert("containers".to_owned(), Value::from(containers));
    if let Some(count) = pod.usage.processes {
        told.insert("process_stats".to_owned(), json!({"process_count": count}));
    }
    told
}

/// `availableBytes` is present only with a limit.
fn memory(usage: &Usage, time: &Time) -> Value {
    let limit = usage.details.memory_limit;
    json!({
        "time": time,
        "availableBytes": limit.map(|limit| limit.saturating_sub(usage.working_set.unwrap_or(0))),
        "usageBytes": usage.memory,
        "workingSetBytes": usage.working_set,
        "rssBytes": usage.rss,
        "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_page_faults,
        "psi": usage.details.memory_stalls.map(pressure),
    })
}

/// Times are in microseconds, as cAdvisor hands them on to a kubelet.
fn pressure(stalls: Stalls) -> Value {
    let part = |stall: Stall| {
        let [short, middle, long] = stall.shares.map(|share| f64::from(share) / 100.0);
        let total = u64::try_from(stall.total.as_micros()).unwrap_or(u64::MAX);
        json!({"total": total, "avg10": short, "avg60": middle, "avg300": long})
    };
    json!({"full": part(stalls.full), "some": part(stalls.some)})
}

/// Returns the parts `cpu`, `memory`, `swap` and `io`.
fn used(measured: &Measured, usage: &Usage, rate: Option<u64>) -> Map<String, Value> {
    let time = Time(measured.look.time);
    let cpu = json!({
        "time": time,
        "usageNanoCores": rate,
        "usageCoreNanoSeconds": usage.cpu.and_then(|cpu| u64::try_from(cpu.as_nanos()).ok()),
        "psi": usage.details.cpu_stalls.map(pressure),
    });
    let io = usage.details.io_stalls;
    let io = io.map(|stalls| json!({"time": time, "psi": pressure(stalls)}));
    let memory = memory(usage, &time);
    let limit = usage.details.swap_limit;
    let swapped = usage.details.swap.unwrap_or(0);
    let swap = usage.memory.map(|_| {
        json!({
            "time": time,
            "swapAvailableBytes": limit.map(|limit| limit.saturating_sub(swapped)),
            "swapUsageBytes": swapped,
        })
    });
    let parts = [("cpu", cpu), ("memory", memory)]
        .into_iter()
        .chain(swap.map(|swap| ("swap", swap)))
        .chain(io.map(|io| ("io", io)));
    let known = |(name, mut part): (&str, Value)| {
        if let Some(members) = part.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        (name.to_owned(), part)
    };
    parts.map(known).collect()
}

/// Start time of a container, from the API.
pub(super) fn started(pod: &PodLook, container: &ContainerLook) -> Option<Time> {
    let status = pod.pod.status.as_ref()?;
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    let own: &ContainerStatus = all.find(|own| own.name == container.name)?;
    own.state.as_ref()?.running.as_ref()?.started_at.clone()
}

/// `/metrics/resource`
pub(in crate::serve) async fn resource(State(context): State<Arc<Context>>) -> Response {
    match context.look().await {
        Some(look) => answer(metrics(&look)),
        None => unmeasured(),
    }
}

fn metrics(look: &Look) -> String {
    let mut text = String::new();
    let time = look.time.as_millisecond();
    let families = of_containers(look)
        .into_iter()
        .chain(of_node(look))
        .chain(of_pods(look));
    for family in families {
        // Without a time, as in `pkg/kubelet/metrics/collectors/resource_metrics.go`.
        let timeless = family.name == "container_start_time_seconds";
        family.write(&mut text, (!timeless).then_some(time));
    }
    Family::one("resource_scrape_error", Some(0.0)).write(&mut text, None);
    text
}

/// Pods with running containers.
fn measured(look: &Look) -> impl Iterator<Item = &PodLook> {
    look.pods.iter().filter(|pod| !pod.containers.is_empty())
}

fn of_containers(look: &Look) -> [Family<'static>; 5] {
    let of = |value: fn(&PodLook, &ContainerLook) -> Option<f64>| {
        let each = |pod| move |container| (labels(pod, Some(container)), value(pod, container));
        measured(look)
            .flat_map(|pod: &PodLook| pod.containers.iter().map(each(pod)))
            .collect::<Vec<_>>()
    };
    [
        Family::new(
            "container_cpu_usage_seconds_total",
            of(|_, container| seconds(&container.usage)),
        ),
        Family::new(
            "container_memory_working_set_bytes",
            of(|_, container| working_set(&container.usage)),
        ),
        Family::new(
            "container_start_time_seconds",
            of(|pod, container| Some(started(pod, container)?.0.as_duration().as_secs_f64())),
        ),
        Family::new(
            "container_swap_limit_bytes",
            of(|_, container| container.usage.details.swap_limit.map(number)),
        ),
        Family::new("container_swap_usage_bytes", of(|_, container| swap(&container.usage))),
    ]
}

fn of_node(look: &Look) -> [Family<'static>; 3] {
    [
        Family::one("node_cpu_usage_seconds_total", seconds(&look.node)),
        Family::one("node_memory_working_set_bytes", working_set(&look.node)),
        Family::one("node_swap_usage_bytes", swap(&look.node)),
    ]
}

fn of_pods(look: &Look) -> [Family<'static>; 3] {
    let of = |value: fn(&Usage) -> Option<f64>| {
        let each = measured(look).map(|pod| (labels(pod, None), value(&pod.usage)));
        each.collect::<Vec<_>>()
    };
    [
        Family::new("pod_cpu_usage_seconds_total", of(seconds)),
        Family::new("pod_memory_working_set_bytes", of(working_set)),
        Family::new("pod_swap_usage_bytes", of(swap)),
    ]
}

fn seconds(usage: &Usage) -> Option<f64> {
    usage.cpu.map(|cpu| cpu.as_secs_f64())
}

fn working_set(usage: &Usage) -> Option<f64> {
    usage.working_set.map(number)
}

/// Swap in use: none where the kernel does not count it.
fn swap(usage: &Usage) -> Option<f64> {
    usage.memory.map(|_| number(usage.details.swap.unwrap_or(0)))
}

/// Labels of pods and containers: their names contain no characters to escape.
fn labels(pod: &PodLook, container: Option<&ContainerLook>) -> String {
    let own = container.map_or_else(String::new, |container| format!("container=\"{}\",", container.name));
    let (namespace, name) = (pods::namespace(&pod.pod), pods::name(&pod.pod));
    format!("{{{own}namespace=\"{namespace}\",pod=\"{name}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_memory_is_told_where_there_is_a_limit() {
        let mut usage = Usage {
            working_set: Some(3000),
            ..Usage::default()
        };
        let left = |usage: &Usage| {
            let told = memory(usage, &Time(agent_plan::Timestamp::UNIX_EPOCH));
            told.get("availableBytes").and_then(Value::as_u64)
        };
        assert_eq!(left(&usage), None);
        usage.details.memory_limit = Some(10_000);
        assert_eq!(left(&usage), Some(7000));
        usage.details.memory_limit = Some(2000);
        assert_eq!(left(&usage), Some(0));
        usage.details.memory_stalls = Some(Stalls {
            some: Stall {
                shares: [150, 20, 3],
                total: std::time::Duration::from_millis(2),
            },
            full: Stall::default(),
        });
        let told = memory(&usage, &Time(agent_plan::Timestamp::UNIX_EPOCH));
        let some = json!({"total": 2000, "avg10": 1.5, "avg60": 0.2, "avg300": 0.03});
        assert_eq!(told["psi"]["some"], some);
    }
}
