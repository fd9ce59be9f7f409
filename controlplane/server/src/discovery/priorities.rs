//! Priorities of group versions that are served here: discovery orders them so, and their `APIServices` have them.

use api::kinds::api_service::GROUP;

/// Priorities of groups and of their versions (`cmd/kube-apiserver/app/aggregator.go`).
const PRIORITIES: [(&str, &str, i32, i32); 23] = [
    ("", "v1", 18_000, 1),
    ("apps", "v1", 17_800, 15),
    ("events.k8s.io", "v1", 17_750, 15),
    ("authentication.k8s.io", "v1", 17_700, 15),
    ("authorization.k8s.io", "v1", 17_600, 15),
    ("autoscaling", "v1", 17_500, 15),
    ("autoscaling", "v2", 17_500, 30),
    ("batch", "v1", 17_400, 15),
    ("certificates.k8s.io", "v1", 17_300, 15),
    ("networking.k8s.io", "v1", 17_200, 15),
    ("policy", "v1", 17_100, 15),
    ("rbac.authorization.k8s.io", "v1", 17_000, 15),
    ("storage.k8s.io", "v1", 16_800, 15),
    ("apiextensions.k8s.io", "v1", 16_700, 15),
    ("admissionregistration.k8s.io", "v1", 16_700, 15),
    ("admissionregistration.k8s.io", "v1beta1", 16_700, 12),
    ("scheduling.k8s.io", "v1", 16_600, 15),
    ("coordination.k8s.io", "v1", 16_500, 15),
    ("node.k8s.io", "v1", 16_300, 15),
    ("discovery.k8s.io", "v1", 16_200, 15),
    ("resource.k8s.io", "v1", 16_200, 21),
    ("flowcontrol.apiserver.k8s.io", "v1", 16_100, 21),
    ("admissionregistration.k8s.io", "v1alpha1", 16_700, 9),
];
/// Priorities of groups from `CustomResourceDefinitions` (`crdregistration_controller.go`).
pub(crate) const DEFINED: (i32, i32) = (1000, 100);
/// Priorities of groups that have no `APIService`: their own, which always comes first, and that of measures, as
/// metrics-server registers it.
const UNREGISTERED: [(&str, (i32, i32)); 2] = [(GROUP, (20_000, 0)), ("metrics.k8s.io", (100, 100))];

/// Priorities of a group version of the program that has an `APIService`, and of its group.
pub(crate) fn of_program(group: &str, version: &str) -> Option<(i32, i32)> {
    let own = PRIORITIES.iter().find(|own| (own.0, own.1) == (group, version));
    own.map(|(_, _, group, version)| (*group, *version))
}

/// Priorities of a group version, and of its group.
pub(super) fn local(group: &str, version: &str) -> (i32, i32) {
    let unregistered = || UNREGISTERED.iter().find(|own| own.0 == group).map(|own| own.1);
    of_program(group, version).or_else(unregistered).unwrap_or(DEFINED)
}
