//! Whether a container that ended may ever run again.

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, ContainerStatus, PodSpec,
};

/// The action of a rule that starts all containers again.
const RESTART_ALL: &str = "RestartAllContainers";

/// Which of a pod's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Those that run side by side.
    Main,
    /// Those before them.
    Init,
    /// Those that somebody added to look into the pod.
    Ephemeral,
}

/// The first rule of a container that speaks of `code`.
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

/// Whether a rule starts all containers of the pod again.
pub fn restarts_all(rule: &ContainerRestartRule) -> bool {
    rule.action == RESTART_ALL
}

/// Whether any rule of the pod may start all of its containers again.
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.flat_map(|container| container.restart_policy_rules.iter().flatten())
        .any(restarts_all)
}

/// The code of a container that has ended.
pub fn code(status: &ContainerStatus) -> Option<i32> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    Some(ended.exit_code)
}

/// Whether a container that ended with `code` may be told to have left its end: by a rule of its, its own policy or the pod's.
pub fn may_run_again(spec: &PodSpec, group: Group, name: &str, code: i32) -> bool {
    let of_group = match group {
        Group::Main => spec.containers.as_slice(),
        Group::Init => spec.init_containers.as_deref().unwrap_or_default(),
        Group::Ephemeral => return false,
    };
    if may_restart_all(spec) {
        return true;
    }
    let own = of_group.iter().find(|container| container.name == name);
    if own.is_some_and(|own| rule(own, code).is_some()) {
        return true;
    }
    let policy = own.and_then(|own| own.restart_policy.as_deref());
    match policy.or(spec.restart_policy.as_deref()) {
        Some("Never") => false,
        Some("OnFailure") => code != 0,
        Some(_) | None => true,
    }
}
