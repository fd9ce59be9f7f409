//! Instance whose log a request reads.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use super::build;
use crate::Timestamp;
use crate::pod::observed::View;
use crate::pod::pods;

/// Returns the attempt whose log is meant, seen as `view` at `now`; or an error in upstream's
/// words.
pub fn logged(pod: &Pod, view: &View, container: &str, previous: bool, now: Timestamp) -> Result<u32, String> {
    let status = build(pod, view, "", now);
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    let name = pods::name(pod);
    let Some(status) = all.find(|status| status.name == container) else {
        return Err(format!("container \"{container}\" in pod \"{name}\" is not available"));
    };
    let text = |what: &str| format!("container \"{container}\" in pod \"{name}\" {what}");
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.clone().unwrap_or_default().terminated;
    let newest = u32::try_from(status.restart_count).unwrap_or(0);
    if previous {
        let found = last.and_then(|last| attempt(view, status, &last));
        let missing = || format!("previous terminated container \"{container}\" in pod \"{name}\" not found");
        return found.ok_or_else(missing);
    }
    if state.running.is_some() || view.is_hooked(container) {
        return Ok(newest);
    }
    if let Some(ended) = state.terminated.into_iter().chain(last).next() {
        return attempt(view, status, &ended).ok_or_else(|| text("is terminated"));
    }
    let reason = state.waiting.and_then(|waiting| waiting.reason).unwrap_or_default();
    let why = match reason.as_str() {
        "" => return Err(text("is waiting to start - no logs yet")),
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        other => other,
    };
    Err(text(&format!("is waiting to start: {why}")))
}

/// Returns the attempt with this end; `None` when no container was created.
fn attempt(view: &View, status: &ContainerStatus, ended: &ContainerStateTerminated) -> Option<u32> {
    let id = ended.container_id.as_deref().filter(|id| !id.is_empty())?;
    let instances = view.instances.get(&status.name).into_iter().flatten();
    let known = instances.into_iter().find(|instance| id.ends_with(&instance.id));
    // Instances of an earlier agent are known only to the API.
    let told = || {
        let newest = u32::try_from(status.restart_count).unwrap_or(0);
        let is_newest = status.container_id.as_deref() == Some(id);
        if is_newest { Some(newest) } else { newest.checked_sub(1) }
    };
    known.map(|instance| instance.attempt).or_else(told)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::observed::{Exit, Failure, Instance, Memory, State};

    fn instance(attempt: u32, state: State) -> Instance {
        Instance {
            id: format!("id{attempt}"),
            attempt,
            image: "i".to_owned(),
            image_id: String::new(),
            state,
            lost: false,
            reset: false,
        }
    }

    fn exited(seconds: i64) -> State {
        State::Exited(Exit {
            code: 1,
            reason: "Error".to_owned(),
            message: String::new(),
            started_at: None,
            finished_at: Timestamp::from_second(seconds).unwrap(),
        })
    }

    #[test]
    fn a_log_is_that_of_the_run_that_the_status_shows() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"restartPolicy": "Always", "containers": [{"name": "a", "image": "i"}]}}))
        .unwrap();
        let now = Timestamp::from_second(100).unwrap();
        let mut view = View::new(now, Vec::new());
        let check = |view: &View, newest: Result<u32, &str>, previous: Result<u32, &str>| {
            let asked = |previous| logged(&pod, view, "a", previous, now);
            let words = |text: Result<u32, &str>| text.map_err(str::to_owned);
            assert_eq!(asked(false), words(newest));
            assert_eq!(asked(true), words(previous));
        };
        let none = Err("previous terminated container \"a\" in pod \"p\" not found");
        let waits = "container \"a\" in pod \"p\" is waiting to start: ";
        check(&view, Err(&format!("{waits}ContainerCreating")), none);
        let failure = |reason: &str| {
            let failure = Failure {
                reason: reason.to_owned(),
                message: String::new(),
                until: now,
            };
            Box::new(Memory {
                failure: Some(failure),
                ..Memory::default()
            })
        };
        view.memory
            .insert("a".to_owned(), failure("CreateContainerConfigError"));
        check(&view, Err(&format!("{waits}CreateContainerConfigError")), none);
        view.memory.insert("a".to_owned(), failure("ImagePullBackOff"));
        check(&view, Err(&format!("{waits}trying and failing to pull image")), none);
        view.memory.clear();
        let mut put = |instances: Vec<Instance>| {
            view.instances.insert("a".to_owned(), instances);
            view.clone()
        };
        let running = State::Running { since: now };
        check(&put(vec![instance(0, running.clone())]), Ok(0), none);
        check(&put(vec![instance(0, exited(90)), instance(1, running)]), Ok(1), Ok(0));
        // The newest instance is being created: the last one that ran is both current and previous.
        check(
            &put(vec![instance(0, exited(90)), instance(1, State::Created)]),
            Ok(0),
            Ok(0),
        );
        assert_eq!(
            logged(&pod, &view, "b", false, now),
            Err("container \"b\" in pod \"p\" is not available".to_owned())
        );
    }
}
