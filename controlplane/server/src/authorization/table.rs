//! What the cluster's own components need, after upstream's bootstrap roles.

use crate::request::RequestInfo;

/// Lets some verbs on some resources pass. `*` stands for all.
#[derive(Debug)]
pub(super) struct Rule {
    verbs: &'static [&'static str],
    /// Group and resource, with the subresource behind a slash.
    resources: &'static [(&'static str, &'static str)],
}

impl Rule {
    pub(super) fn allows(&self, info: &RequestInfo) -> bool {
        let verb = self.verbs.iter().any(|verb| *verb == "*" || *verb == info.verb);
        verb && self.resources.iter().any(|(group, resource)| {
            (*group == "*" || *group == info.group) && (*resource == "*" || names(resource, info))
        })
    }
}

fn names(resource: &str, info: &RequestInfo) -> bool {
    match resource.split_once('/') {
        Some((resource, subresource)) => {
            (resource == "*" || resource == info.resource) && subresource == info.subresource
        }
        None => resource == info.resource && info.subresource.is_empty(),
    }
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const AMEND: &[&str] = &["get", "list", "patch", "update", "watch"];

const EVENTS: Rule = Rule {
    verbs: &["create", "get", "patch", "update"],
    resources: &[("", "events"), ("events.k8s.io", "events")],
};
const SHARED_READS: Rule = Rule {
    verbs: READ,
    resources: &[("*", "*")],
};
const LEASES: Rule = Rule {
    verbs: AMEND,
    resources: &[("coordination.k8s.io", "leases")],
};
const CREATE_LEASES: Rule = Rule {
    verbs: &["create"],
    resources: &[("coordination.k8s.io", "leases")],
};

/// For users `system:node:NAME` in `system:nodes`; of these objects only their own, as `admission::node` sees to.
pub(super) const NODE: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: READ,
        resources: &[
            ("", "configmaps"),
            ("", "namespaces"),
            ("", "nodes"),
            ("", "pods"),
            ("", "secrets"),
            ("", "serviceaccounts"),
            ("", "services"),
            ("discovery.k8s.io", "endpointslices"),
            ("scheduling.k8s.io", "priorityclasses"),
        ],
    },
    Rule {
        verbs: &["create", "delete", "patch", "update"],
        resources: &[("", "nodes")],
    },
    Rule {
        verbs: &["get", "patch", "update"],
        resources: &[("", "nodes/status"), ("", "pods/status")],
    },
    Rule {
        verbs: &["delete"],
        resources: &[("", "pods")],
    },
    Rule {
        verbs: &["create"],
        resources: &[("", "pods/eviction"), ("", "serviceaccounts/token")],
    },
    Rule {
        verbs: &["create", "delete", "get", "patch", "update"],
        resources: &[("coordination.k8s.io", "leases")],
    },
];

const SCHEDULER: &[Rule] = &[
    EVENTS,
    LEASES,
    CREATE_LEASES,
    SHARED_READS,
    Rule {
        verbs: &["create"],
        resources: &[("", "bindings"), ("", "pods/binding")],
    },
    Rule {
        verbs: &["patch", "update"],
        resources: &[("", "pods/status")],
    },
    Rule {
        verbs: &["delete"],
        resources: &[("", "pods")],
    },
];

const CONTROLLER_MANAGER: &[Rule] = &[EVENTS, LEASES, CREATE_LEASES, SHARED_READS];

const DEPLOYMENT: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: AMEND,
        resources: &[
            ("apps", "deployments"),
            ("apps", "deployments/status"),
            ("apps", "deployments/finalizers"),
            ("", "pods"),
        ],
    },
    Rule {
        verbs: WRITE,
        resources: &[("apps", "replicasets")],
    },
];

const REPLICA_SET: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: AMEND,
        resources: &[
            ("apps", "replicasets"),
            ("apps", "replicasets/status"),
            ("apps", "replicasets/finalizers"),
        ],
    },
    Rule {
        verbs: WRITE,
        resources: &[("", "pods")],
    },
];

const GARBAGE: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: &["delete", "get", "list", "patch", "update", "watch"],
        resources: &[("*", "*")],
    },
];

const NAMESPACE: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: &["delete", "deletecollection", "get", "list", "watch"],
        resources: &[("*", "*")],
    },
    Rule {
        verbs: &["patch", "update"],
        resources: &[
            ("", "namespaces"),
            ("", "namespaces/finalize"),
            ("", "namespaces/status"),
        ],
    },
];

const NODE_LIFECYCLE: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: READ,
        resources: &[("coordination.k8s.io", "leases"), ("", "pods"), ("", "nodes")],
    },
    Rule {
        verbs: &["delete", "patch", "update"],
        resources: &[("", "nodes"), ("", "nodes/status")],
    },
    Rule {
        verbs: &["patch", "update"],
        resources: &[("", "pods/status")],
    },
    Rule {
        verbs: &["delete"],
        resources: &[("", "pods"), ("coordination.k8s.io", "leases")],
    },
];

const POD_GARBAGE: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: READ,
        resources: &[("", "nodes"), ("", "pods")],
    },
    Rule {
        verbs: &["delete"],
        resources: &[("", "pods")],
    },
    Rule {
        verbs: &["patch", "update"],
        resources: &[("", "pods/status")],
    },
];

const ENDPOINT_SLICES: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: READ,
        resources: &[("", "namespaces"), ("", "nodes"), ("", "pods"), ("", "services")],
    },
    Rule {
        verbs: WRITE,
        resources: &[("discovery.k8s.io", "endpointslices")],
    },
];

const SERVICE_ACCOUNTS: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: READ,
        resources: &[("", "namespaces"), ("", "serviceaccounts")],
    },
    Rule {
        verbs: &["create"],
        resources: &[("", "serviceaccounts")],
    },
];

const QUOTAS: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: READ,
        resources: &[("*", "*")],
    },
    Rule {
        verbs: &["update"],
        resources: &[("", "resourcequotas/status")],
    },
];

const DISRUPTION: &[Rule] = &[
    EVENTS,
    Rule {
        verbs: &["patch", "update"],
        resources: &[("policy", "poddisruptionbudgets/status")],
    },
];

/// What a user may do by name.
pub(super) fn rules(user: &str) -> &'static [Rule] {
    match user {
        "system:kube-scheduler" => return SCHEDULER,
        "system:kube-controller-manager" => return CONTROLLER_MANAGER,
        _ => {}
    }
    match user.strip_prefix("system:serviceaccount:kube-system:") {
        Some("deployment-controller") => DEPLOYMENT,
        Some("replicaset-controller") => REPLICA_SET,
        Some("generic-garbage-collector") => GARBAGE,
        Some("namespace-controller") => NAMESPACE,
        Some("resourcequota-controller") => QUOTAS,
        Some("disruption-controller") => DISRUPTION,
        Some("node-controller") => NODE_LIFECYCLE,
        Some("pod-garbage-collector") => POD_GARBAGE,
        Some("service-account-controller") => SERVICE_ACCOUNTS,
        Some("endpointslice-controller") => ENDPOINT_SLICES,
        Some(_) | None => &[],
    }
}
