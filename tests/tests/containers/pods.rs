//! The pods of the contract.

use serde_json::{Value, json};

/// Common parts of every pod.
fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}

/// A pod of one container that runs a script; more of the container, and more of the pod.
pub(crate) fn script(name: &str, image: &str, script: &str, container: Value, spec: Value) -> Value {
    let mut own = json!({"name": "main", "image": image, "command": ["sh", "-c", script]});
    merge(&mut own, container);
    let mut whole = json!({"terminationGracePeriodSeconds": 1, "containers": [own]});
    merge(&mut whole, spec);
    pod(name, &whole)
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// Runs until it gets the stop signal.
pub(crate) const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";

/// All pods, and the objects that they refer to. `host` is a directory of the machine.
pub(crate) fn all(nginx: &str, busybox: &str, host: &str) -> Vec<Value> {
    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"key": "from the map\n", "text": "projected too\n"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}, "stringData": {"key": "from the secret\n"}, "data": {"bytes": "Yf96"}}),
        web(nginx),
        tools(busybox),
        volumes(busybox, host),
        secure(busybox),
    ];
    all.extend(lives(busybox, host));
    all.extend(ends(busybox));
    all
}

fn web(nginx: &str) -> Value {
    // Whatever else the machine does meanwhile, it is not restarted.
    let get = json!({"httpGet": {"path": "/healthz", "port": 80}, "periodSeconds": 1, "failureThreshold": 30});
    pod(
        "web",
        &json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "nginx", "image": nginx,
                "ports": [{"containerPort": 80, "hostPort": 8080}],
                "startupProbe": get, "readinessProbe": get,
                "livenessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 30},
                "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
            }],
        }),
    )
}

fn tools(busybox: &str) -> Value {
    let bytes = json!({"name": "BYTES", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "bytes"}}});
    let env = json!([{"name": "GREETING", "value": "hello"}, bytes]);
    let more = json!({"workingDir": "/tmp", "env": env, "resources": {"requests": {"cpu": "100m"}}});
    script("tools", busybox, WAIT, more, json!({}))
}

fn volumes(busybox: &str, host: &str) -> Value {
    let work = "cat /map/key /secret/key; cat /down/name; echo; cat /all/who; echo; cat /all/text /host/note; \
        grep -q ' /memory tmpfs' /proc/mounts && echo tmpfs; \
        touch /map/x 2>/dev/null || echo read-only; echo 'in a part' | tee /part/made; cat /shared/init";
    let mounts = [
        ("map", "/map"),
        ("secret", "/secret"),
        ("down", "/down"),
        ("all", "/all"),
        ("memory", "/memory"),
    ];
    let mut mounts: Vec<Value> = mounts
        .iter()
        .map(|(name, path)| json!({"name": name, "mountPath": path}))
        .collect();
    mounts.extend([
        json!({"name": "host", "mountPath": "/host", "readOnly": true}),
        json!({"name": "host", "mountPath": "/part", "subPath": "part"}),
        json!({"name": "shared", "mountPath": "/shared"}),
    ]);
    let field = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{
            "name": "init", "image": busybox, "command": ["sh", "-c", "echo 'from init' > /shared/init"],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        }],
        "volumes": [
            {"name": "map", "configMap": {"name": "map"}},
            {"name": "secret", "secret": {"secretName": "secret", "defaultMode": 256}},
            {"name": "down", "downwardAPI": {"items": [field("name", "metadata.name")]}},
            {"name": "all", "projected": {"sources": [
                {"downwardAPI": {"items": [field("who", "metadata.namespace")]}},
                {"configMap": {"name": "map", "items": [{"key": "text", "path": "text"}]}},
            ]}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "shared", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": host}},
        ],
    });
    script("volumes", busybox, work, json!({"volumeMounts": mounts}), spec)
}

fn secure(busybox: &str) -> Value {
    let work = "id; pwd; echo from $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start); grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; touch /x /srv/x 2>/dev/null || echo root is read-only; \
        echo made for the image: $(stat -c %u:%g /srv/made); \
        touch /mine/x && [ \"$(stat -c %g /mine)\" = 2000 ] && echo volume is mine; \
        mount -t tmpfs none /mine 2>/dev/null || echo no mount";
    let container = json!({
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        // The image has no such directory.
        "workingDir": "/none/such",
        "volumeMounts": [{"name": "mine", "mountPath": "/mine"}],
    });
    let spec = json!({
        "restartPolicy": "Never",
        "securityContext": {
            "runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
            "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "77"}],
        },
        "volumes": [{"name": "mine", "emptyDir": {}}],
    });
    script("secure", busybox, work, container, spec)
}

/// Pods for the start, the run and the end of containers.
fn lives(busybox: &str, host: &str) -> Vec<Value> {
    let volume = json!({"volumes": [{"name": "host", "hostPath": {"path": host}}]});
    let mounts = json!([{"name": "host", "mountPath": "/host"}]);
    let say =
        |words: &str, file: &str| json!({"exec": {"command": ["sh", "-c", format!("echo {words} >> /host/{file}")]}});
    let polite = json!({
        "volumeMounts": mounts,
        "lifecycle": {"postStart": say("postStart", "polite"), "preStop": say("preStop", "polite")},
    });
    let mut patient = volume.clone();
    merge(&mut patient, json!({"terminationGracePeriodSeconds": 30}));
    let probe = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 30});
    let late = json!({
        "volumeMounts": mounts,
        "startupProbe": probe("[ -e /tmp/up ] && echo startup passed >> /host/late"),
        "readinessProbe": probe("[ -s /host/late ] && [ -e /tmp/ready ]"),
        "livenessProbe": probe("[ -s /host/late ]"),
    });
    // It is asked nothing before it can be told to end.
    let mut well = probe("[ ! -e /tmp/begun ] || [ -e /tmp/well ]");
    merge(&mut well, json!({"failureThreshold": 1}));
    let sick = json!({"volumeMounts": mounts, "livenessProbe": well});
    let mut hurried = volume.clone();
    merge(&mut hurried, json!({"terminationGracePeriodSeconds": 0}));
    let trap = "trap 'echo TERM >> /host/polite; exit 0' TERM; while :; do sleep 1000 & wait; done";
    vec![
        script("polite", busybox, trap, polite, patient),
        script(
            "deaf",
            busybox,
            "trap '' TERM; while :; do sleep 1; done",
            json!({}),
            json!({}),
        ),
        script(
            "late",
            busybox,
            &format!("touch /tmp/up; sleep 1; touch /tmp/ready; {WAIT}"),
            late,
            volume.clone(),
        ),
        script(
            "sick",
            busybox,
            &format!("trap 'exit 0' TERM; [ -e /host/sick ] && touch /tmp/well; touch /host/sick /tmp/begun; {WAIT}"),
            sick,
            hurried,
        ),
        script(
            "listener",
            busybox,
            "while read line; do echo got $line; done; exit 1",
            json!({"stdin": true}),
            json!({}),
        ),
        script("node", busybox, WAIT, json!({}), json!({"hostNetwork": true})),
        pod(
            "shared",
            &json!({
                "shareProcessNamespace": true, "terminationGracePeriodSeconds": 1,
                "containers": [
                    {"name": "one", "image": busybox, "command": ["sleep", "4321"]},
                    {"name": "two", "image": busybox, "command": ["sh", "-c", WAIT]},
                ],
            }),
        ),
    ]
}

/// Pods that end, or never start.
fn ends(busybox: &str) -> Vec<Value> {
    let speaker = "if [ -e /kept/once ]; then echo second; echo oops >&2; sleep 10000; fi; \
        touch /kept/once; echo first; printf 'no newline'; printf 'last words' > /dev/termination-log; exit 3";
    let kept = json!({"volumes": [{"name": "kept", "emptyDir": {}}]});
    let never = json!({"restartPolicy": "Never"});
    let mut rootless = never.clone();
    merge(&mut rootless, json!({"securityContext": {"runAsNonRoot": true}}));
    let mut missing = script("missing", busybox, "", json!({}), never.clone());
    missing["spec"]["containers"][0]["command"] = json!(["/no/such/program"]);
    let mut oom = script(
        "oom",
        busybox,
        "",
        json!({"resources": {"limits": {"memory": "32Mi"}}}),
        never,
    );
    oom["spec"]["containers"][0]["command"] = json!(["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=2"]);
    vec![
        script(
            "speaker",
            busybox,
            speaker,
            json!({"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}),
            kept,
        ),
        script("rootless", busybox, WAIT, json!({}), rootless),
        missing,
        oom,
    ]
}
