//! Quantities in the kernel's units.

use std::collections::BTreeMap;

use api::pod::level;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::node::reserve::Amounts;
use crate::pod::pods;

/// Values for a cgroup; `None` leaves the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// 1024 is one core.
    pub cpu_shares: Option<u64>,
    /// Microseconds per [`PERIOD`].
    pub cpu_quota: Option<i64>,
    /// Bytes.
    pub memory: Option<i64>,
    /// Bytes by page size as the kernel names it (`2MB`).
    pub hugepages: Vec<(String, i64)>,
}

/// The period of a CPU quota in microseconds.
pub const PERIOD: u64 = 100_000;

const SHORTEST_QUOTA: i64 = 1000;

/// Parses a quantity in thousandths, rounded up; `None` when it is invalid.
pub fn milli(quantity: &str) -> Option<i64> {
    let split = quantity
        .find(|character: char| !matches!(character, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(split);
    let (scale, divisor) = scale(suffix)?;
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 12 {
        return None;
    }
    let tens = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scaled = mantissa.checked_mul(scale)?.checked_mul(1000)?;
    let thousandths = divide_up(scaled, tens.checked_mul(divisor)?);
    i64::try_from(thousandths * sign).ok()
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let tens = 10_i128.checked_pow(power.unsigned_abs())?;
            if power < 0 { (1, tens) } else { (tens, 1) }
        }
    })
}

fn divide_up(value: i128, by: i128) -> i128 {
    let by = by.max(1);
    value / by + i128::from(value % by > 0)
}

/// A quantity in whole units, rounded up.
pub fn units(quantity: &str) -> Option<i64> {
    milli(quantity).map(|milli| i64::try_from(divide_up(milli.into(), 1000)).unwrap_or(i64::MAX))
}

fn get(quantities: Option<&BTreeMap<String, Quantity>>, name: &str, convert: fn(&str) -> Option<i64>) -> Option<i64> {
    convert(&quantities?.get(name)?.0)
}

fn shares(milli: i64) -> u64 {
    u64::try_from(milli.saturating_mul(1024) / 1000)
        .unwrap_or(0)
        .clamp(2, 262_144)
}

fn quota(milli: i64) -> Option<i64> {
    let period = i64::try_from(PERIOD).unwrap_or(i64::MAX);
    (milli > 0).then(|| (milli.saturating_mul(period) / 1000).max(SHORTEST_QUOTA))
}

/// Returns the limits of a container. Where it has none, the pod-level limit applies.
pub fn container_limits(spec: &PodSpec, container: &Container) -> Limits {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let whole = level::own(spec).and_then(|own| own.limits.as_ref());
    let limit = |name: &str, convert: fn(&str) -> Option<i64>| {
        let own = get(limits, name, convert).filter(|amount| *amount > 0);
        own.or_else(|| get(whole, name, convert))
    };
    let cpu_limit = limit("cpu", milli);
    let cpu_request = get(requests, "cpu", milli).or(cpu_limit).unwrap_or(0);
    Limits {
        cpu_shares: Some(shares(cpu_request)),
        cpu_quota: cpu_limit.and_then(quota),
        memory: limit("memory", units).filter(|bytes| *bytes > 0),
        hugepages: limits
            .into_iter()
            .flatten()
            .filter_map(|(name, quantity)| {
                let size = name.strip_prefix("hugepages-")?;
                Some((size.replace('i', "") + "B", units(&quantity.0)?))
            })
            .collect(),
    }
}

/// Returns the CPU shares of pods that share a cgroup.
pub fn shares_together<'a>(pods: impl Iterator<Item = &'a PodSpec>) -> u64 {
    let asked = |spec: &PodSpec| api::pod::requests(spec).get("cpu").map_or(0, |amount| amount.milli());
    shares(pods.map(asked).fold(0, i64::saturating_add))
}

/// Limits of all pods together: the machine's capacity without the reservations.
pub fn together(capacity: &Amounts, reserved: &[Amounts]) -> Limits {
    let left = |name: &str| {
        let kept = reserved.iter().filter_map(|own| own.get(name));
        let all = capacity.get(name)?;
        Some(kept.fold(*all, |left, own| left.minus(*own)))
    };
    Limits {
        cpu_shares: left("cpu").map(|amount| shares(amount.milli())),
        cpu_quota: None,
        memory: left("memory")
            .map(api::quantity::Quantity::value)
            .filter(|bytes| *bytes > 0),
        hugepages: Vec::new(),
    }
}

/// Returns the limits of a pod: pod-level ones, or those of its containers together where every
/// container has one (`ResourceConfigForPod`, `pkg/kubelet/cm/helpers_linux.go`).
pub fn pod_limits(spec: &PodSpec) -> Limits {
    let all = api::pod::limits(spec);
    let whole = level::own(spec).and_then(|own| own.limits.as_ref());
    let limit = |name: &str| {
        let is_set =
            |limits: Option<&BTreeMap<String, Quantity>>| get(limits, name, milli).is_some_and(|amount| amount > 0);
        let of = |container: &Container| is_set(container.resources.as_ref().and_then(|own| own.limits.as_ref()));
        // An init container has the limits of the sidecars before it, too.
        let inits = || {
            let mut inits = spec.init_containers.iter().flatten();
            inits.find(|own| !of(own) || api::pod::is_sidecar(own)).is_none_or(of)
        };
        let each = || spec.containers.iter().all(of) && inits();
        all.get(name).copied().filter(|_| is_set(whole) || each())
    };
    // The requests of a pod of that class are its overhead alone.
    let cpu_shares = if api::pod::qos(spec) == "BestEffort" {
        shares(0)
    } else {
        shares_together(std::iter::once(spec))
    };
    Limits {
        cpu_shares: Some(cpu_shares),
        cpu_quota: limit("cpu").and_then(|amount| quota(amount.milli())),
        memory: limit("memory")
            .map(api::quantity::Quantity::value)
            .filter(|bytes| *bytes > 0),
        hugepages: Vec::new(),
    }
}

/// Value of a `resourceFieldRef`: the limit or request divided and rounded up; without a limit, which
/// 0 is as well, the pod-level limit, or the node's allocatable.
pub fn field(
    pod: &Pod,
    container: &Container,
    resource: &str,
    divisor: Option<&str>,
    allocatable: &BTreeMap<String, i64>,
) -> Option<String> {
    let resources = container.resources.as_ref();
    let (kind, name) = resource.split_once('.')?;
    let value = match kind {
        "limits" => {
            let own = get(resources.and_then(|resources| resources.limits.as_ref()), name, milli);
            let whole = || get(pod.spec.as_ref()?.resources.as_ref()?.limits.as_ref(), name, milli);
            // `MergeContainerResourceLimits`, pkg/api/v1/resource/helpers.go.
            let given = || {
                let stands_in = ["cpu", "memory", "ephemeral-storage"].contains(&name);
                allocatable.get(name).copied().filter(|_| stands_in)
            };
            own.filter(|limit| *limit > 0)
                .or_else(|| whole().filter(|limit| *limit > 0))
                .or_else(given)
                .or_else(|| name.starts_with("hugepages-").then_some(0))?
        }
        "requests" => get(resources.and_then(|resources| resources.requests.as_ref()), name, milli).unwrap_or(0),
        _ => return None,
    };
    let divisor = divisor.and_then(milli).filter(|divisor| *divisor > 0).unwrap_or(1000);
    Some(divide_up(value.into(), divisor.into()).to_string())
}

/// Returns the OOM score adjustment of a container of this pod.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    const CRITICAL: i32 = 2_000_001_000;
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    if priority.is_some_and(|priority| priority >= CRITICAL) {
        return -997;
    }
    let class = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
    match class {
        Some("Guaranteed") => -997,
        Some("BestEffort") => 1000,
        _ => {
            let extra = pod.spec.as_ref().map_or(0, unassigned_memory);
            let least = || {
                let main = pods::main_containers(pod).iter();
                main.map(requested_memory).min().unwrap_or(0)
            };
            // A sidecar is not killed before the main containers.
            let request = if pods::is_sidecar_of(pod, container) {
                requested_memory(container).max(least())
            } else {
                requested_memory(container)
            };
            let share = i128::from(request.saturating_add(extra)) * 1000 / i128::from(memory_capacity.max(1));
            i64::try_from(1000 - share).unwrap_or(999).clamp(3, 999)
        }
    }
}

fn requested_memory(container: &Container) -> i64 {
    let resources = container.resources.as_ref();
    get(
        resources.and_then(|resources| resources.requests.as_ref()),
        "memory",
        units,
    )
    .unwrap_or(0)
}

/// Each container's share of the pod-level memory request that exceeds the containers' own
/// requests.
fn unassigned_memory(spec: &PodSpec) -> i64 {
    let own = level::own(spec).and_then(|own| own.requests.as_ref());
    let Some(whole) = get(own, "memory", units).filter(|bytes| *bytes > 0) else {
        return 0;
    };
    let assigned = api::pod::container_requests(spec);
    let assigned = assigned.get("memory").map_or(0, |amount| amount.value());
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    whole.saturating_sub(assigned) / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_in_thousandths() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("1.5", Some(1500)),
            ("1Ki", Some(1_024_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1e3", Some(1_000_000)),
            ("100n", Some(1)),
            ("", None),
            ("x", None),
            ("1Kib", None),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
    }

    #[test]
    fn a_field_without_a_limit_tells_that_of_the_pod_or_what_the_node_gives() {
        let pod: Pod = serde_json::from_str(
            r#"{"spec":{"resources":{"limits":{"cpu":"1250m","memory":"0"}},"containers":[
                {"name":"a"},{"name":"b","resources":{"limits":{"cpu":"3","memory":"0"}}}]}}"#,
        )
        .unwrap();
        let allocatable = [("cpu", 8000), ("memory", 4_096_000), ("hugepages-2Mi", 4_096_000)];
        let allocatable = BTreeMap::from(allocatable.map(|(name, amount)| (name.to_owned(), amount)));
        let told = |name: &str, resource: &str, divisor: Option<&str>| {
            let container = pods::container(&pod, name).unwrap();
            field(&pod, &container, resource, divisor, &allocatable).unwrap()
        };
        assert_eq!(told("a", "limits.cpu", None), "2");
        assert_eq!(told("a", "limits.cpu", Some("1m")), "1250");
        assert_eq!(told("a", "limits.memory", None), "4096", "none is no limit");
        assert_eq!(told("a", "requests.cpu", None), "0");
        assert_eq!(told("b", "limits.cpu", None), "3");
        assert_eq!(told("b", "limits.memory", None), "4096");
        assert_eq!(told("a", "limits.hugepages-2Mi", None), "0", "not the node's");
    }

    #[test]
    fn what_pods_have_together() {
        let reserved = [crate::node::reserve::parse("cpu=500m,memory=1Gi").unwrap()];
        let capacity = crate::node::reserve::parse("cpu=4,memory=8Gi").unwrap();
        let all = together(&capacity, &reserved);
        assert_eq!(
            (all.cpu_shares, all.memory, all.cpu_quota),
            (Some(3584), Some(7 << 30), None)
        );
        let spec: PodSpec = serde_json::from_str(
            r#"{"containers":[{"name":"a","resources":{"requests":{"cpu":"250m"}}},{"name":"b","resources":{"requests":{"cpu":"1"}}}]}"#,
        )
        .unwrap();
        assert_eq!(shares_together([&spec, &spec].into_iter()), 2560);
        assert_eq!(shares_together(std::iter::empty()), 2);
    }

    #[test]
    fn cpu_becomes_shares_and_quota() {
        let container: Container = serde_json::from_str(
            r#"{"name":"a","resources":{"limits":{"cpu":"500m","memory":"64Mi"},"requests":{"cpu":"250m"}}}"#,
        )
        .unwrap();
        let none = PodSpec::default();
        let limits = container_limits(&none, &container);
        assert_eq!(
            (limits.cpu_shares, limits.cpu_quota, limits.memory),
            (Some(256), Some(50_000), Some(64 << 20))
        );
        assert_eq!(container_limits(&none, &Container::default()).cpu_shares, Some(2));
    }

    #[test]
    fn a_pod_as_a_whole_bounds_itself_and_the_containers_that_say_nothing() {
        let spec: PodSpec = serde_json::from_str(
            r#"{"resources":{"requests":{"cpu":"500m","memory":"100Mi"},"limits":{"cpu":"1","memory":"200Mi"}},
                "containers":[{"name":"a","resources":{"requests":{"memory":"60Mi"},"limits":{"memory":"80Mi"}}},{"name":"b"}]}"#,
        )
        .unwrap();
        let values = |limits: Limits| {
            (
                limits.cpu_shares,
                limits.cpu_quota,
                limits.memory.map(|bytes| bytes >> 20),
            )
        };
        assert_eq!(values(pod_limits(&spec)), (Some(512), Some(100_000), Some(200)));
        let container = |index: usize| values(container_limits(&spec, &spec.containers[index]));
        assert_eq!(container(0), (Some(1024), Some(100_000), Some(80)));
        assert_eq!(container(1), (Some(1024), Some(100_000), Some(200)));
        let status = serde_json::from_str(r#"{"qosClass":"Burstable"}"#).unwrap();
        let pod = Pod {
            spec: Some(spec.clone()),
            status: Some(status),
            ..Pod::default()
        };
        // 40 MiB of the pod-level request are unassigned, 20 MiB for each container.
        let score = |index: usize| oom_score_adj(&pod, &spec.containers[index], 1000 << 20);
        assert_eq!((score(0), score(1)), (920, 980));
    }

    #[test]
    fn an_init_container_has_its_room_beside_the_sidecars_before_it() {
        let mut spec: PodSpec = serde_json::from_str(
            r#"{"initContainers":[
                {"name":"s","restartPolicy":"Always",
                 "resources":{"requests":{"cpu":"100m"},"limits":{"cpu":"100m","memory":"256Mi"}}},
                {"name":"i","resources":{"requests":{"cpu":"1"},"limits":{"cpu":"1","memory":"1Gi"}}}],
                "containers":[{"name":"a","resources":{"requests":{"cpu":"100m"},"limits":{"cpu":"200m","memory":"512Mi"}}}]}"#,
        )
        .unwrap();
        let values = |spec: &PodSpec| {
            let limits = pod_limits(spec);
            let memory = limits.memory.map(|bytes| bytes >> 20);
            (limits.cpu_shares, limits.cpu_quota, memory)
        };
        assert_eq!(values(&spec), (Some(1126), Some(110_000), Some(1280)));
        spec.init_containers.as_mut().unwrap()[1].resources = None;
        let both = (Some(204), Some(30_000), Some(768));
        assert_eq!(values(&spec), both, "one has the sidecar's limits");
        spec.init_containers.as_mut().unwrap().swap(0, 1);
        assert_eq!(values(&spec), (Some(204), None, None), "one without a limit");
        assert_eq!(values(&PodSpec::default()).0, Some(2));
        let spec = serde_json::from_str(r#"{"overhead":{"cpu":"250m"},"containers":[{"name":"a"}]}"#).unwrap();
        assert_eq!(values(&spec), (Some(2), None, None), "its overhead buys it no share");
    }

    #[test]
    fn a_sidecar_is_killed_no_sooner_than_what_it_serves() {
        let pod: Pod = serde_json::from_str(
            r#"{"status":{"qosClass":"Burstable"},"spec":{
                "initContainers":[{"name":"s","restartPolicy":"Always"},{"name":"i"}],
                "containers":[{"name":"a","resources":{"requests":{"memory":"100Mi"}}},
                              {"name":"b","resources":{"requests":{"memory":"200Mi"}}}]}}"#,
        )
        .unwrap();
        let init = pod.spec.as_ref().unwrap().init_containers.clone().unwrap();
        let score = |container: &Container| oom_score_adj(&pod, container, 1000 << 20);
        assert_eq!((score(&init[0]), score(&init[1])), (900, 999));
    }
}
