//! Single attempts of probes and hooks.

mod grpc;
mod headed;
mod http;
mod names;
mod places;
mod url;

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use agent_plan::container::environment;
use agent_plan::pod::pods;
use api::duration;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use runtime::ExecSpec;

use crate::context::Context;

pub(crate) use http::{Target, get};
pub(crate) use places::Places;

const OUTPUT_BYTES: usize = 10 * 1024;
/// `User-Agent` of probes.
const PROBE_AGENT: &str = "kube-probe/1.36";
/// `User-Agent` of lifecycle hooks.
pub(crate) const HOOK_AGENT: &str = "kube-lifecycle/1.36";

/// Result of an attempt.
pub(crate) enum Outcome {
    Success,
    /// Success with a warning.
    Warning(String),
    /// The probe failed.
    Failure(String),
    /// The probe could not be run.
    Error(String),
    /// The response was incomplete.
    Broken(String),
    /// Not run: too many other probes are in progress.
    Untried,
}

impl Outcome {
    /// Result of the probe, if it says something about the container.
    pub(crate) fn verdict(&self) -> Option<bool> {
        match self {
            Self::Success | Self::Warning(_) => Some(true),
            Self::Failure(_) => Some(false),
            Self::Error(_) | Self::Broken(_) | Self::Untried => None,
        }
    }
}

/// Container to probe.
pub(crate) struct Subject<'a> {
    pub(crate) context: &'a Context,
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a str,
    pub(crate) sandbox: &'a str,
    pub(crate) instance: &'a str,
    pub(crate) addresses: &'a [IpAddr],
}

impl Subject<'_> {
    fn container(&self) -> Result<Cow<'_, Container>, String> {
        pods::container(self.pod, self.container).ok_or_else(|| "the container is gone".to_owned())
    }

    fn port(&self, wanted: &IntOrString) -> Result<u16, String> {
        port(self.container()?.as_ref(), wanted)
    }

    /// Returns the command of an exec probe; that of a hook has no references.
    fn command(&self, words: &[String]) -> Result<Vec<String>, String> {
        let expanded = environment::probe_command(self.container()?.as_ref(), words);
        expanded.map_err(|error| error.to_string())
    }

    /// Returns the destination of a probe's or hook's request.
    pub(crate) fn target(&self, action: &HTTPGetAction, agent: &'static str) -> Result<Target, String> {
        let host = host(action.host.as_deref(), self.addresses);
        Ok(Target::new(action, host, self.port(&action.port)?, agent))
    }
}

/// Attempts without a result (`pkg/kubelet/prober/prober.go`, `maxProbeRetries`).
const ATTEMPTS: usize = 3;

/// Runs a probe until it has a result.
pub(crate) async fn run(subject: &Subject<'_>, probe: &Probe) -> Outcome {
    let mut outcome = ask(subject, probe).await;
    for _ in 1..ATTEMPTS {
        if !matches!(outcome, Outcome::Error(_) | Outcome::Broken(_)) {
            break;
        }
        outcome = ask(subject, probe).await;
    }
    outcome
}

async fn ask(subject: &Subject<'_>, probe: &Probe) -> Outcome {
    let timeout = u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1).max(1);
    let limit = Duration::from_secs(timeout);
    if let Some(exec) = &probe.exec {
        return match subject.command(exec.command.as_deref().unwrap_or_default()) {
            Ok(argv) => command(subject, argv, limit).await,
            Err(error) => Outcome::Error(error),
        };
    }
    if let Some(action) = &probe.http_get {
        return match subject.target(action, PROBE_AGENT) {
            Ok(target) => {
                let answer = http::attempt(subject.pod, &target, limit).await;
                answer.map_or(Outcome::Untried, judge)
            }
            Err(error) => Outcome::Error(error),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let port = match subject.port(&action.port) {
            Ok(port) => port,
            Err(error) => return Outcome::Error(error),
        };
        let address = join(&host(action.host.as_deref(), subject.addresses), port);
        let Some(way) = names::way(pods::uid(subject.pod), &address, limit).await else {
            return Outcome::Untried;
        };
        return match tokio::time::timeout(limit, way.connect(&address)).await {
            Ok(Ok(_)) => Outcome::Success,
            Ok(Err(error)) => Outcome::Failure(undialled(&address, &error)),
            Err(_) => Outcome::Failure(format!("dial tcp {address}: i/o timeout")),
        };
    }
    if let Some(action) = &probe.grpc {
        let port = match subject.port(&IntOrString::Int(action.port)) {
            Ok(port) => port,
            Err(error) => return Outcome::Error(error),
        };
        let address = join(&host(None, subject.addresses), port);
        let service = action.service.as_deref().unwrap_or_default();
        return match grpc::check(&address, service, limit).await {
            Ok(()) => Outcome::Success,
            Err(error) => Outcome::Failure(error),
        };
    }
    Outcome::Error(format!(
        "missing probe handler for {}:{}",
        pods::name(subject.pod),
        subject.container
    ))
}

/// As in `pkg/probe/http/http.go`: a body that cannot be read matters even if it is not used.
fn judge(answer: Result<http::Answer, http::Unanswered>) -> Outcome {
    let (status, body) = match answer {
        Ok(http::Answer { body: Err(error), .. }) => return Outcome::Broken(error),
        Ok(http::Answer {
            status, body: Ok(body), ..
        }) => (status, body),
        Err(unanswered) => return Outcome::Failure(unanswered.to_string()),
    };
    match status {
        200..300 => Outcome::Success,
        300..400 => {
            let body = String::from_utf8_lossy(&body);
            Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        _ => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

async fn command(subject: &Subject<'_>, argv: Vec<String>, limit: Duration) -> Outcome {
    let shown = argv.join(" ");
    let spec = ExecSpec {
        argv,
        env: Vec::new(),
        timeout: limit,
        output_limit: OUTPUT_BYTES,
    };
    let context = subject.context;
    let executed = context.parts.runtime.exec(subject.sandbox, subject.instance, spec);
    match context.operations.of_command(executed).await {
        Ok(result) if result.timed_out => Outcome::Failure(format!(
            "command timed out: \"{shown}\" timed out after {}",
            told(limit)
        )),
        Ok(result) if result.exit_code == 0 => Outcome::Success,
        Ok(result) => Outcome::Failure(String::from_utf8_lossy(&result.output).into_owned()),
        Err(error) => Outcome::Error(format!(
            "failed to exec in container: OCI runtime exec failed: exec failed: {}",
            image::chain(&error)
        )),
    }
}

/// Formats a duration as Go does.
fn told(time: Duration) -> String {
    duration::text(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

fn host(own: Option<&str>, addresses: &[IpAddr]) -> String {
    match own.filter(|host| !host.is_empty()) {
        Some(host) => host.to_owned(),
        None => addresses
            .first()
            .map_or_else(|| "127.0.0.1".to_owned(), ToString::to_string),
    }
}

/// Joins host and port, with brackets if the host contains colons.
fn join(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn port(container: &Container, wanted: &IntOrString) -> Result<u16, String> {
    let number = match wanted {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(name));
            named
                .map(|port| port.container_port)
                .or_else(|| name.parse().ok())
                .ok_or_else(|| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

fn undialled(address: &str, error: &std::io::Error) -> String {
    format!("dial tcp {address}: connect: {}", kernel_words(error))
}

/// Returns the kernel's message as Go has it: without the number, and in lower case.
fn kernel_words(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}
