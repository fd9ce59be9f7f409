//! Validation of probes and lifecycle handlers.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};

use super::{Context, stop_signal};
use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{each, non_negative, one_of, port, port_or_name, required};

const NOT_FOR_INIT: &str = "may not be set for init containers without restartPolicy=Always";

/// Validates probes and lifecycle of a container that keeps running.
pub(super) fn of_container(errors: &mut Vec<Invalid>, container: &Container, path: &str, context: &Context<'_>) {
    if let Some(lifecycle) = &container.lifecycle {
        let path = format!("{path}.lifecycle");
        self::lifecycle(errors, lifecycle, &path, context.grace);
        let field = format!("{path}.stopSignal");
        stop_signal::check(errors, lifecycle.stop_signal.as_deref(), &field, context.os);
    }
    once(
        errors,
        container.liveness_probe.as_ref(),
        &format!("{path}.livenessProbe"),
    );
    if let Some(probe) = &container.readiness_probe {
        let path = format!("{path}.readinessProbe");
        self::probe(errors, probe, &path);
        if let Some(period) = probe.termination_grace_period_seconds {
            let field = format!("{path}.terminationGracePeriodSeconds");
            errors.push(Invalid::value(field, period, "must not be set for readinessProbes"));
        }
    }
    once(
        errors,
        container.startup_probe.as_ref(),
        &format!("{path}.startupProbe"),
    );
}

/// Validates a probe whose success threshold must be 1.
fn once(errors: &mut Vec<Invalid>, probe: Option<&Probe>, path: &str) {
    let Some(probe) = probe else { return };
    self::probe(errors, probe, path);
    if let Some(threshold) = probe.success_threshold.filter(|threshold| *threshold != 1) {
        errors.push(Invalid::value(
            format!("{path}.successThreshold"),
            threshold,
            "must be 1",
        ));
    }
}

/// Rejects probes and lifecycle of an init container that is not a sidecar.
pub(super) fn none(errors: &mut Vec<Invalid>, container: &Container, path: &str) {
    let set = [
        (container.lifecycle.is_some(), "lifecycle"),
        (container.liveness_probe.is_some(), "livenessProbe"),
        (container.readiness_probe.is_some(), "readinessProbe"),
        (container.startup_probe.is_some(), "startupProbe"),
    ];
    for (_, name) in set.into_iter().filter(|(set, _)| *set) {
        errors.push(Invalid::forbidden(format!("{path}.{name}"), NOT_FOR_INIT));
    }
}

fn probe(errors: &mut Vec<Invalid>, probe: &Probe, path: &str) {
    let handlers = Handlers {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.is_some(),
        sleep: None,
    };
    handlers.check(errors, path, i64::MAX);
    if let Some(grpc) = &probe.grpc {
        port(errors, &format!("{path}.grpc.port"), grpc.port);
    }
    let numbers = [
        (probe.initial_delay_seconds, "initialDelaySeconds"),
        (probe.timeout_seconds, "timeoutSeconds"),
        (probe.period_seconds, "periodSeconds"),
        (probe.success_threshold, "successThreshold"),
        (probe.failure_threshold, "failureThreshold"),
    ];
    for (number, name) in numbers {
        non_negative(errors, &format!("{path}.{name}"), i64::from(number.unwrap_or(0)));
    }
    if let Some(period) = probe.termination_grace_period_seconds.filter(|period| *period <= 0) {
        let field = format!("{path}.terminationGracePeriodSeconds");
        errors.push(Invalid::value(field, period, "must be greater than 0"));
    }
}

fn lifecycle(errors: &mut Vec<Invalid>, lifecycle: &Lifecycle, path: &str, grace: i64) {
    for (handler, name) in [(&lifecycle.post_start, "postStart"), (&lifecycle.pre_stop, "preStop")] {
        if let Some(handler) = handler {
            Handlers::of(handler).check(errors, &format!("{path}.{name}"), grace);
        }
    }
}

/// Handlers of a probe or hook; exactly one must be set.
struct Handlers<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: bool,
    sleep: Option<&'a SleepAction>,
}

impl<'a> Handlers<'a> {
    fn of(handler: &'a LifecycleHandler) -> Self {
        Self {
            exec: handler.exec.as_ref(),
            http_get: handler.http_get.as_ref(),
            tcp_socket: handler.tcp_socket.as_ref(),
            grpc: false,
            sleep: handler.sleep.as_ref(),
        }
    }

    fn check(&self, errors: &mut Vec<Invalid>, path: &str, grace: i64) {
        let set = [
            (self.exec.is_some(), "exec"),
            (self.http_get.is_some(), "httpGet"),
            (self.tcp_socket.is_some(), "tcpSocket"),
            (self.grpc, "grpc"),
            (self.sleep.is_some(), "sleep"),
        ];
        let mut set = set.into_iter().filter(|(set, _)| *set);
        if set.next().is_none() {
            errors.push(Invalid::required(path, "must specify a handler type"));
        }
        for (_, name) in set {
            errors.push(Invalid::forbidden(
                format!("{path}.{name}"),
                "may not specify more than 1 handler type",
            ));
        }
        if self
            .exec
            .is_some_and(|exec| exec.command.as_ref().is_none_or(Vec::is_empty))
        {
            errors.push(Invalid::required(format!("{path}.exec.command"), ""));
        }
        if let Some(action) = self.http_get {
            required(errors, &format!("{path}.httpGet.path"), action.path.as_deref());
            port_or_name(errors, &format!("{path}.httpGet.port"), &action.port);
            one_of(
                errors,
                &format!("{path}.httpGet.scheme"),
                action.scheme.as_deref(),
                &["HTTP", "HTTPS"],
            );
            for header in action.http_headers.iter().flatten() {
                let field = format!("{path}.httpGet.httpHeaders");
                each(errors, &field, &header.name, names::http_header(&header.name));
            }
        }
        if let Some(action) = self.tcp_socket {
            port_or_name(errors, &format!("{path}.tcpSocket.port"), &action.port);
        }
        if let Some(seconds) = self
            .sleep
            .map(|sleep| sleep.seconds)
            .filter(|seconds| !(0..=grace).contains(seconds))
        {
            let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
            errors.push(Invalid::value(format!("{path}.sleep"), seconds, detail));
        }
    }
}
