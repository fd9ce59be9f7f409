//! Counters of `/metrics/probes`: number, results and durations of probes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agent_plan::pod::pods;
use agent_plan::pod::probe::Kind;
use k8s_openapi::api::core::v1::Pod;

use super::prometheus::{DEFAULTS, Family, Histogram, labels, number};

/// Probe counters by the pods' UIDs; those of removed pods are dropped.
#[derive(Default)]
pub(crate) struct Probes(Mutex<BTreeMap<String, OfPod>>);

/// By container and type of probe.
type OfPod = BTreeMap<(String, &'static str), Counted>;

#[derive(Default)]
struct Counted {
    namespace: String,
    pod: String,
    failed: u64,
    /// Durations of successful probes, as upstream.
    successful: Histogram<{ DEFAULTS.len() }>,
}

impl Probes {
    /// Counts a probe with a result.
    pub(crate) fn count(&self, pod: &Pod, container: &str, kind: Kind, success: bool, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pod = all.entry(pods::uid(pod).to_owned()).or_default();
        let counted = of_pod.entry((container.to_owned(), kind.title())).or_default();
        pods::namespace(pod).clone_into(&mut counted.namespace);
        pods::name(pod).clone_into(&mut counted.pod);
        if !success {
            counted.failed += 1;
            return;
        }
        counted.successful.observe(&DEFAULTS, took);
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    pub(super) fn tell(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut results, mut times) = (Vec::new(), Vec::new());
        for (uid, of_pod) in all.iter() {
            for ((container, kind), counted) in of_pod {
                let names = [
                    ("container", container.as_str()),
                    ("namespace", &counted.namespace),
                    ("pod", &counted.pod),
                ];
                let successful = counted.successful.count();
                for (result, count) in [("failed", counted.failed), ("successful", successful)] {
                    let more = [("pod_uid", uid.as_str()), ("probe_type", kind), ("result", result)];
                    let known = (count > 0).then(|| number(count));
                    results.push((labels(&[names.as_slice(), &more].concat()), known));
                }
                if successful > 0 {
                    let names = [names.as_slice(), &[("probe_type", kind)]].concat();
                    times.extend(counted.successful.samples(&DEFAULTS, &names));
                }
            }
        }
        let mut text = String::new();
        Family::new("prober_probe_total", results).write(&mut text, None);
        Family::new("prober_probe_duration_seconds", times).write(&mut text, None);
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn probes_are_counted_until_their_pod_is_gone() {
        let pod = json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let probes = Probes::default();
        probes.count(&pod, "c", Kind::Liveness, true, Duration::from_millis(30));
        probes.count(&pod, "c", Kind::Liveness, true, Duration::from_secs(20));
        probes.count(&pod, "c", Kind::Liveness, false, Duration::from_secs(1));
        let text = probes.tell();
        let own = "container=\"c\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("prober_probe_total{{{own},pod_uid=\"u\",probe_type=\"Liveness\",result=\"failed\"}} 1"),
            format!("prober_probe_total{{{own},pod_uid=\"u\",probe_type=\"Liveness\",result=\"successful\"}} 2"),
            format!("prober_probe_duration_seconds_bucket{{{own},probe_type=\"Liveness\",le=\"0.025\"}} 0"),
            format!("prober_probe_duration_seconds_bucket{{{own},probe_type=\"Liveness\",le=\"0.05\"}} 1"),
            format!("prober_probe_duration_seconds_bucket{{{own},probe_type=\"Liveness\",le=\"+Inf\"}} 2"),
            format!("prober_probe_duration_seconds_sum{{{own},probe_type=\"Liveness\"}} 20.03"),
            format!("prober_probe_duration_seconds_count{{{own},probe_type=\"Liveness\"}} 2"),
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
        probes.forget("u");
        assert_eq!(probes.tell(), "");
    }
}
