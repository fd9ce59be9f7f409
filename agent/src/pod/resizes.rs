//! Running pods whose resize is deferred. Available room is offered to them in upstream's order: by
//! priority, then class Guaranteed first, then the longest wait.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;

/// By UID, from the first attempt without room until the resize is allocated or withdrawn.
#[derive(Debug, Default)]
pub(crate) struct ResizeRequests(Mutex<BTreeMap<String, ResizeRequest>>);

#[derive(Debug)]
struct ResizeRequest {
    pod: Arc<Pod>,
    since: Timestamp,
}

/// Sort key, most significant part first; the least is next.
type Rank = (Reverse<i32>, bool, Timestamp);

fn rank(pod: &Pod, since: Timestamp) -> Rank {
    let spec = pod.spec.as_ref();
    let priority = spec.and_then(|spec| spec.priority).unwrap_or(0);
    let guaranteed = spec.is_some_and(|spec| api::pod::qos(spec) == "Guaranteed");
    (Reverse(priority), !guaranteed, since)
}

impl ResizeRequests {
    /// Adds a pod, or keeps the time since which it waits.
    pub(crate) fn wait(&self, pod: &Arc<Pod>, now: Timestamp) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = all.get(pods::uid(pod)).map_or(now, |known| known.since);
        let pod = Arc::clone(pod);
        all.insert(pods::uid(&pod).to_owned(), ResizeRequest { pod, since });
    }

    /// Removes a pod.
    pub(crate) fn leave(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Returns the pods that are offered room before this one.
    pub(crate) fn before(&self, pod: &Pod, now: Timestamp) -> Vec<Arc<Pod>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = all.get(pods::uid(pod)).map_or(now, |known| known.since);
        let own = rank(pod, since);
        let others = all.iter().filter(|(uid, _)| *uid != pods::uid(pod));
        let earlier = others.filter(|(_, request)| rank(&request.pod, request.since) < own);
        earlier.map(|(_, request)| Arc::clone(&request.pod)).collect()
    }
}

#[cfg(test)]
mod tests {
    use agent_plan::after;
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, priority: i32, limit: &str) -> Arc<Pod> {
        let amounts = json!({"cpu": "1", "memory": "1Mi"});
        let resources = match limit {
            "" => json!({"requests": amounts}),
            _ => json!({"requests": amounts, "limits": amounts}),
        };
        let spec = json!({"priority": priority, "containers": [{"name": "a", "resources": resources}]});
        Arc::new(serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).unwrap())
    }

    #[test]
    fn the_first_is_the_most_important_then_the_guaranteed_then_who_waited_longest() {
        let (vital, guaranteed, early, late) = (pod("v", 9, ""), pod("g", 0, "x"), pod("e", 0, ""), pod("l", 0, ""));
        let resizes = ResizeRequests::default();
        let at = |second| after(Timestamp::UNIX_EPOCH, second);
        for (second, waiting) in [&early, &late, &guaranteed, &vital, &early].into_iter().enumerate() {
            resizes.wait(waiting, at(i64::try_from(second).unwrap()));
        }
        let before = |pod: &Pod| {
            let others = resizes.before(pod, at(99));
            others
                .iter()
                .map(|other| pods::uid(other))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(before(&vital), "");
        assert_eq!(before(&guaranteed), "v");
        assert_eq!(
            before(&early),
            "g v",
            "it began to wait before it was asked about again"
        );
        assert_eq!(before(&late), "e g v");
        assert_eq!(before(&pod("n", 0, "x")), "g v", "who comes now has not waited");
        resizes.leave("v");
        assert_eq!(before(&guaranteed), "");
    }
}
