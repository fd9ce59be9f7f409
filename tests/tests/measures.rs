//! What pods use and what is wrong with them, as people ask: `kubectl top`, and `skiff why`.

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
        "dd if=/dev/zero of=/dev/shm/it bs=1M count=8; sleep 100000",
        ", readinessProbe: {periodSeconds: 1, exec: {command: [sh, -c, 'test $(stat -c %s /dev/shm/it) = 8388608']}}",
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
        told().with_context(|| kubectl.display().to_string())?;
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
    explained(&machine)?;
    machine.finish()
}

/// What collectors read of the node: processors and memory as above, and what lies on its disks.
fn summary(machine: &Machine) -> anyhow::Result<()> {
    let node = machine.kubectl(["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let ask = |more: &str| -> anyhow::Result<serde_json::Value> {
        let path = format!("/api/v1/nodes/{node}/proxy/stats/summary{more}");
        Ok(serde_json::from_str(&machine.kubectl(["get", "--raw", &path])?)?)
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
        (busy, "/containers/0/rootfs/inodesUsed"),
        (busy, "/containers/1/logs/usedBytes"),
    ];
    for (of, field) in fields {
        let number = of.pointer(field).and_then(serde_json::Value::as_u64);
        ensure!(number.is_some_and(|number| number > 0), "{field}: {told}");
    }
    // Files are not counted anew for whoever asks again.
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
        ensure!((20..=300).contains(&burn.0) && hold.0 < 20, "the CPU time");
        ensure!((8..=32).contains(&hold.1) && burn.1 < 8, "the memory");
        Ok(())
    };
    check().with_context(|| table.to_owned())
}

/// A pod that is well, and one for each way to be not.
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
            // It exits with 1, so the words are in the error.
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
