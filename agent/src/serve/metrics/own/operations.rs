//! Durations of the runtime's operations, of changes of cgroups, and of pods' starts
//! (`pkg/kubelet/metrics/metrics.go`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runtime::ExecResult;
use tokio::time::Instant;

use crate::serve::metrics::prometheus::{DEFAULTS, Family, Histogram, labels, number};

/// Upper bounds for the runtime's operations in seconds.
const RUNTIME: [f64; 14] = [
    0.005,
    0.0125,
    0.03125,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781_25,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];
/// Upper bounds for starts of pods in seconds.
const STARTS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// Operations since the agent began.
#[derive(Default)]
pub(crate) struct Operations(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    /// Durations and failures, by the names of the CRI's (`kuberuntime/instrumented_services.go`).
    runtime: BTreeMap<&'static str, (Histogram<{ RUNTIME.len() }>, u64)>,
    cgroups: BTreeMap<&'static str, Histogram<{ DEFAULTS.len() }>>,
    starts: Histogram<{ STARTS.len() }>,
}

impl Operations {
    /// Waits for an operation of the runtime, and counts it.
    pub(crate) async fn of_runtime<T, E>(
        &self,
        name: &'static str,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let done = operation.await;
        self.note(name, begun.elapsed(), done.is_err());
        done
    }

    /// Waits for a command in a container, and counts it: a failed or late one is a failed operation
    /// (`ExecSync` of `staging/src/k8s.io/cri-client/pkg/remote_runtime.go`).
    pub(crate) async fn of_command<E>(
        &self,
        command: impl Future<Output = Result<ExecResult, E>>,
    ) -> Result<ExecResult, E> {
        let begun = Instant::now();
        let done = command.await;
        let well = done
            .as_ref()
            .is_ok_and(|result| !result.timed_out && result.exit_code == 0);
        self.note("exec_sync", begun.elapsed(), !well);
        done
    }

    /// Counts an operation of the runtime.
    pub(crate) fn note(&self, name: &'static str, took: Duration, failed: bool) {
        let mut counted = self.lock();
        let (durations, failures) = counted.runtime.entry(name).or_default();
        durations.observe(&RUNTIME, took);
        *failures += u64::from(failed);
    }

    /// Waits for an operation on cgroups, and counts it.
    pub(crate) async fn of_cgroups<T>(&self, name: &'static str, operation: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = operation.await;
        let mut counted = self.lock();
        let durations = counted.cgroups.entry(name).or_default();
        durations.observe(&DEFAULTS, begun.elapsed());
        done
    }

    /// Counts a pod that runs this long after it was first seen.
    pub(crate) fn pod_started(&self, took: Duration) {
        self.lock().starts.observe(&STARTS, took);
    }

    pub(in crate::serve::metrics) fn families(&self) -> [Family<'static>; 5] {
        let counted = self.lock();
        let counts = |count: fn(&(Histogram<{ RUNTIME.len() }>, u64)) -> u64| -> Vec<(String, Option<f64>)> {
            let each = counted.runtime.iter();
            let each = each.map(|(name, of)| (labels(&[("operation_type", *name)]), count(of)));
            // As upstream's, a series begins with the first one.
            let begun = each.filter(|(_, count)| *count > 0);
            begun.map(|(labels, count)| (labels, Some(number(count)))).collect()
        };
        let (all, failed) = (counts(|(of, _)| of.count()), counts(|(_, failed)| *failed));
        let runtime = counted.runtime.iter();
        let cgroups = counted.cgroups.iter();
        [
            Family::new("kubelet_runtime_operations_total", all),
            Family::new("kubelet_runtime_operations_errors_total", failed),
            Family::new(
                "kubelet_runtime_operations_duration_seconds",
                runtime.flat_map(|(name, (of, _))| of.samples(&RUNTIME, &[("operation_type", *name)])),
            ),
            Family::new(
                "kubelet_cgroup_manager_duration_seconds",
                cgroups.flat_map(|(name, of)| of.samples(&DEFAULTS, &[("operation_type", *name)])),
            ),
            Family::new(
                "kubelet_pod_start_duration_seconds",
                counted.starts.samples(&STARTS, &[]),
            ),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_are_told_under_the_names_of_a_kubelets() {
        let operations = Operations::default();
        let slow = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Err::<(), _>("in vain")
        };
        assert_eq!(operations.of_runtime("run_podsandbox", slow).await, Err("in vain"));
        let fast = std::future::ready(Ok::<_, ()>(7));
        assert_eq!(operations.of_runtime("exec_sync", fast).await, Ok(7));
        operations.of_cgroups("update", std::future::ready(())).await;
        operations.pod_started(Duration::from_secs(50));
        let mut text = String::new();
        for family in operations.families() {
            family.write(&mut text, None);
        }
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"exec_sync\"} 1",
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",le=\"0.0125\"} 0",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",le=\"0.03125\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"exec_sync\",le=\"745.0580596923828\"} 1",
            "kubelet_cgroup_manager_duration_seconds_count{operation_type=\"update\"} 1",
            "kubelet_pod_start_duration_seconds_bucket{le=\"45\"} 0",
            "kubelet_pod_start_duration_seconds_bucket{le=\"60\"} 1",
            "kubelet_pod_start_duration_seconds_sum 50",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
        assert!(!text.contains("errors_total{operation_type=\"exec_sync\"}"), "{text}");
    }
}
