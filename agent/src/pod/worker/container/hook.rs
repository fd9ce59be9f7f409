//! Lifecycle hooks: postStart and preStop.

use std::sync::Arc;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::pod::action::Why;
use agent_plan::pod::observed::{Stage, Stopping};
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::LifecycleHandler;
use runtime::ExecSpec;
use tracing::warn;

use crate::client::events::Kind;
use crate::pod::worker::{Done, Worker};
use crate::probe::{self, Subject};

const OUTPUT_BYTES: usize = 16 * 1024;
const POST_START_SECONDS: u64 = 3600;

/// Lifecycle hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    PostStart,
    PreStop,
}

impl Worker {
    pub(in crate::pod::worker) fn hook(&mut self, container: &str, hook: Hook) {
        let handler = pods::container(&self.pod, container).and_then(|container| {
            let hooks = container.lifecycle.as_ref()?;
            match hook {
                Hook::PostStart => hooks.post_start.clone(),
                Hook::PreStop => hooks.pre_stop.clone(),
            }
        });
        let (Some(handler), Some(instance)) = (handler, self.instance_id(container)) else {
            return;
        };
        let (context, pod, sandbox) = (Arc::clone(&self.context), Arc::clone(&self.pod), self.sandbox_id());
        let addresses = self.pod_addresses();
        let container = container.to_owned();
        let limit = match hook {
            Hook::PostStart => Duration::from_secs(POST_START_SECONDS),
            Hook::PreStop => {
                let memory = self.view.memory.get(&container);
                time_left(memory.and_then(|memory| memory.stopping.as_ref()), self.context.now())
            }
        };
        self.tasks.spawn(async move {
            let subject = Subject {
                context: &context,
                pod: &pod,
                container: &container,
                sandbox: &sandbox,
                instance: &instance,
                addresses: &addresses,
            };
            let outcome = match tokio::time::timeout(limit, run(&subject, &handler, limit)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(format!("timed out after {} s", limit.as_secs())),
            };
            Done::Hooked {
                container,
                instance,
                hook,
                outcome,
            }
        });
    }

    pub(in crate::pod::worker) fn hooked(
        &mut self,
        container: &str,
        instance: &str,
        hook: Hook,
        outcome: Result<(), String>,
    ) {
        if self.instance_id(container).as_deref() != Some(instance) {
            return;
        }
        match (hook, outcome) {
            (Hook::PostStart, Ok(())) => self.memory(container).post_start = false,
            (Hook::PostStart, Err(error)) => {
                // The event does not have the error: the output of a hook may contain secrets.
                warn!(pod = %self.id(), container, error, "the postStart hook failed");
                let recorder = self.context.recorder.clone();
                let message = "PostStartHook failed".to_owned();
                recorder.pod(
                    &self.pod,
                    Some(container),
                    Kind::Warning,
                    "FailedPostStartHook",
                    message,
                );
                let action = agent_plan::pod::action::Action::Stop {
                    container: container.to_owned(),
                    why: Why::PostStart,
                    grace: pods::grace(&self.pod),
                };
                let now = self.context.now();
                if self.memory(container).stopping.is_none() {
                    self.act(action, now);
                }
            }
            (Hook::PreStop, outcome) => {
                // A hook that was cut off at the end of the grace period did not fail.
                let waited_for = self.memory(container).stopping.as_ref();
                let waited_for = waited_for.is_some_and(|stopping| stopping.stage == Stage::PreStop);
                if let Err(error) = outcome
                    && waited_for
                {
                    warn!(pod = %self.id(), container, error, "the preStop hook failed");
                    let message = "PreStopHook failed".to_owned();
                    let recorder = self.context.recorder.clone();
                    recorder.pod(&self.pod, Some(container), Kind::Warning, "FailedPreStopHook", message);
                }
                self.after_pre_stop(container);
            }
        }
    }

    pub(in crate::pod::worker) fn pod_addresses(&self) -> Vec<std::net::IpAddr> {
        match &self.view.sandbox {
            agent_plan::pod::observed::Sandbox::Ready { addresses } => addresses.clone(),
            agent_plan::pod::observed::Sandbox::Absent
            | agent_plan::pod::observed::Sandbox::Preparing
            | agent_plan::pod::observed::Sandbox::Failed { .. }
            | agent_plan::pod::observed::Sandbox::Removing
            | agent_plan::pod::observed::Sandbox::Removed => Vec::new(),
        }
    }
}

/// Time of a preStop hook: the stop's grace period, which may be longer than the pod's. The stop
/// itself goes on at its end; the second more leaves that to it.
fn time_left(stopping: Option<&Stopping>, now: Timestamp) -> Duration {
    let left = stopping.map(|stopping| stopping.deadline.duration_since(now));
    let left = left.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default();
    left.saturating_add(Duration::from_secs(1))
}

async fn run(subject: &Subject<'_>, handler: &LifecycleHandler, limit: Duration) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        let spec = ExecSpec {
            argv: exec.command.clone().unwrap_or_default(),
            env: Vec::new(),
            timeout: limit,
            output_limit: OUTPUT_BYTES,
        };
        let context = subject.context;
        let executed = context.parts.runtime.exec(subject.sandbox, subject.instance, spec);
        let result = context.operations.of_command(executed).await;
        let result = result.map_err(|error| image::chain(&error))?;
        return match result.exit_code {
            0 => Ok(()),
            code => Err(format!(
                "command exited with {code}: {}",
                String::from_utf8_lossy(&result.output)
            )),
        };
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    if let Some(action) = &handler.http_get {
        let target = subject.target(action, probe::HOOK_AGENT)?;
        // Any response counts as success. A server without TLS is requested without it.
        let Err(error) = probe::get(subject.pod, &target, limit).await else {
            return Ok(());
        };
        let Some(insecure) = target.insecure(&error) else {
            return Err(error.to_string());
        };
        if probe::get(subject.pod, &insecure, limit).await.is_err() {
            return Err(error.to_string());
        }
        let host = insecure.authority();
        let message = format!("request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded");
        let recorder = &subject.context.recorder;
        recorder.pod(subject.pod, None, Kind::Warning, "LifecycleHTTPFallback", message);
        return Ok(());
    }
    Err("invalid handler".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_has_the_time_of_its_stop() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let stopping = Stopping {
            deadline: at(120),
            stage: Stage::PreStop,
        };
        let left = |now: i64| time_left(Some(&stopping), at(now)).as_secs();
        assert_eq!((left(0), left(90), left(200)), (121, 31, 1));
        assert_eq!(time_left(None, at(0)).as_secs(), 1);
    }
}
