//! Pod Security Standards: restrictions on the pods of a namespace, configured by its labels.
//! Levels, versions and wording are upstream's.

mod baseline;
mod host;
mod policy;
mod restricted;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Capabilities, Container, PodSecurityContext, PodSpec, SecurityContext};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use policy::{Demand, Level, Policy, Version};

/// Violation of a pod security level.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// Short reason, such as `hostPort`.
    pub reason: &'static str,
    /// Containers and fields that violate the level.
    pub detail: String,
}

fn finding(reason: &'static str, detail: String) -> Finding {
    Finding { reason, detail }
}

type Evaluation = fn(&Pod<'_>) -> Option<Finding>;

/// Check of a level, with upstream's ID.
struct Check {
    id: &'static str,
    /// First version with the check.
    since: u32,
    /// Check of `baseline` that it replaces, from the same version on.
    replaces: Option<&'static str>,
    evaluate: Evaluation,
}

impl Check {
    const fn new(id: &'static str, since: u32, evaluate: Evaluation) -> Self {
        Self {
            id,
            since,
            replaces: None,
            evaluate,
        }
    }

    const fn instead_of(mut self, id: &'static str) -> Self {
        self.replaces = Some(id);
        self
    }
}

/// A pod as the checks see it.
struct Pod<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a PodSpec,
    version: Version,
}

/// Violations of a pod; empty if it fits.
pub fn evaluate(demand: Demand, metadata: &ObjectMeta, spec: &PodSpec) -> Vec<Finding> {
    let pod = Pod {
        metadata,
        spec,
        version: demand.version,
    };
    let stricter = match demand.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => &[],
        Level::Restricted => restricted::CHECKS,
    };
    // Same as upstream's `populate`
    // (`staging/src/k8s.io/pod-security-admission/policy/registry.go`).
    let holds = |check: &&Check| demand.version.reaches(check.since);
    let replaced: Vec<&str> = stricter
        .iter()
        .filter(holds)
        .filter_map(|check| check.replaces)
        .collect();
    let own = baseline::CHECKS.iter().filter(|check| !replaced.contains(&check.id));
    let checks = own.chain(stricter).filter(holds);
    checks.filter_map(|check| (check.evaluate)(&pod)).collect()
}

/// Findings as one text: `hostPort (container "c" uses hostPort 80), privileged (…)`.
pub fn details(findings: &[Finding]) -> String {
    let texts: Vec<String> = findings
        .iter()
        .map(|finding| format!("{} ({})", finding.reason, finding.detail))
        .collect();
    texts.join(", ")
}

/// The reasons alone: `hostPort, privileged`.
pub fn reasons(findings: &[Finding]) -> String {
    let reasons: Vec<&str> = findings.iter().map(|finding| finding.reason).collect();
    reasons.join(", ")
}

/// Container of any type.
struct Contained<'a> {
    name: &'a str,
    /// None for an ephemeral container, which has neither ports nor probes.
    container: Option<&'a Container>,
    context: Option<&'a SecurityContext>,
}

impl<'a> Contained<'a> {
    fn capabilities(&self) -> Option<&'a Capabilities> {
        self.context?.capabilities.as_ref()
    }
}

impl<'a> Pod<'a> {
    fn context(&self) -> Option<&'a PodSecurityContext> {
        self.spec.security_context.as_ref()
    }

    /// All containers: init containers, regular and ephemeral ones.
    fn containers(&self) -> impl Iterator<Item = Contained<'a>> + use<'a> {
        let main = self.spec.init_containers.iter().flatten().chain(&self.spec.containers);
        let main = main.map(|container| Contained {
            name: &container.name,
            container: Some(container),
            context: container.security_context.as_ref(),
        });
        let added = self.spec.ephemeral_containers.iter().flatten();
        main.chain(added.map(|container| Contained {
            name: &container.name,
            container: None,
            context: container.security_context.as_ref(),
        }))
    }

    /// Names of the containers for which a condition holds.
    fn named(&self, holds: impl Fn(&Contained<'a>) -> bool) -> Vec<&'a str> {
        let chosen = self.containers().filter(|container| holds(container));
        chosen.map(|container| container.name).collect()
    }

    /// True if the pod has a user namespace, for which newer versions relax some rules.
    fn has_own_users(&self) -> bool {
        self.spec.host_users == Some(false) && self.version.reaches(35)
    }

    /// True if the pod runs on Windows, where some rules do not apply.
    fn is_windows(&self) -> bool {
        self.version.reaches(25) && self.spec.os.as_ref().is_some_and(|os| os.name == "windows")
    }
}

/// `container "a"`, `containers "a", "b"`
fn containers(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quoted(names))
}

/// `pod`, `container "a"` or `pod and containers "a", "b"`; none if neither is set.
fn setters(pod: bool, names: &[&str]) -> Option<String> {
    match (pod, names.is_empty()) {
        (false, true) => None,
        (true, true) => Some("pod".to_owned()),
        (false, false) => Some(containers(names)),
        (true, false) => Some(format!("pod and {}", containers(names))),
    }
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    names.join(", ")
}

fn plural(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

fn sorted<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    values.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests;
