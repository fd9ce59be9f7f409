//! Resources allocated to pods where they differ from their current requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use agent_plan::pod::pods;
use agent_plan::pod::resize::{self, Resources};
use k8s_openapi::api::core::v1::Pod;

use crate::pod::resizes::ResizeRequests;

/// By UID, from when a pod is first seen until it is removed.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    given: Mutex<BTreeMap<String, Resources>>,
    /// Pods that wait for a resize to more resources.
    pub(crate) resizes: ResizeRequests,
}

impl Allocations {
    pub(crate) fn note(&self, uid: &str, resources: &Resources) {
        let mut all = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(uid.to_owned(), resources.clone());
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.resizes.leave(uid);
    }

    /// Returns the pods with their allocated resources: a pending resize takes nothing of the node.
    pub(crate) fn given(&self, pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
        let all = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let given = |pod: Arc<Pod>| {
            let changed = all.get(pods::uid(&pod)).and_then(|given| resize::given(&pod, given));
            changed.map_or(pod, Arc::new)
        };
        pods.into_iter().map(given).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wish_takes_nothing_of_the_node() {
        let pod = |cpu: &str| -> Pod {
            let container = json!({"name": "a", "resources": {"requests": {"cpu": cpu}}});
            serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": [container]}})).unwrap()
        };
        let allocations = Allocations::default();
        let counts = |allocations: &Allocations| {
            let all = allocations.given(vec![Arc::new(pod("200"))]);
            let spec = all[0].spec.as_ref().unwrap();
            api::pod::requests(spec)["cpu"].to_string()
        };
        assert_eq!(counts(&allocations), "200", "as it asked from the beginning");
        allocations.note("u", &resize::wanted(&pod("150m")));
        assert_eq!(counts(&allocations), "150m");
        allocations.forget("u");
        assert_eq!(counts(&allocations), "200");
    }
}
