//! Columns that `kubectl get` shows.

use controlplane_api::table::age;
use controlplane_api::{KINDS, find};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::every::fixture;
use crate::table;

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

#[test]
fn ages_have_two_units_at_most() {
    let cases = "
        -5 | <invalid>
        -1 | 0s
        0 | 0s
        1 | 1s
        119 | 119s
        120 | 2m
        125 | 2m5s
        599 | 9m59s
        600 | 10m
        10799 | 179m
        10800 | 3h
        11100 | 3h5m
        28800 | 8h
        172799 | 47h
        172800 | 2d
        176400 | 2d1h
        691200 | 8d
        63071999 | 729d
        63072000 | 2y
        63158400 | 2y1d
        252288000 | 8y";
    for case in table(cases) {
        let seconds: i64 = case[0].parse().unwrap();
        let then = Timestamp::from_second(1_000_000_000).unwrap();
        let later = Timestamp::from_second(1_000_000_000 + seconds).unwrap();
        assert_eq!(age(later, then), case[1], "{seconds}");
    }
}

/// The cells of an object, joined.
fn cells(group: &str, plural: &str, object: &Value) -> String {
    let row = find(group, "v1", plural).unwrap();
    let json = serde_json::to_vec(object).unwrap();
    let cells = row.row(row.decode_shown(&json).unwrap().as_ref(), now());
    assert_eq!(cells, row.row(row.decode(&json).unwrap().as_ref(), now()));
    cells
        .iter()
        .map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned))
        .collect::<Vec<_>>()
        .join(" | ")
}

fn shown(group: &str, plural: &str, change: impl FnOnce(&mut Value)) -> String {
    let row = find(group, "v1", plural).unwrap();
    let mut object = row.decode(&fixture(row)).unwrap();
    row.set_defaults(object.as_mut());
    let mut value: Value = serde_json::from_slice(&object.to_json()).unwrap();
    value["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    change(&mut value);
    cells(group, plural, &value)
}

#[test]
fn every_kind_has_upstreams_columns() {
    let none = |_: &mut Value| {};
    let points =
        json!([{"ip": "192.0.2.9"}, {"ip": "", "hostname": "example.com"}, {"ip": "192.0.2.8"}, {"ip": "192.0.2.9"}]);
    let balancer = json!({"loadBalancer": {"ingress": points}});
    let cases = [
        shown("", "configmaps", none),
        shown("", "secrets", none),
        shown("", "namespaces", |value| value["status"]["phase"] = json!("Active")),
        shown("", "nodes", none),
        shown("", "services", none),
        shown("", "events", none),
        shown("events.k8s.io", "events", none),
        shown("apps", "deployments", |value| {
            value["status"] = json!({"readyReplicas": 2, "updatedReplicas": 3});
        }),
        shown("apps", "replicasets", none),
        shown("coordination.k8s.io", "leases", none),
        shown("discovery.k8s.io", "endpointslices", none),
        shown("scheduling.k8s.io", "priorityclasses", none),
        shown("", "serviceaccounts", none),
        shown("networking.k8s.io", "ingressclasses", |value| {
            value["metadata"]["annotations"] = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
        }),
        shown("networking.k8s.io", "ingresses", |value| {
            value["spec"]["rules"] = json!([{"host": "a"}, {"host": "b"}, {"host": "c"}, {}]);
            value["status"] = balancer.clone();
        }),
        shown("", "services", |value| {
            value["spec"] = json!({"type": "LoadBalancer", "externalIPs": ["192.0.2.1"]});
            value["status"] = balancer.clone();
        }),
        shown("", "events", |value| {
            value["source"] = json!({"component": "kubelet"});
            value["reportingInstance"] = json!("node-2");
        }),
    ];
    let expected = expect_test::expect![[r#"
        settings | 3 | 10m
        password | Opaque | 2 | 10m
        team-a | Active | 10m
        node-1 | Ready,SchedulingDisabled | control-plane,worker | 10m | v1.36.0 | 192.0.2.7 | <none> | Debian GNU/Linux 12 | 6.18.0 (amd64) | youki://0.7.0
        web | NodePort | <none> | <none> | 80/TCP,443:30443/TCP | 10m | app=nginx
        9m | Normal | Pulled | pod/web-1 | spec.containers{nginx} | kubelet, node-1 | Container image "nginx" already present on machine | 10m | 4 | web-1.17a
        10m | Normal | Scheduled | pod/web-1 |  | default-scheduler, default-scheduler-1 | Successfully assigned default/web-1 to node-1 | 10m | 1 | web-1.17b
        nginx-deployment | 2/3 | 3 | 0 | 10m | nginx | nginx:1.14.2 | app=nginx
        nginx-deployment-6d4cf56db6 | 1 | 0 | 0 | 10m | nginx | nginx:1.14.2 | app=nginx,pod-template-hash=6d4cf56db6
        node-1 | node-1 | 10m
        web-abc | IPv4 | 80 | 10.244.0.2,10.244.0.3,10.244.0.4 + 1 more... | 10m
        important | 1000 | false | 10m | PreemptLowerPriority
        builder | 10m
        nginx (default) | k8s.io/ingress-nginx | IngressParameters.k8s.example.com/lb | 10m
        web | nginx | a,b,c + 1 more... | 192.0.2.8,192.0.2.9,example.com | 80, 443 | 10m
        web | LoadBalancer | <none> | 192.0.2.8,192.0.2.9,example.com,192.0.2.1 | <none> | 10m | <none>
        9m | Normal | Pulled | pod/web-1 | spec.containers{nginx} | kubelet, node-2 | Container image "nginx" already present on machine | 10m | 4 | web-1.17a"#]];
    expected.assert_eq(&cases.join("\n"));
}

#[test]
fn a_job_shows_the_condition_that_matters_most() {
    let cases = "
        Suspended | Suspended
        SuccessCriteriaMet | SuccessCriteriaMet
        FailureTarget | FailureTarget
        SuccessCriteriaMet Complete | Complete
        FailureTarget Failed | Failed
        Other | Running";
    for case in table(cases) {
        let conditions = case[0].split(' ').map(|kind| json!({ "type": kind, "status": "True" }));
        let conditions: Vec<Value> = conditions.collect();
        let cells = shown("batch", "jobs", |job| {
            job["status"] = json!({ "conditions": conditions });
        });
        assert_eq!(cells.split(" | ").nth(1), Some(case[1]), "{cells}");
    }
}

#[test]
fn headings_are_upstreams() {
    let headings = |group: &str, plural: &str| {
        let columns = find(group, "v1", plural).unwrap().columns();
        columns
            .iter()
            .map(|column| format!("{}{}", column.name, "*".repeat(usize::from(column.priority > 0))))
            .collect::<Vec<_>>()
            .join(",")
    };
    assert_eq!(
        headings("", "pods"),
        "Name,Ready,Status,Restarts,Age,IP*,Node*,Nominated Node*,Readiness Gates*"
    );
    assert_eq!(
        headings("", "events"),
        "Last Seen,Type,Reason,Object,Subobject*,Source*,Message,First Seen*,Count*,Name*"
    );
    assert_eq!(
        headings("apps", "deployments"),
        "Name,Ready,Up-to-date,Available,Age,Containers*,Images*,Selector*"
    );
}

/// Name, READY, STATUS and RESTARTS of a pod with two init containers, the second a sidecar, and
/// two containers.
fn pod(status: &Value, deleted: bool) -> String {
    let stamp = deleted.then_some("2026-01-01T00:09:00Z");
    let object = json!({
        "metadata": {"name": "p", "deletionTimestamp": stamp},
        "spec": {
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "a"}, {"name": "b"}],
        },
        "status": status,
    });
    cells("", "pods", &object)
        .split(" | ")
        .skip(1)
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

fn container(name: &str, state: &Value) -> Value {
    let ready = state.get("running").is_some();
    json!({"name": name, "state": state, "ready": ready, "started": ready, "restartCount": 0, "image": "", "imageID": ""})
}

#[test]
fn the_status_of_a_pod_follows_upstreams_chain() {
    let running = json!({"running": {}});
    let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    let init = |first: &Value, second: &Value| json!([container("i", first), container("s", second)]);
    let both = |first: &Value, second: &Value| json!([container("a", first), container("b", second)]);
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let started = init(&done, &running);
    let status = |init: &Value, main: &Value| json!({"phase": "Running", "initContainerStatuses": init, "containerStatuses": main});
    let creating = both(&waiting("PodInitializing"), &waiting("PodInitializing"));

    assert_eq!(pod(&json!({"phase": "Pending"}), false), "0/3 Pending 0");
    assert_eq!(
        pod(&json!({"phase": "Failed", "reason": "Evicted"}), false),
        "0/3 Evicted 0"
    );
    let first = init(&waiting("PodInitializing"), &waiting("PodInitializing"));
    assert_eq!(pod(&status(&first, &creating), false), "0/3 Init:0/2 0");
    let broken = init(&waiting("CrashLoopBackOff"), &waiting("PodInitializing"));
    assert_eq!(pod(&status(&broken, &creating), false), "0/3 Init:CrashLoopBackOff 0");
    let failed = init(&json!({"terminated": {"exitCode": 3}}), &waiting("PodInitializing"));
    assert_eq!(pod(&status(&failed, &creating), false), "0/3 Init:ExitCode:3 0");
    let second = init(&done, &waiting("PodInitializing"));
    assert_eq!(pod(&status(&second, &creating), false), "0/3 Init:1/2 0");
    assert_eq!(
        pod(&status(&started, &both(&running, &running)), false),
        "3/3 Running 0"
    );
    assert_eq!(
        pod(&status(&started, &both(&running, &running)), true),
        "3/3 Terminating 0"
    );
    let pulling = both(&running, &waiting("ImagePullBackOff"));
    assert_eq!(pod(&status(&started, &pulling), false), "2/3 ImagePullBackOff 0");
    assert_eq!(pod(&status(&started, &both(&done, &running)), false), "2/3 NotReady 0");
    let error = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    assert_eq!(pod(&status(&started, &both(&done, &error)), false), "1/3 Error 0");
    let killed = json!({"terminated": {"exitCode": 137, "signal": 9}});
    assert_eq!(
        pod(&status(&started, &both(&killed, &running)), false),
        "2/3 Signal:9 0"
    );
    let mut lost = status(&started, &both(&running, &running));
    lost["reason"] = json!("NodeLost");
    assert_eq!(pod(&lost, true), "3/3 Unknown 0");
    let gated = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]});
    assert_eq!(pod(&gated, false), "0/3 SchedulingGated 0");
}

#[test]
fn restarts_say_when_the_last_was() {
    let mut first = container("a", &json!({"running": {}}));
    first["restartCount"] = json!(3);
    first["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:07:30Z"}});
    let status = json!({"phase": "Running", "containerStatuses": [first, container("b", &json!({"running": {}}))]});
    assert_eq!(pod(&status, false), "2/3 Running 3 (2m30s ago)");
    // Restarts of an init container count only until the regular containers run; a sidecar's always
    // do.
    let mut init = container("i", &json!({"terminated": {"exitCode": 0}}));
    init["restartCount"] = json!(5);
    let mut sidecar = container("s", &json!({"running": {}}));
    sidecar["restartCount"] = json!(2);
    let mut both = status;
    both["initContainerStatuses"] = json!([init, sidecar]);
    assert_eq!(pod(&both, false), "3/3 Running 5 (2m30s ago)");
    both["initContainerStatuses"][1]["started"] = json!(false);
    both["initContainerStatuses"][1]["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    assert_eq!(pod(&both, false), "0/3 Init:CrashLoopBackOff 7");
}

#[test]
fn scales_carry_the_selector() {
    let row = find("apps", "v1", "deployments").unwrap();
    let mut object = row.decode(&fixture(row)).unwrap();
    row.set_scale(object.as_mut(), 7);
    let scale = serde_json::to_value(row.scale(object.as_ref()).unwrap()).unwrap();
    assert_eq!(scale["spec"], json!({"replicas": 7}));
    assert_eq!(scale["status"], json!({"replicas": 0, "selector": "app=nginx"}));
    assert!(row.spec_changed(object.as_ref(), row.decode(&fixture(row)).unwrap().as_ref()));
}

#[test]
fn endpoints_that_are_not_ready_are_not_shown() {
    let of = |subsets: Value| shown("", "endpoints", |value| value["subsets"] = subsets);
    let not_ready = json!([{"notReadyAddresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]);
    assert!(of(json!([])).contains(" | <none> | "));
    assert!(of(not_ready).ends_with(" |  | 10m"));
}

#[test]
fn addresses_show_what_they_belong_to() {
    let of = |group: &str| {
        shown("networking.k8s.io", "ipaddresses", |value| {
            let parent = json!({"group": group, "resource": "gateways", "namespace": "team-a", "name": "web"});
            value["metadata"]["name"] = json!("192.0.2.1");
            value["spec"]["parentRef"] = parent;
        })
    };
    assert_eq!(of(""), "192.0.2.1 | gateways/team-a/web");
    assert_eq!(of("example.com"), "192.0.2.1 | gateways.example.com/team-a/web");
}

#[test]
fn columns_say_what_upstream_says_of_their_fields() {
    for row in KINDS {
        for column in row.columns() {
            let told = column.description.contains(' ') && !column.description.contains("\n# ");
            let is_untold = row.kind == "RuntimeClass" && column.name == "Handler";
            assert!(
                told != is_untold,
                "{} {}: {}",
                row.kind,
                column.name,
                column.description
            );
        }
    }
    let said = |plural: &str, name: &str| {
        let columns = find("", "v1", plural).unwrap().columns();
        let mut columns = columns.iter().filter(|column| column.name == name);
        columns.next().unwrap().description.clone()
    };
    let created = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not \
        guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is \
        represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: \
        https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
    assert_eq!(said("pods", "Age"), created);
    assert_eq!(said("limitranges", "Created At"), created);
    assert_eq!(
        said("secrets", "Type"),
        "Used to facilitate programmatic handling of secret data. More info: \
        https://kubernetes.io/docs/concepts/configuration/secret/#secret-types"
    );
    assert!(
        said("pods", "Name").starts_with("Name must be unique within a namespace. Is required when creating resources")
    );
    assert_eq!(said("nodes", "Status"), "The status of the node");
}
