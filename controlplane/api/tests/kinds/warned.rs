//! Warnings for clients, in upstream's words.

use controlplane_api::find;
use serde_json::{Value, json};

/// Warnings about a new object, and about an update of it without changes.
fn warned(group: &str, plural: &str, object: &Value) -> (Vec<String>, Vec<String>) {
    let row = find(group, "v1", plural).unwrap();
    let mut made = row.decode(object.to_string().as_bytes()).unwrap();
    row.set_defaults(made.as_mut());
    row.prepare_create(made.as_mut());
    let again = row.warnings(made.as_ref(), Some(made.as_ref()));
    (row.warnings(made.as_ref(), None), again)
}

fn new(group: &str, plural: &str, object: &Value) -> Vec<String> {
    warned(group, plural, object).0
}

#[test]
fn attack_24_what_is_warned_of_costs_no_more_than_what_is_asked() {
    let many = |one: &Value| Value::from(vec![one.clone(); 8_000]);
    let container =
        |field: &str, value: &Value| json!({"spec": {"containers": [{"name": "a", "image": "x", field: value}]}});
    let tokens: Vec<Value> = (0..4_000)
        .map(|number| json!({"serviceAccountToken": {"path": format!("{number:04}")}}))
        .collect();
    let volume = json!({"name": "v", "projected": {"sources": tokens}});
    for pod in [
        container("ports", &many(&json!({"containerPort": 1}))),
        container("env", &many(&json!({"name": "A"}))),
        json!({"spec": {"containers": [], "hostAliases": many(&json!({"ip": "10.0.0.1"}))}}),
        json!({"spec": {"containers": [], "imagePullSecrets": many(&json!({"name": "a"}))}}),
        json!({"spec": {"containers": [], "volumes": [volume]}}),
    ] {
        let said = new("", "pods", &pod).len();
        assert!(said < 10_000, "{said} warnings");
    }
}

/// Pod spec with everything that causes a warning.
fn odd() -> Value {
    json!({
        "nodeSelector": {"beta.kubernetes.io/os": "linux", "kubernetes.io/os": "linux"},
        "terminationGracePeriodSeconds": -1,
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}, {"ip": "10.0.0.1", "hostnames": ["b"]}],
        "imagePullSecrets": [{"name": "a"}, {"name": "a"}, {"name": ""}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "failure-domain.beta.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}]}]}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}},
        "volumes": [
            {"name": "g", "glusterfs": {"endpoints": "a", "path": "b"}},
            {"name": "p", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": "m", "items": [{"key": "k", "path": "token"}]}}]}},
            {"name": "c", "configMap": {"name": "m", "items": [{"key": "k", "path": "a/b"}, {"key": "l", "path": "a"}]}}],
        "containers": [
            {"name": "a", "image": "x",
                "resources": {"limits": {"memory": "100m"}, "requests": {"ephemeral-storage": "1500m"}},
                "env": [{"name": "X", "value": "1"}, {"name": "X", "value": "$(X)2"}, {"name": "X", "value": "3"}],
                "ports": [{"containerPort": 80, "hostIP": "1.2.3.4"}]},
            {"name": "b", "image": "x", "ports": [{"containerPort": 80, "hostPort": 8080}]}]
    })
}

const ODD: [&str; 16] = [
    "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: \
     beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    "spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use \
     \"topology.kubernetes.io/zone\" instead",
    "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
    "spec.volumes[0].glusterfs: deprecated in v1.25, non-functional in v1.26+",
    "volume \"p\" (Projected ConfigMap \"m\"): overlapping paths: \"token\" with \"token\"",
    "volume \"c\" (ConfigMap \"m\"): overlapping paths: \"a\" with \"a/b\"",
    "spec.hostAliases[1].ip: duplicate ip \"10.0.0.1\"",
    "spec.imagePullSecrets[1].name: duplicate name \"a\"",
    "spec.imagePullSecrets[2].name: invalid empty name \"\"",
    "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
    "spec.containers[0].resources.requests[ephemeral-storage]: fractional byte value \"1500m\" is invalid, must be an integer",
    "spec.containers[0].env[2]: hides previous definition of \"X\", which may be dropped when using apply",
    "spec.containers[0].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:1.2.3.4}",
    "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[0]",
    "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
];

const ALONE: &str = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null \
                     labelSelector results in matching no pod";

#[test]
fn pods_are_warned_of_when_they_are_new() {
    let (created, updated) = warned("", "pods", &json!({"metadata": {"name": "a.b"}, "spec": odd()}));
    let name = "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
                recommended: [must not contain dots]";
    let mut expected: Vec<&str> = [name].into_iter().chain(ODD).chain([ALONE]).collect();
    // A container's requests default to its limits.
    let asked =
        "spec.containers[0].resources.requests[memory]: fractional byte value \"100m\" is invalid, must be an integer";
    expected.insert(12, asked);
    // A pod has been defaulted to 1 by then.
    expected.retain(|text| !text.starts_with("spec.terminationGracePeriodSeconds"));
    assert_eq!(created, expected);
    assert_eq!(updated, Vec::<String>::new());
    let plain = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "x"}]}});
    assert_eq!(new("", "pods", &plain), Vec::<String>::new());
    let mut git = plain;
    git["spec"]["volumes"] = json!([{"name": "v", "gitRepo": {"repository": "r"}}]);
    assert_eq!(
        new("", "pods", &git),
        ["spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"]
    );
}

#[test]
fn addresses_of_pods_and_of_status_are_warned_of() {
    let warning = |field: &str| {
        format!("{field}: IPv6 address \"fe80:0::1\" should be in RFC 5952 canonical format (\"fe80::1\")")
    };
    let spec =
        json!({"containers": [], "hostAliases": [{"ip": "fe80:0::1"}], "dnsConfig": {"nameservers": ["fe80:0::1"]}});
    let expected = ["spec.dnsConfig.nameservers[0]", "spec.hostAliases[0].ip"].map(warning);
    assert_eq!(
        new("", "pods", &json!({"metadata": {"name": "a"}, "spec": spec})),
        expected
    );
    let balanced = json!({"loadBalancer": {"ingress": [{"hostname": "a"}, {"ip": "fe80:0::1"}]}});
    for (group, plural, status, fields) in [
        (
            "",
            "pods",
            json!({"podIPs": [{"ip": "fe80::1"}, {"ip": "fe80:0::1"}], "hostIPs": [{"ip": "fe80:0::1"}]}),
            vec!["status.podIPs[1].ip", "status.hostIPs[0].ip"],
        ),
        ("", "services", balanced.clone(), vec!["status.loadBalancer.ingress[1]"]),
        (
            "networking.k8s.io",
            "ingresses",
            balanced,
            vec!["status.loadBalancer.ingress[1]"],
        ),
        (
            "",
            "nodes",
            json!({"addresses": [{"type": "InternalIP", "address": "fe80:0::1"}]}),
            vec![],
        ),
    ] {
        let row = find(group, "v1", plural).unwrap();
        let object = row.decode(json!({"status": status}).to_string().as_bytes()).unwrap();
        let expected: Vec<String> = fields.into_iter().map(warning).collect();
        assert_eq!(row.status_warnings(object.as_ref()), expected, "{plural}");
    }
}

#[test]
fn templates_are_warned_of_where_they_stand() {
    let annotations = json!({"scheduler.alpha.kubernetes.io/critical-pod": "", "container.apparmor.security.beta.kubernetes.io/a": "x"});
    let template = json!({"metadata": {"annotations": annotations}, "spec": odd()});
    let job = json!({"spec": {"template": template}});
    for (group, plural, spec, path) in [
        ("apps", "deployments", json!({"template": template}), "spec.template"),
        ("apps", "replicasets", json!({"template": template}), "spec.template"),
        ("apps", "statefulsets", json!({"template": template}), "spec.template"),
        (
            "",
            "replicationcontrollers",
            json!({"template": template}),
            "spec.template",
        ),
        ("batch", "jobs", json!({"template": template}), "spec.template"),
        (
            "batch",
            "cronjobs",
            json!({"jobTemplate": job}),
            "spec.jobTemplate.spec.template",
        ),
    ] {
        let (created, updated) = warned(group, plural, &json!({"metadata": {"name": "a"}, "spec": spec}));
        let volumes = |text: &str| text.starts_with("volume ");
        let mut expected: Vec<String> = ODD
            .into_iter()
            .chain([ALONE])
            .map(|text| {
                if volumes(text) {
                    text.to_owned()
                } else {
                    format!("{path}.{text}")
                }
            })
            .map(|text| text.replace(" with spec.", &format!(" with {path}.spec.")))
            .collect();
        let critical = "scheduler.alpha.kubernetes.io/critical-pod";
        let message = "non-functional in v1.16+; use the \"priorityClassName\" field instead";
        expected.insert(4, format!("{path}.metadata.annotations[{critical}]: {message}"));
        let armor = "container.apparmor.security.beta.kubernetes.io/a";
        let message = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
        expected.insert(11, format!("{path}.metadata.annotations[{armor}]: {message}"));
        assert_eq!(created, expected, "{plural}");
        assert_eq!(updated, Vec::<String>::new(), "{plural}");
    }
    let dots = json!({"metadata": {"name": "a.b"}, "spec": {"template": {"spec": {"containers": []}}}});
    assert_eq!(
        new("apps", "deployments", &dots),
        [
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is \
          recommended: [must not contain dots]"
        ]
    );
}

#[test]
fn core_kinds() {
    for (group, plural, object, expected) in [
        (
            "",
            "services",
            json!({"spec": {"externalIPs": ["10.0.0.1"], "externalName": "x", "trafficDistribution": "PreferClose"}}),
            vec![
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
                "spec.externalName is ignored when spec.type is not \"ExternalName\"",
                "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
            ],
        ),
        (
            "",
            "services",
            json!({"spec": {"clusterIP": "None", "externalIPs": ["fe80:0::1"], "sessionAffinity": "ClientIP"}}),
            vec![
                "spec.externalIPs is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
                "spec.externalIPs[0]: IPv6 address \"fe80:0::1\" should be in RFC 5952 canonical format (\"fe80::1\")",
            ],
        ),
        (
            "",
            "persistentvolumeclaims",
            json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "x"}},
                "spec": {"resources": {"requests": {"storage": "1500m"}}}}),
            vec![
                "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" \
                 attribute instead",
                "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
            ],
        ),
        (
            "",
            "persistentvolumes",
            json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/mount-options": "ro"}},
                "spec": {"persistentVolumeReclaimPolicy": "Recycle", "rbd": {"image": "a", "monitors": []}}}),
            vec![
                "metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use \"mountOptions\" \
                 attribute instead",
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
                 approach is to use dynamic provisioning.",
                "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
            ],
        ),
        (
            "",
            "secrets",
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "eA==", "tls.key": "eA=="}}),
            vec!["tls: failed to find any PEM data in certificate input"],
        ),
        (
            "",
            "serviceaccounts",
            json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}),
            vec![
                "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces \
                 to isolate access to mounted secrets",
            ],
        ),
    ] {
        assert_eq!(new(group, plural, &object), expected, "{plural}");
    }
}

#[test]
fn amounts_and_addresses() {
    for (group, plural, object, expected) in [
        (
            "",
            "nodes",
            json!({"spec": {"externalID": "i-1", "configSource": {}, "podCIDRs": ["fd00:0::/64"]}}),
            vec![
                "spec.externalID: this field is deprecated, and is unused by Kubernetes",
                "spec.podCIDRs[0]: IPv6 CIDR value \"fd00:0::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")",
            ],
        ),
        (
            "",
            "resourcequotas",
            json!({"spec": {"hard": {"cpu": "2", "limits.cpu": "1", "requests.memory": "1Gi", "limits.memory": "1Gi",
                "requests.ephemeral-storage": "2Gi", "limits.ephemeral-storage": "1Gi"}}}),
            vec![
                "ResourceQuota cpu (2) should be less than limits.cpu (1)",
                "ResourceQuota requests.ephemeral-storage (2Gi) should be less than limits.ephemeral-storage (1Gi)",
            ],
        ),
        (
            "",
            "endpoints",
            json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "fe80:0::1"}]}]}),
            vec![
                "subsets[0].notReadyAddresses[0].ip: IPv6 address \"fe80:0::1\" should be in RFC 5952 canonical format \
                 (\"fe80::1\")",
            ],
        ),
    ] {
        assert_eq!(new(group, plural, &object), expected, "{plural}");
    }
}

#[test]
fn kinds_of_other_groups() {
    for (group, plural, object, expected) in [
        (
            "storage.k8s.io",
            "csistoragecapacities",
            json!({"storageClassName": "a", "nodeTopology": {"matchLabels": {"beta.kubernetes.io/os": "linux"},
                "matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}]}}),
            vec![
                "nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \
                 \"kubernetes.io/arch\" instead",
                "nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            ],
        ),
        (
            "resource.k8s.io",
            "resourceslices",
            json!({"spec": {"driver": "A.example.com", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}}),
            vec!["spec.driver: driver names should be lowercase; \"A.example.com\" contains uppercase characters"],
        ),
        (
            "networking.k8s.io",
            "ingresses",
            json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "x"}}}),
            vec![
                "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead",
            ],
        ),
        (
            "node.k8s.io",
            "runtimeclasses",
            json!({"handler": "x", "scheduling": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}}}),
            vec!["scheduling.nodeSelector: deprecated since v1.14; use \"kubernetes.io/os\" instead"],
        ),
        (
            "storage.k8s.io",
            "csidrivers",
            json!({"spec": {"tokenRequests": [{"audience": "a"}]}}),
            vec![
                "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible \
                 logging of tokens in volume attributes",
            ],
        ),
        (
            "storage.k8s.io",
            "csidrivers",
            json!({"spec": {"tokenRequests": [{"audience": "a"}], "serviceAccountTokenInSecrets": false}}),
            vec![],
        ),
    ] {
        assert_eq!(new(group, plural, &object), expected, "{plural}");
    }
}

#[test]
fn limits_that_are_taken() {
    let set = json!({"metadata": {"name": "a"}, "spec": {"revisionHistoryLimit": -1}});
    let kept =
        "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
    assert_eq!(
        warned("apps", "statefulsets", &set),
        (vec![kept.to_owned()], vec![kept.to_owned()])
    );
    let claim = json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}});
    let set = json!({"metadata": {"name": "a"}, "spec": {"volumeClaimTemplates": [claim]}});
    let odd = "resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer";
    assert_eq!(
        warned("apps", "statefulsets", &set),
        (
            vec![format!("spec.volumeClaimTemplates[0].{odd}")],
            vec![format!("spec.volumeClaimTemplates[0].Spec.{odd}")]
        )
    );
    let job = |completions: i32| json!({"completionMode": "Indexed", "completions": completions, "parallelism": 10001});
    let indexes = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes \
                   might not be able to track completedIndexes when a big number of indexes fail";
    let of_job = |completions| {
        new(
            "batch",
            "jobs",
            &json!({"metadata": {"name": "a"}, "spec": job(completions)}),
        )
    };
    assert_eq!(of_job(100_001), [format!("spec: {indexes}")]);
    assert_eq!(of_job(100_000), Vec::<String>::new());
    let cron = json!({"metadata": {"name": "a"}, "spec": {"jobTemplate": {"spec": job(100_001)}}});
    assert_eq!(
        new("batch", "cronjobs", &cron),
        [format!("spec.jobTemplate.spec: {indexes}")]
    );
}

#[test]
fn names_of_what_makes_pods() {
    let told = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is \
                recommended: [must not contain dots]";
    let cron = json!({"metadata": {"name": "a.b"}, "spec": {"jobTemplate": {"spec": {}}}});
    assert_eq!(new("batch", "cronjobs", &cron), [told]);
}

#[test]
fn sources_of_configuration_are_kept_where_they_were() {
    let row = find("", "v1", "nodes").unwrap();
    let node = |value: Value| row.decode(value.to_string().as_bytes()).unwrap();
    let sourced = json!({"spec": {"configSource": {}}, "status": {"config": {"error": "x"}}});
    let (mut made, old) = (node(sourced.clone()), node(sourced.clone()));
    row.prepare_create(made.as_mut());
    assert_eq!(row.warnings(made.as_ref(), None), Vec::<String>::new());
    let shown: Value = serde_json::from_slice(&made.to_json()).unwrap();
    assert_eq!(
        (&shown["spec"]["configSource"], &shown["status"]["config"]),
        (&Value::Null, &Value::Null)
    );
    let mut same = node(sourced);
    row.prepare_update(same.as_mut(), old.as_ref());
    assert_eq!(
        row.warnings(same.as_ref(), Some(old.as_ref())),
        ["spec.configSource: the feature is removed"]
    );
}
