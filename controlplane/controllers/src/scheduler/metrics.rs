//! Metrics of the scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use controlplane_plan::placement::{Displacement, Unplaceable};

use super::queue::{Attempts, Pending};
use crate::machinery::events::SCHEDULER;
use crate::machinery::metrics::page::{Buckets, Page};

/// Bounds of an attempt's duration.
const ATTEMPT: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
/// Bounds of the time from a pod's creation until it is bound.
const WHOLE: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
    1310.72, 2621.44, 5242.88,
];
const VICTIMS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
const TRIES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];
/// Number of attempts from which on pods share a label value.
const MANY: u32 = 15;

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

/// The counters.
#[derive(Debug, Clone)]
pub(super) struct SchedulerMetrics {
    attempts: BTreeMap<Outcome, (u64, Buckets)>,
    /// Durations of choices.
    choices: Buckets,
    whole: BTreeMap<u32, Buckets>,
    tries: Buckets,
    /// Number of preemption attempts.
    preemptions: u64,
    victims: Buckets,
}

impl Default for SchedulerMetrics {
    fn default() -> Self {
        Self {
            attempts: BTreeMap::new(),
            choices: Buckets::new(ATTEMPT),
            whole: BTreeMap::new(),
            tries: Buckets::new(TRIES),
            preemptions: 0,
            victims: Buckets::new(VICTIMS),
        }
    }
}

impl SchedulerMetrics {
    /// Records the last attempt at a pod.
    pub(super) fn attempt(&mut self, outcome: Outcome, attempts: Option<Attempts>) {
        let (count, durations) = self
            .attempts
            .entry(outcome)
            .or_insert_with(|| (0, Buckets::new(ATTEMPT)));
        *count += 1;
        durations.took(attempts.map(|attempts| attempts.begun.elapsed()).unwrap_or_default());
    }

    /// Records how long it took to choose a node, and victims where there is none
    /// (`schedulingAlgorithm`, `pkg/scheduler/schedule_one.go`).
    pub(super) fn chosen(&mut self, took: Duration) {
        self.choices.took(took);
    }

    /// Records a preemption attempt for a pod that is unschedulable, unless there are no nodes.
    pub(super) fn preemption(&mut self, why: &Unplaceable, found: Option<&Displacement>) {
        if why.misfits.is_empty() {
            return;
        }
        self.preemptions += 1;
        if let Some(found) = found {
            let victims = u32::try_from(found.victims.len()).unwrap_or(u32::MAX);
            self.victims.observe(victims.into());
        }
    }

    /// Records a bound pod.
    pub(super) fn bound(&mut self, attempts: Option<Attempts>) {
        self.attempt(Outcome::Scheduled, attempts);
        let Some(attempts) = attempts else { return };
        let whole = self.whole.entry(attempts.number.min(MANY));
        whole
            .or_insert_with(|| Buckets::new(WHOLE))
            .took(attempts.since.elapsed());
        self.tries.observe(attempts.number.into());
    }
}

/// Writes all metrics.
pub(super) fn write(
    page: &mut Page,
    pending: Pending,
    incoming: &BTreeMap<(&'static str, &'static str), u64>,
    metrics: &SchedulerMetrics,
) {
    page.gauge(
        "scheduler_pending_pods",
        "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means \
         number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler \
         attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never \
         attempted to schedule because they are gated.",
    );
    for (queue, number) in [
        ("active", pending.active),
        ("backoff", pending.backoff),
        ("gated", pending.gated),
        ("unschedulable", pending.unschedulable),
    ] {
        page.sample(&[("queue", queue)], number);
    }
    page.counter(
        "scheduler_queue_incoming_pods_total",
        "[STABLE] Number of pods added to scheduling queues by event and queue type.",
    );
    for ((queue, event), number) in incoming {
        page.sample(&[("event", event), ("queue", queue)], number);
    }
    page.counter(
        "scheduler_schedule_attempts_total",
        "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, \
         while 'error' means an internal scheduler problem.",
    );
    for (outcome, (number, _)) in &metrics.attempts {
        page.sample(&[("profile", SCHEDULER), ("result", outcome.name())], number);
    }
    page.histogram(
        "scheduler_scheduling_attempt_duration_seconds",
        "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
    );
    for (outcome, (_, durations)) in &metrics.attempts {
        page.buckets(&[("profile", SCHEDULER), ("result", outcome.name())], durations);
    }
    page.histogram(
        "scheduler_pod_scheduling_sli_duration_seconds",
        "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve \
         multiple scheduling attempts.",
    );
    for (number, durations) in &metrics.whole {
        let plus = if *number == MANY { "+" } else { "" };
        page.buckets(&[("attempts", &format!("{number}{plus}"))], durations);
    }
    page.histogram(
        "scheduler_pod_scheduling_attempts",
        "[STABLE] Number of attempts to successfully schedule a pod.",
    );
    page.buckets(&[], &metrics.tries);
    page.histogram(
        "scheduler_scheduling_algorithm_duration_seconds",
        "[ALPHA] Scheduling algorithm latency in seconds",
    );
    page.buckets(&[], &metrics.choices);
    write_preemptions(page, metrics);
}

fn write_preemptions(page: &mut Page, metrics: &SchedulerMetrics) {
    page.counter(
        "scheduler_preemption_attempts_total",
        "[STABLE] Total preemption attempts in the cluster till now",
    );
    page.sample(&[], metrics.preemptions);
    page.histogram(
        "scheduler_preemption_victims",
        "[STABLE] Number of selected preemption victims",
    );
    page.buckets(&[], &metrics.victims);
}

#[cfg(test)]
mod tests {
    use controlplane_plan::placement::{Misfit, Preemption};
    use controlplane_plan::pod::Pod;

    use super::*;
    use crate::machinery::cache::Key;
    use crate::scheduler::queue::SchedulingQueue;

    #[tokio::test(start_paused = true)]
    async fn pods_are_counted_on_their_way() {
        let (mut line, mut metrics) = (SchedulingQueue::default(), SchedulerMetrics::default());
        let key = |name: &str| Key::new("default", name);
        for name in ["a", "b", "c"] {
            line.add(key(name), 0, false);
        }
        assert_eq!(line.pending().active, 3);
        let first = line.take().unwrap();
        metrics.bound(line.attempts(&first));
        line.settled(&first);
        let second = line.take().unwrap();
        metrics.attempt(Outcome::Unschedulable, line.attempts(&second));
        let pod: Pod = serde_json::from_str("{}").unwrap();
        line.refuse(second.clone(), &pod, Duration::from_mins(5));
        let third = line.take().unwrap();
        line.gate(&third);
        let pending = Pending {
            unschedulable: 1,
            gated: 1,
            ..Pending::default()
        };
        assert_eq!(line.pending(), pending);
        tokio::time::advance(Duration::from_mins(5)).await;
        assert_eq!(line.take().as_ref(), Some(&second));
        metrics.bound(line.attempts(&second));
        let mut nowhere = Unplaceable {
            misfits: Vec::new(),
            of_pod: None,
            preemption: Preemption::Vain,
        };
        metrics.preemption(&nowhere, None);
        nowhere.misfits.push(Misfit::unresolvable("full"));
        let victim = serde_json::json!({ "metadata": { "name": "v" }, "spec": { "containers": [] } });
        let victim = std::sync::Arc::new(serde_json::from_value(victim).unwrap());
        let displacement = Displacement {
            node: "n".to_owned(),
            victims: vec![victim; 3],
        };
        for found in [None, Some(&displacement)] {
            metrics.preemption(&nowhere, found);
        }
        metrics.chosen(Duration::from_millis(3));
        let mut page = Page::default();
        write(&mut page, line.pending(), &line.incoming, &metrics);
        let page = page.text();
        let profile = "profile=\"default-scheduler\"";
        for line in [
            "scheduler_pending_pods{queue=\"gated\"} 1",
            "scheduler_queue_incoming_pods_total{event=\"UnschedulablePodAdd\",queue=\"active\"} 3",
            "scheduler_queue_incoming_pods_total{event=\"ScheduleAttemptFailure\",queue=\"unschedulable\"} 1",
            "scheduler_queue_incoming_pods_total{event=\"BackoffComplete\",queue=\"active\"} 1",
            &format!("scheduler_schedule_attempts_total{{{profile},result=\"scheduled\"}} 2"),
            &format!("scheduler_schedule_attempts_total{{{profile},result=\"unschedulable\"}} 1"),
            &format!(
                "scheduler_scheduling_attempt_duration_seconds_bucket{{{profile},result=\"scheduled\",le=\"0.001\"}} 2"
            ),
            "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"1\",le=\"0.01\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_sum{attempts=\"2\"} 300",
            "scheduler_pod_scheduling_attempts_bucket{le=\"1\"} 1",
            "scheduler_pod_scheduling_attempts_count 2",
            "scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.002\"} 0",
            "scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.004\"} 1",
            "# TYPE scheduler_preemption_attempts_total counter",
            "scheduler_preemption_attempts_total 2",
            "# TYPE scheduler_preemption_victims histogram",
            "scheduler_preemption_victims_bucket{le=\"2\"} 0",
            "scheduler_preemption_victims_bucket{le=\"4\"} 1",
            "scheduler_preemption_victims_sum 3",
        ] {
            assert!(page.lines().any(|own| own == line), "{line}\n{page}");
        }
    }
}
