//! Findings for containers: why they do not start, terminate, or are not ready.

use serde_json::Value;

use super::finding::Finding;
use crate::client::api::text_at;

/// Phase of a pod that no longer exists; not a phase of the API.
pub(super) const GONE: &str = "Gone";

/// Returns findings for each container, in the order in which they start.
pub(super) fn explain(pod: &Value, warnings: &[&Value]) -> Vec<Finding> {
    let lists = [
        ("init container", "/status/initContainerStatuses"),
        ("container", "/status/containerStatuses"),
        ("ephemeral container", "/status/ephemeralContainerStatuses"),
    ];
    let mut found = Vec::new();
    for (kind, pointer) in lists {
        let statuses = pod.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
        for status in statuses {
            let container = Container {
                title: format!("{kind} {}", text_at(status, "/name")),
                name: text_at(status, "/name"),
                status,
                pod,
                warnings,
            };
            found.extend(container.explain());
        }
    }
    let placed = !text_at(pod, "/spec/nodeName").is_empty();
    let waits = text_at(pod, "/status/phase") == "Pending";
    if placed && waits && found.iter().all(|finding: &Finding| !finding.trouble) {
        found.push(preparing(warnings));
    }
    found
}

/// Explains a pod on its node without failed containers: the sandbox or a volume is not ready.
fn preparing(warnings: &[&Value]) -> Finding {
    let known = [
        (
            "FailedMount",
            "create what the volume names (`kubectl get configmaps,secrets`), or correct the name; the pod goes on by itself then",
        ),
        (
            "FailedCreatePodSandBox",
            "the node cannot set up the pod's network or namespaces: look into the log of its agent",
        ),
    ];
    let newest = |reason: &str| warnings.iter().rfind(|event| text_at(event, "/reason") == reason);
    for (reason, advice) in known {
        if let Some(event) = newest(reason) {
            let finding = Finding::trouble("The node cannot prepare the pod.").fact(text_at(event, "/message"));
            return finding.advise(advice);
        }
    }
    Finding::note("The node prepares the pod: it pulls images, or makes volumes and containers.")
        .advise("ask again in a moment")
}

struct Container<'a> {
    title: String,
    name: &'a str,
    status: &'a Value,
    pod: &'a Value,
    warnings: &'a [&'a Value],
}

impl Container<'_> {
    fn explain(&self) -> Option<Finding> {
        let state = self.status.get("state")?;
        if let Some(waiting) = state.get("waiting") {
            return self.waits(text_at(waiting, "/reason"), text_at(waiting, "/message"));
        }
        if let Some(terminated) = state.get("terminated") {
            return self.ended(terminated);
        }
        state.get("running")?;
        self.runs()
    }

    fn image(&self) -> &str {
        text_at(self.status, "/image")
    }

    fn waits(&self, reason: &str, message: &str) -> Option<Finding> {
        let title = &self.title;
        match reason {
            "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable" => {
                let finding = Finding::trouble(format!("The image of {title} cannot be pulled: {}", self.image()));
                Some(pull_advice(finding.fact(self.pull_message(message)), message))
            }
            "InvalidImageName" => {
                let finding = Finding::trouble(format!("{:?} of {title} is no image's name.", self.image()));
                Some(finding.fact(message).advise("correct the field image"))
            }
            "ErrImageNeverPull" => {
                let finding = Finding::trouble(format!("The image of {title} is not on the node: {}", self.image()));
                let finding = finding.fact("Its imagePullPolicy is Never.");
                Some(finding.advise("import it there (`skiff image import FILE`), or let it be pulled (IfNotPresent)"))
            }
            "CrashLoopBackOff" => {
                let finding = Finding::trouble(format!(
                    "{} ends again and again ({}).",
                    capital(title),
                    self.restarts()
                ));
                let finding = finding.fact("The node waits longer before each new start, up to five minutes.");
                Some(match self.status.pointer("/lastState/terminated") {
                    Some(last) => self.end(finding, last, true),
                    None => finding,
                })
            }
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "PostStartHookError" => {
                let finding = Finding::trouble(format!("{} cannot be started.", capital(title))).fact(message);
                Some(start_advice(finding, message))
            }
            // It waits for its turn, or is being created.
            _ => None,
        }
    }

    /// Returns the cause of a failed pull: during the back-off, only the event of the failure has
    /// it.
    fn pull_message<'a>(&'a self, message: &'a str) -> &'a str {
        let about = |event: &&&Value| {
            text_at(event, "/reason") == "Failed" && text_at(event, "/message").contains("Failed to pull image")
        };
        let told = |event: &&&Value| text_at(event, "/message").contains(self.image());
        let failed = self.warnings.iter().filter(about).rfind(told);
        match failed {
            Some(event) if message.starts_with("Back-off") => text_at(event, "/message"),
            Some(_) | None => message,
        }
    }

    fn restarts(&self) -> String {
        match self.status.get("restartCount").and_then(Value::as_i64).unwrap_or(0) {
            1 => "1 restart".to_owned(),
            count => format!("{count} restarts"),
        }
    }

    fn ended(&self, terminated: &Value) -> Option<Finding> {
        let what = match code(terminated) {
            // For a pod that is gone, only unexpected terminations are recorded.
            0 if text_at(self.pod, "/status/phase") == GONE => "was to run on, but ended.",
            0 => return None,
            _ => "has ended with a failure.",
        };
        let finding = Finding::trouble(format!("{} {what}", capital(&self.title)));
        Some(self.end(finding, terminated, false))
    }

    fn runs(&self) -> Option<Finding> {
        let title = capital(&self.title);
        let is = |field: &str| self.status.get(field).and_then(Value::as_bool);
        let sidecar_or_main = self.pod.pointer("/spec/containers").is_some() && is("ready") == Some(false);
        let plain_init = self.title.starts_with("init") && is("started") != Some(true);
        if self.title.starts_with("ephemeral") {
            return None;
        }
        if plain_init {
            let finding = Finding::note(format!("{title} runs; the containers after it wait for its end."));
            return Some(finding.show(self.name, false));
        }
        if sidecar_or_main {
            let probe = if is("started") == Some(false) {
                "Startup"
            } else {
                "Readiness"
            };
            let what = format!("{title} runs, but its {} probe does not succeed.", probe.to_lowercase());
            let failed = |event: &&&Value| {
                text_at(event, "/reason") == "Unhealthy" && text_at(event, "/message").starts_with(probe)
            };
            let event = self.warnings.iter().rfind(failed);
            let finding = Finding::trouble(what).fact(event.map_or("", |event| text_at(event, "/message")));
            let finding =
                finding.advise("check the probe's port, path and command, and whether the program needs longer");
            return Some(finding.show(self.name, false));
        }
        let last = self.status.pointer("/lastState/terminated")?;
        let finding = Finding::note(format!("{title} runs, but was restarted before ({}).", self.restarts()));
        Some(self.end(finding, last, true))
    }

    /// Adds how an instance terminated, and advice.
    fn end(&self, finding: Finding, terminated: &Value, previous: bool) -> Finding {
        let (code, reason) = (code(terminated), text_at(terminated, "/reason"));
        let (from, to) = (text_at(terminated, "/startedAt"), text_at(terminated, "/finishedAt"));
        let how = match reason {
            "OOMKilled" => "the kernel killed it, because it used more memory than it may".to_owned(),
            "" | "Error" | "Completed" => meaning(code).to_owned(),
            other => format!("{} ({other})", meaning(code)),
        };
        let told = if is_unstarted(reason) {
            "It never ran: its program could not be started.".to_owned()
        } else {
            format!("It ran from {from} to {to} and ended with exit code {code}: {how}.")
        };
        let finding = finding.fact(told).fact(text_at(terminated, "/message"));
        let killed = matches!(code, 137 | 143) && reason != "OOMKilled";
        let finding = match self.killer().filter(|_| killed) {
            Some((event, advice)) => finding.fact(text_at(event, "/message")).advise(advice),
            None => self.advise_end(finding, code, reason),
        };
        finding.show(self.name, previous)
    }

    /// Returns the latest warning that tells why the node killed it, and advice.
    fn killer(&self) -> Option<(&Value, &'static str)> {
        let own = format!("{{{}}}", self.name);
        let is_own = |event: &Value| {
            let place = text_at(event, "/involvedObject/fieldPath");
            place.is_empty() || place.ends_with(&own)
        };
        let mut newest = self.warnings.iter().rev().filter(|event| is_own(event));
        newest.find_map(|event| {
            let message = text_at(event, "/message");
            let probe = message.starts_with("Liveness") || message.starts_with("Startup");
            let advice = match text_at(event, "/reason") {
                "Unhealthy" if probe => {
                    "its probe failed, so the node killed it: check the probe, or give the program more time"
                }
                "FailedPostStartHook" => {
                    "its postStart hook failed, so the node killed it: check what the hook runs or asks"
                }
                "Evicted" if super::placement::wrote_too_much(message) => {
                    "it wrote more than it may, so the node ended it: raise its ephemeral-storage limit or the volume's sizeLimit, or have it write less"
                }
                "Evicted" => "the node was short of what the message names, so it ended the pod: request what it needs",
                _ => return None,
            };
            Some((*event, advice))
        })
    }

    fn advise_end(&self, finding: Finding, code: i64, reason: &str) -> Finding {
        match (reason, code) {
            ("OOMKilled", _) => {
                let limit = self.memory_limit();
                let now = if limit.is_empty() { "none of its own".to_owned() } else { limit };
                finding.advise(format!(
                    "raise resources.limits.memory (now {now}), or make the program use less"
                ))
            }
            (reason, code) if is_unstarted(reason) || matches!(code, 126 | 127) => {
                finding.advise("check command and args, and that the program is in the image and can be executed")
            }
            (_, 0) => finding.advise("it ends of its own accord: if it should run for ever, check its command; if not, use a Job or restartPolicy: OnFailure"),
            (_, 139) => finding.advise("the program has a fault of its own, or is built for another processor or libc"),
            _ => finding.ask_output(),
        }
    }

    fn memory_limit(&self) -> String {
        let lists = ["/spec/containers", "/spec/initContainers"];
        let mut all = lists
            .iter()
            .filter_map(|list| self.pod.pointer(list)?.as_array())
            .flatten();
        let own = all.find(|container| text_at(container, "/name") == self.name);
        own.map_or("", |own| text_at(own, "/resources/limits/memory"))
            .to_owned()
    }
}

fn is_unstarted(reason: &str) -> bool {
    matches!(reason, "ContainerCannotRun" | "StartError")
}

fn code(terminated: &Value) -> i64 {
    terminated.get("exitCode").and_then(Value::as_i64).unwrap_or(0)
}

/// Usual meaning of an exit code.
fn meaning(code: i64) -> &'static str {
    match code {
        0 => "it finished without a failure",
        126 => "the program cannot be executed",
        127 => "there is no such program",
        134 => "it aborted itself (SIGABRT)",
        137 => "it was killed (SIGKILL)",
        139 => "it touched memory that is not its own (SIGSEGV)",
        143 => "it was asked to end (SIGTERM)",
        129..=192 => "a signal ended it",
        _ => "the program says that it failed",
    }
}

fn pull_advice(finding: Finding, message: &str) -> Finding {
    let finding = finding
        .advise("check the image's name and tag, letter by letter")
        .advise("if the registry wants a login, name a secret in imagePullSecrets (`kubectl create secret docker-registry`)");
    if ["dial", "lookup", "connect", "dns", "timed out"]
        .iter()
        .any(|word| message.contains(word))
    {
        return finding.advise(
            "the node may not reach the registry: check its network, or import the image (`skiff image import FILE`)",
        );
    }
    finding.advise("without a registry, import the image on the node: `skiff image import FILE`")
}

fn start_advice(finding: Finding, message: &str) -> Finding {
    if message.contains("not found") && (message.contains("configmap") || message.contains("secret")) {
        return finding
            .advise("create it, or correct its name in env, envFrom or volumes; the pod goes on by itself then");
    }
    if message.contains("runAsNonRoot") || message.contains("run as root") || message.contains("non-root") {
        return finding.advise("set securityContext.runAsUser to another user than 0, or use an image that has one");
    }
    if message.contains("executable file not found") || message.contains("no such file") {
        return finding.advise("check command and args, and that the program is in the image");
    }
    finding.advise("the message tells what to mend in the pod")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
