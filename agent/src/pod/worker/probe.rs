//! Runs probes and handles their results.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use agent_plan::pod::probe::Kind;
use tokio::time::Instant;

use super::{Done, Worker};
use crate::client::events;

pub(crate) use crate::probe::Outcome;

impl Worker {
    fn probe_state(&mut self, container: &str, kind: Kind) -> Option<&mut agent_plan::pod::probe::Probe> {
        let memory = self.memory(container);
        match kind {
            Kind::Startup => memory.startup.as_mut(),
            Kind::Readiness => memory.readiness.as_mut(),
            Kind::Liveness => memory.liveness.as_mut(),
        }
    }

    pub(super) fn probe(&mut self, container: &str, kind: Kind, now: Timestamp) {
        let specification = pods::container(&self.pod, container).and_then(|container| match kind {
            Kind::Startup => container.startup_probe.clone(),
            Kind::Readiness => container.readiness_probe.clone(),
            Kind::Liveness => container.liveness_probe.clone(),
        });
        let (Some(specification), Some(instance)) = (specification, self.instance_id(container)) else {
            return;
        };
        if let Some(state) = self.probe_state(container, kind) {
            state.begin(now);
        }
        let (context, pod, sandbox) = (Arc::clone(&self.context), Arc::clone(&self.pod), self.sandbox_id());
        let addresses = self.pod_addresses();
        // Exec probes are limited by the runtime.
        let places = specification.exec.is_none().then(|| self.places.clone());
        let period = u64::try_from(specification.period_seconds.unwrap_or(10)).unwrap_or(1);
        let period = Duration::from_secs(period.max(1));
        let container = container.to_owned();
        self.tasks.spawn(async move {
            let subject = crate::probe::Subject {
                context: &context,
                pod: &pod,
                container: &container,
                sandbox: &sandbox,
                instance: &instance,
                addresses: &addresses,
            };
            let place = match &places {
                Some(places) => Some(places.take(period).await),
                None => None,
            };
            let began = Instant::now();
            let outcome = match &place {
                Some(None) => Outcome::Untried,
                Some(Some(_)) | None => crate::probe::run(&subject, &specification).await,
            };
            if let Some(success) = outcome.verdict() {
                context.probes.count(&pod, &container, kind, success, began.elapsed());
            }
            Done::Probed {
                container,
                instance,
                kind,
                outcome,
            }
        });
    }

    pub(super) fn probed(&mut self, container: &str, instance: &str, kind: Kind, outcome: Outcome) {
        if self.instance_id(container).as_deref() != Some(instance) {
            return;
        }
        let now = self.context.now();
        let stopping = self.memory(container).stopping.is_some();
        let worth_an_event = self
            .probe_state(container, kind)
            .is_some_and(|state| match outcome.verdict() {
                Some(success) => state.record(success, now),
                None => state.discard(now),
            });
        let warns = matches!(outcome, Outcome::Warning(_));
        if !(worth_an_event || warns) || stopping && kind != Kind::Readiness {
            return;
        }
        let (reason, message) = match outcome {
            Outcome::Success | Outcome::Untried => return,
            Outcome::Warning(text) => ("ProbeWarning", format!("{} probe warning: {text}", kind.title())),
            Outcome::Failure(text) => ("Unhealthy", format!("{} probe failed: {text}", kind.title())),
            Outcome::Error(text) => ("Unhealthy", errored(kind, "unknown", &text)),
            Outcome::Broken(text) => ("Unhealthy", errored(kind, "failure", &text)),
        };
        self.context
            .recorder
            .pod(&self.pod, Some(container), events::Kind::Warning, reason, message);
    }
}

fn errored(kind: Kind, state: &str, text: &str) -> String {
    format!("{} probe errored and resulted in {state} state: {text}", kind.title())
}
