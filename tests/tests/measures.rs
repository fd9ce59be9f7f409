//! Usage and diagnosis of pods: `kubectl top`, and `skiff why`.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use anyhow::{Context as _, ensure};
use tests::machine::{Machine, eventually};
use tests::{images, process};

fn pods(image: &str) -> String {
    let pod = |name: &str, rest: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}}}, spec: {{terminationGracePeriodSeconds: 1, {rest}}}}}\n"
        )
    };
    let run = |name: &str, script: &str, more: &str| {
        format!("{{name: {name}, image: \"{image}\", command: [sh, -c, \"{script}\"]{more}}}")
    };
    let burn = run("burn", "while :; do :; done", ", resources: {limits: {cpu: 200m}}");
    let hold = run(
        "hold",
        "nc -w 1 $KUBERNETES_SERVICE_HOST 443 </dev/null; dd if=/dev/zero of=/dev/shm/it bs=1M count=8; sleep 100000",
        ", readinessProbe: {periodSeconds: 1, timeoutSeconds: 10, exec: {command: [sh, -c, 'test $(stat -c %s /dev/shm/it) = 8388608']}}",
    );
    let eat = run(
        "app",
        "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done",
        ", resources: {limits: {memory: 16Mi}}",
    );
    [
        pod("busy", &format!("containers: [{burn}, {hold}]")),
        pod(
            "crash",
            &format!("containers: [{}]", run("app", "echo no database; exit 3", "")),
        ),
        pod(
            "unpullable",
            "containers: [{name: app, image: 'registry.invalid/team/app:7'}]",
        ),
        pod(
            "big",
            &format!(
                "containers: [{}]",
                run("app", "true", ", resources: {requests: {cpu: '1000'}}")
            ),
        ),
        pod("greedy", &format!("restartPolicy: Never, containers: [{eat}]")),
    ]
    .concat()
}

#[test]
fn what_pods_use_and_what_is_wrong_with_them() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("measures")?;
    let image = images::busybox(&machine)?;
    let file = machine.state().join("pods.yaml");
    std::fs::write(&file, pods(&image))?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/busy", "--timeout=60s"])?;
    for kubectl in process::kubectls()? {
        let top = |words: &[&str]| process::run(machine.kubectl_command(&kubectl).arg("top").args(words));
        let told = || -> anyhow::Result<()> {
            use_of_containers(&top(&["pods", "--containers", "-A", "--no-headers"])?)?;
            let chosen = top(&["pods", "-l", "app=busy", "--no-headers"])?;
            ensure!(chosen.lines().count() == 1 && chosen.starts_with("busy "), "{chosen}");
            let nodes = top(&["nodes", "--no-headers"])?;
            ensure!(nodes.lines().count() == 1 && !nodes.contains("<unknown>"), "{nodes}");
            Ok(())
        };
        // What is used is measured in windows of a second or more; the first may hold the start alone.
        let what = format!("{} shows the use", kubectl.display());
        eventually(&what, || told().map_err(|error| format!("{error:#}")))?;
    }
    let missing = machine.kubectl([
        "get",
        "--raw",
        "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/big",
    ]);
    let missing = missing.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        missing.contains("pods.metrics.k8s.io \"default/big\" not found"),
        "{missing}"
    );
    summary(&machine)?;
    eventually("the node's metrics are whole", || {
        exported(&machine).map_err(|error| format!("{error:#}"))
    })?;
    operated(&machine)?;
    starts(&machine)?;
    told(&machine)?;
    explained(&machine)?;
    refused(&machine, &image)?;
    machine.finish()
}

fn node(machine: &Machine) -> anyhow::Result<String> {
    machine.kubectl(["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])
}

/// Returns the response of the node's agent through the API server.
fn ask(machine: &Machine, path: &str) -> anyhow::Result<String> {
    let path = format!("/api/v1/nodes/{}/proxy{path}", node(machine)?);
    machine.kubectl(["get", "--raw", &path])
}

/// Metrics for Prometheus and dashboards.
fn exported(machine: &Machine) -> anyhow::Result<()> {
    let text = ask(machine, "/metrics/cadvisor")?;
    let value = |name: &str, labels: &[&str]| -> anyhow::Result<f64> {
        let mut lines = text.lines().filter(|line| line.split('{').next() == Some(name));
        let line = lines.find(|line| labels.iter().all(|label| line.contains(label)));
        let line = line.with_context(|| format!("{name} of {labels:?} in {text}"))?;
        let mut words = line.rsplit(' ').map(str::parse::<f64>);
        // The last one is the time.
        let (time, value) = (words.next().context("a time")??, words.next().context("a value")??);
        ensure!(time > 1e12, "{line}");
        Ok(value)
    };
    let hold = [
        "container=\"hold\"",
        "pod=\"busy\"",
        "namespace=\"default\"",
        "image=\"",
        "id=\"/",
        "name=\"",
    ];
    let burn = ["container=\"burn\"", "pod=\"busy\""];
    let pod = ["container=\"\"", "pod=\"busy\""];
    let eth0 = ["interface=\"eth0\"", "pod=\"busy\"", "namespace=\"default\""];
    let at_least = |least: f64, name: &str, labels: &[&str]| -> anyhow::Result<()> {
        let value = value(name, labels)?;
        ensure!(value >= least, "{name} of {labels:?} is {value}");
        Ok(())
    };
    let processor = ["cpu=\"total\"", "container=\"burn\"", "pod=\"busy\""];
    at_least(0.05, "container_cpu_usage_seconds_total", &processor)?;
    at_least(
        0.05,
        "container_cpu_usage_seconds_total",
        &["cpu=\"total\"", "id=\"/\""],
    )?;
    at_least(1.0, "container_cpu_cfs_throttled_periods_total", &burn)?;
    at_least(8e6, "container_memory_working_set_bytes", &hold)?;
    at_least(8e6, "container_memory_usage_bytes", &pod)?;
    at_least(8e6, "container_memory_cache", &hold)?;
    at_least(
        1.0,
        "container_memory_failures_total",
        &["failure_type=\"pgfault\"", "container=\"hold\""],
    )?;
    at_least(1.0, "container_network_receive_bytes_total", &eth0)?;
    at_least(1.0, "container_network_transmit_packets_total", &eth0)?;
    at_least(1.0, "container_fs_usage_bytes", &["device=\"", "container=\"hold\""])?;
    at_least(20_000.0, "container_spec_cpu_quota", &burn)?;
    at_least(1e9, "container_start_time_seconds", &burn)?;
    for (path, wanted) in [
        ("/metrics/cadvisor", "machine_cpu_cores{"),
        ("/metrics", "kubelet_running_containers{container_state=\"running\"} "),
        ("/metrics", "process_resident_memory_bytes "),
        ("/metrics", "kubelet_node_name{node="),
        (
            "/metrics/resource",
            "# HELP container_cpu_usage_seconds_total [STABLE] ",
        ),
        ("/metrics/resource", "node_swap_usage_bytes "),
        ("/metrics/resource", "container_swap_usage_bytes{container=\"hold\","),
        (
            "/metrics/probes",
            "prober_probe_total{container=\"hold\",namespace=\"default\",pod=\"busy\",pod_uid=",
        ),
        ("/metrics/probes", "probe_type=\"Readiness\",result=\"successful\"} "),
    ] {
        let text = ask(machine, path)?;
        ensure!(text.contains(wanted), "{path}: {wanted} in {text}");
    }
    Ok(())
}

/// Metrics of a kubelet that the dashboards of kubernetes-mixin show.
fn operated(machine: &Machine) -> anyhow::Result<()> {
    let text = ask(machine, "/metrics")?;
    for wanted in [
        "kubernetes_build_info{git_version=\"v1.36.",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} ",
        "kubelet_runtime_operations_duration_seconds_count{operation_type=\"start_container\"} ",
        "kubelet_pod_start_duration_seconds_bucket{le=\"0.5\"} ",
        "kubelet_certificate_manager_client_ttl_seconds ",
        "kubelet_server_expiration_renew_errors 0\n",
        "rest_client_requests_total{code=\"200\",host=\"",
    ] {
        ensure!(text.contains(wanted), "{wanted} in {text}");
    }
    Ok(())
}

/// Starts of containers have no time of measurement.
fn starts(machine: &Machine) -> anyhow::Result<()> {
    let text = ask(machine, "/metrics/resource")?;
    let starts = text
        .lines()
        .filter(|line| line.starts_with("container_start_time_seconds{"));
    let words: Vec<usize> = starts.map(|line| line.split(' ').count()).collect();
    ensure!(!words.is_empty() && words.iter().all(|count| *count == 2), "{text}");
    Ok(())
}

/// Further endpoints of the node.
fn told(machine: &Machine) -> anyhow::Result<()> {
    let parsed = |path: &str| -> anyhow::Result<serde_json::Value> { Ok(serde_json::from_str(&ask(machine, path)?)?) };
    let config = parsed("/configz")?;
    let configured = |field: &str| config.pointer(&format!("/kubeletconfig/{field}")).cloned();
    ensure!(configured("kind") == Some("KubeletConfiguration".into()), "{config}");
    ensure!(configured("maxPods") == Some(110.into()), "{config}");
    ensure!(configured("imageMinimumGCAge") == Some("2m0s".into()), "{config}");
    for path in ["/runningpods/", "/pods"] {
        let list = parsed(path)?;
        let pods = list.pointer("/items").and_then(serde_json::Value::as_array);
        let mut pods = pods.context("its items")?.iter();
        let busy = pods.find(|pod| pod.pointer("/metadata/name") == Some(&"busy".into()));
        let containers = busy.and_then(|busy| busy.pointer("/spec/containers")?.as_array().map(Vec::len));
        ensure!(containers == Some(2), "{path}: {list}");
    }
    let logs = ask(machine, "/logs/")?;
    ensure!(logs.starts_with("<!doctype html>") && logs.contains("<pre>"), "{logs}");
    for path in [
        "/logs/../../etc/shadow",
        "/logs/%2e%2e/%2e%2e/etc/shadow",
        "/logs/%252e%252e/etc/shadow",
        "/logs/x%00",
    ] {
        let refused = ask(machine, path).err().map(|error| error.to_string());
        ensure!(refused.is_some_and(|said| !said.contains("root:")), "{path}");
    }
    // The default user is root.
    let path = "jsonpath={.status.containerStatuses[?(@.name==\"hold\")].user.linux}";
    let user = machine.kubectl(["get", "pod", "busy", "-o", path])?;
    let user: serde_json::Value = serde_json::from_str(&user).with_context(|| user.clone())?;
    ensure!(
        user.get("uid") == Some(&0.into()) && user.get("gid") == Some(&0.into()),
        "{user}"
    );
    let groups = user.get("supplementalGroups").and_then(serde_json::Value::as_array);
    ensure!(groups.is_some_and(|groups| groups.contains(&0.into())), "{user}");
    let told = |field: &str| {
        let path = format!("jsonpath={{.status.{field}}}");
        machine.kubectl(["get", "node", &node(machine)?, "-o", &path])
    };
    let declared = told("declaredFeatures")?;
    for feature in ["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"] {
        ensure!(declared.contains(feature), "{declared}");
    }
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let total = memory.lines().find_map(|line| line.strip_prefix("SwapTotal:"));
    let kib: u64 = total.context("swap")?.trim_end_matches("kB").trim().parse()?;
    let expected = if kib > 0 {
        (kib << 10).to_string()
    } else {
        String::new()
    };
    let swap = told("nodeInfo.swap.capacity")?;
    ensure!(swap == expected, "{swap} of {expected}");
    Ok(())
}

/// The node's stats summary: CPU and memory as above, and the usage of its disks.
fn summary(machine: &Machine) -> anyhow::Result<()> {
    let ask = |more: &str| -> anyhow::Result<serde_json::Value> {
        Ok(serde_json::from_str(&ask(machine, &format!("/stats/summary{more}"))?)?)
    };
    let told = ask("")?;
    let pods = told.pointer("/pods").and_then(serde_json::Value::as_array);
    let busy = pods
        .into_iter()
        .flatten()
        .find(|pod| pod.pointer("/podRef/name") == Some(&"busy".into()));
    let busy = busy.context("the pod")?;
    let fields = [
        (&told, "/node/fs/capacityBytes"),
        (&told, "/node/runtime/imageFs/availableBytes"),
        (&told, "/node/rlimit/curproc"),
        (&told, "/node/network/interfaces/0/txBytes"),
        (busy, "/network/rxBytes"),
        (busy, "/network/interfaces/0/txBytes"),
        (busy, "/process_stats/process_count"),
        (busy, "/ephemeral-storage/usedBytes"),
        (busy, "/volume/0/usedBytes"),
        (busy, "/volume/0/capacityBytes"),
        (busy, "/containers/0/rootfs/inodesUsed"),
        (busy, "/containers/1/logs/usedBytes"),
    ];
    for (of, field) in fields {
        let number = of.pointer(field).and_then(serde_json::Value::as_u64);
        ensure!(number.is_some_and(|number| number > 0), "{field}: {told}");
    }
    system(&told)?;
    swapped(&[
        (&told, "/node/swap/swapUsageBytes"),
        (&told, "/node/swap/swapAvailableBytes"),
        (busy, "/swap/swapUsageBytes"),
        (busy, "/containers/0/swap/swapUsageBytes"),
    ])?;
    // File usage is cached between requests.
    machine.kubectl([
        "exec",
        "busy",
        "-c",
        "hold",
        "--",
        "dd",
        "if=/dev/zero",
        "of=/new",
        "bs=1M",
        "count=4",
    ])?;
    let rootfs = |told: &serde_json::Value| {
        let pods = told.pointer("/pods").and_then(serde_json::Value::as_array);
        let mut pods = pods.into_iter().flatten();
        let busy = pods.find(|pod| pod.pointer("/podRef/name") == Some(&"busy".into()));
        busy.and_then(|busy| busy.pointer("/ephemeral-storage/usedBytes").cloned())
    };
    let again = ask("")?;
    ensure!(rootfs(&again) == rootfs(&told), "{again} after {told}");
    let brief = ask("?only_cpu_and_memory=true")?.to_string();
    ensure!(
        !brief.contains("usedBytes") && brief.contains("workingSetBytes"),
        "{brief}"
    );
    Ok(())
}

/// The agent, and all pods together, as a kubelet's summary has them.
fn system(told: &serde_json::Value) -> anyhow::Result<()> {
    let all = told
        .pointer("/node/systemContainers")
        .and_then(serde_json::Value::as_array);
    for (name, field) in [
        ("kubelet", "/memory/workingSetBytes"),
        ("kubelet", "/cpu/usageCoreNanoSeconds"),
        ("pods", "/memory/usageBytes"),
        ("pods", "/cpu/usageNanoCores"),
    ] {
        let mut all = all.into_iter().flatten();
        let part = all.find(|part| part.pointer("/name") == Some(&name.into()));
        let number = part.and_then(|part| part.pointer(field)?.as_u64());
        ensure!(number.is_some_and(|number| number > 0), "{field} of {name}: {told}");
    }
    Ok(())
}

/// Swap usage: it may be zero, but is reported.
fn swapped(fields: &[(&serde_json::Value, &str)]) -> anyhow::Result<()> {
    for (of, field) in fields {
        ensure!(
            of.pointer(field).is_some_and(serde_json::Value::is_u64),
            "{field}: {of}"
        );
    }
    Ok(())
}

/// Columns: namespace, pod, container, CPU, memory.
fn use_of_containers(table: &str) -> anyhow::Result<()> {
    let row = |name: &str| -> anyhow::Result<(u64, u64)> {
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows
            .find(|row| row.get(1..3) == Some(&["busy", name]))
            .context("its row")?;
        let number = |at: usize, unit: &str| -> anyhow::Result<u64> {
            let text = row
                .get(at)
                .and_then(|text| text.strip_suffix(unit))
                .context("a value")?;
            Ok(text.parse()?)
        };
        Ok((number(3, "m")?, number(4, "Mi")?))
    };
    let check = || {
        // Other tests may hold the processors meanwhile, the limit holds always.
        let (burn, hold) = (row("burn")?, row("hold")?);
        // The probes of the other one cost some.
        ensure!((20..=300).contains(&burn.0) && hold.0 < 60, "the CPU time");
        ensure!((8..=32).contains(&hold.1) && burn.1 < 8, "the memory");
        Ok(())
    };
    check().with_context(|| table.to_owned())
}

/// A healthy pod, and one for each kind of failure.
fn explained(machine: &Machine) -> anyhow::Result<()> {
    let well = machine.skiff(["why", "pod/busy"])?;
    ensure!(well.contains("nothing is wrong"), "{well}");
    let cases: [(&str, &[&str]); 4] = [
        ("crash", &["ends again and again", "exit code 3", "| no database"]),
        (
            "unpullable",
            &["cannot be pulled: registry.invalid/team/app:7", "imagePullSecrets"],
        ),
        (
            "big",
            &["No node can take the pod", "Insufficient cpu", "resource requests"],
        ),
        (
            "greedy",
            &["more memory than it may", "resources.limits.memory (now 16Mi)"],
        ),
    ];
    for (name, words) in cases {
        eventually(&format!("{name} is explained"), || {
            // It exits with 1, so its output is in the error.
            let said = match machine.skiff(["why", &format!("pod/{name}")]) {
                Ok(said) => return Err(format!("exit code 0: {said}")),
                Err(error) => error.to_string(),
            };
            if words.iter().all(|word| said.contains(word)) && said.contains("something is wrong") {
                Ok(())
            } else {
                Err(said)
            }
        })?;
    }
    Ok(())
}

/// A pod that was sent to the node past the scheduler, while it is there and when it is gone.
fn refused(machine: &Machine, image: &str) -> anyhow::Result<()> {
    let (node, image) = (node(machine)?, format!("--image={image}"));
    let container = r#"{"name": "refused", "resources": {"requests": {"cpu": "1000"}}}"#;
    let spec = format!(r#"--overrides={{"spec": {{"nodeName": "{node}", "containers": [{container}]}}}}"#);
    machine.kubectl(["run", "refused", "--override-type=strategic", &image, &spec])?;
    let ended = "--for=jsonpath={.status.phase}=Failed";
    machine.kubectl(["wait", ended, "pod/refused", "--timeout=60s"])?;
    // The node remembers it a moment later.
    let why = |words: [&str; 2]| {
        eventually("why it was refused", || {
            let said = machine.skiff(["why", "pod/refused"]);
            let said = said.err().map(|error| error.to_string()).unwrap_or_default();
            let told = words.iter().all(|word| said.contains(word));
            told.then_some(()).ok_or(said)
        })
    };
    why(["has failed: OutOfcpu", "requested: 1000000"])?;
    machine.kubectl(["delete", "pod/refused"])?;
    let own = "--field-selector=involvedObject.name=refused";
    machine.kubectl(["delete", "events", own])?;
    why(["The node refused the pod: OutOfcpu.", "requested: 1000000"])
}
