//! Rules that decide if a terminated container may restart.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, ContainerStatus, PodSpec,
};

/// Action of a rule that restarts all containers.
const RESTART_ALL: &str = "RestartAllContainers";

/// Type of container in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Regular containers, which run in parallel.
    Main,
    /// Init containers.
    Init,
    /// Ephemeral containers, added for debugging.
    Ephemeral,
}

/// First rule of a container that matches `code`.
pub fn rule(container: &Container, code: i32) -> Option<&ContainerRestartRule> {
    let covers = |codes: &ContainerRestartRuleOnExitCodes| {
        let listed = codes.values.iter().flatten().any(|value| *value == code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    };
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.find(|rule| rule.exit_codes.as_ref().is_some_and(covers))
}

/// True if the rule restarts all containers of the pod.
pub fn restarts_all(rule: &ContainerRestartRule) -> bool {
    rule.action == RESTART_ALL
}

/// True if a rule of the pod may restart all of its containers.
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.flat_map(|container| container.restart_policy_rules.iter().flatten())
        .any(restarts_all)
}

/// Exit code of a terminated container.
pub fn code(status: &ContainerStatus) -> Option<i32> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    Some(ended.exit_code)
}

/// Status of the container `name`, probably the one at `index`.
pub fn status_at<'a>(statuses: &'a [ContainerStatus], index: usize, name: &str) -> Option<&'a ContainerStatus> {
    let there = statuses.get(index).filter(|status| status.name == name);
    there.or_else(|| statuses.iter().find(|status| status.name == name))
}

/// Rules by which containers of a group may leave the terminated state.
#[derive(Debug)]
pub struct Leaving<'a> {
    policy: Option<&'a str>,
    /// None: containers of the group never restart.
    containers: Option<&'a [Container]>,
    /// Containers by name, built if one is not at its index.
    names: OnceCell<BTreeMap<&'a str, &'a Container>>,
    /// True if all containers may restart.
    all: bool,
}

impl<'a> Leaving<'a> {
    /// The containers of a pod.
    pub fn of(spec: &'a PodSpec, group: Group) -> Self {
        let containers = match group {
            Group::Main => Some(spec.containers.as_slice()),
            Group::Init => Some(spec.init_containers.as_deref().unwrap_or_default()),
            Group::Ephemeral => None,
        };
        Self {
            policy: spec.restart_policy.as_deref(),
            containers,
            names: OnceCell::new(),
            all: may_restart_all(spec),
        }
    }

    /// True if the container `name`, probably the one at `index`, may restart after it exited with
    /// `code`: by one of its rules, by its own restart policy or by the pod's.
    pub fn allows(&self, index: usize, name: &str, code: i32) -> bool {
        let Some(containers) = self.containers else {
            return false;
        };
        if self.all {
            return true;
        }
        let there = containers.get(index).filter(|own| own.name == name);
        let own = there.or_else(|| self.named(containers, name));
        if own.is_some_and(|own| rule(own, code).is_some()) {
            return true;
        }
        match own.and_then(|own| own.restart_policy.as_deref()).or(self.policy) {
            Some("Never") => false,
            Some("OnFailure") => code != 0,
            Some(_) | None => true,
        }
    }
    /// First container with a name.
    fn named(&self, containers: &'a [Container], name: &str) -> Option<&'a Container> {
        let names = self.names.get_or_init(|| {
            let all = containers.iter().rev();
            all.map(|own| (own.name.as_str(), own)).collect()
        });
        names.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_are_found_wherever_they_stand() {
        let never = json!({"name": "never", "restartPolicy": "Never"});
        let always = json!({"name": "always", "restartPolicy": "Always"});
        let again = json!({"name": "never", "restartPolicy": "Always"});
        let spec = json!({"restartPolicy": "OnFailure", "containers": [always, never, again]});
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let leaving = Leaving::of(&spec, Group::Main);
        for index in [0, 1, 7] {
            assert!(leaving.allows(index, "always", 0), "{index}");
            assert!(
                !leaving.allows(index, "never", 1),
                "{index}: the first of a name counts"
            );
            assert!(!leaving.allows(index, "none", 0), "{index}");
            assert!(leaving.allows(index, "none", 1), "{index}");
        }
        assert!(leaving.allows(2, "never", 1), "this one is meant");
        assert!(!Leaving::of(&spec, Group::Ephemeral).allows(0, "always", 0));
    }
}
