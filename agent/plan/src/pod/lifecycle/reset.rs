//! Restart of all containers after an exit that matches a rule of one of them
//! (`RestartAllContainers`).

use k8s_openapi::api::core::v1::Pod;

use super::ending::hurry;
use crate::Timestamp;
use crate::pod::action::{Action, Plan, Why};
use crate::pod::observed::{Exit, Instance, State, View};
use crate::pod::pods;

/// True if a container's exit asks for a restart of all containers, and that restart is not
/// complete. A terminating pod is not restarted.
pub fn is_due(pod: &Pod, view: &View) -> bool {
    view.winding_down.is_none() && asks(pod, view)
}

fn asks(pod: &Pod, view: &View) -> bool {
    pods::all_containers(pod).any(|container| {
        let ended = view.current(&container.name).and_then(Instance::exit);
        ended.is_some_and(|exit| pods::restarts_all(container, exit.code))
    })
}

/// Stops what still runs, without hooks and with the shortest grace period; then no container
/// counts as having run.
pub(super) fn carry_on(pod: &Pod, view: &View, now: Timestamp, plan: &mut Plan) {
    let mut waiting = false;
    for container in pods::all_containers(pod) {
        let name = &container.name;
        let memory = view.memory.get(name);
        if memory.is_some_and(|memory| memory.starting) {
            waiting = true;
            continue;
        }
        if !view.latest(name).is_some_and(Instance::is_alive) {
            continue;
        }
        waiting = true;
        match memory.and_then(|memory| memory.stopping.as_ref()) {
            None => plan.actions.push(Action::Stop {
                container: name.clone(),
                why: Why::Rule,
                grace: 0,
            }),
            Some(stopping) => hurry(name, stopping, 0, now, plan),
        }
    }
    if !waiting {
        plan.actions.push(Action::Reset);
    }
}

/// Resumes a restart of all containers that an earlier agent began: marks the instances that exited
/// and had started before the rule asked for it.
pub fn resume(pod: &Pod, view: &mut View) {
    let wanted = |exit: &&Exit, container| pods::restarts_all(container, exit.code);
    let asked = pods::all_containers(pod).filter_map(|container| {
        let instances = view.instances.get(&container.name)?.iter();
        let asked = instances
            .filter_map(Instance::exit)
            .filter(|exit| wanted(exit, container));
        asked.map(|exit| exit.finished_at).max()
    });
    let Some(asked) = asked.max() else { return };
    let newest = || pods::all_containers(pod).filter_map(|container| view.latest(&container.name));
    if newest().any(|instance| instance.is_alive() && began(instance).is_none_or(|began| began < asked)) {
        return;
    }
    for container in pods::all_containers(pod) {
        let newest = view
            .instances
            .get_mut(&container.name)
            .and_then(|instances| instances.last_mut());
        if let Some(instance) = newest.filter(|instance| !instance.is_alive()) {
            instance.reset = began(instance).is_some_and(|began| began <= asked);
        }
    }
}

fn began(instance: &Instance) -> Option<Timestamp> {
    match &instance.state {
        State::Created => None,
        State::Running { since } => Some(*since),
        State::Exited(exit) => Some(exit.started_at.unwrap_or(exit.finished_at)),
    }
}
