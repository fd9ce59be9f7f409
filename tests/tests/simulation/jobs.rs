//! Jobs over a lossy network, with restarts of the controllers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use store::{EventKind, Prefix, Store};
use tests::cluster::Cluster;

pub(crate) const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
pub(crate) const CRON_JOBS: &str = "/apis/batch/v1/namespaces/default/cronjobs";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(crate) fn job(mode: &str, container: &str) -> Value {
    json!({
        "metadata": { "name": "work" },
        "spec": { "completions": 6, "parallelism": 3, "completionMode": mode, "backoffLimit": 2, "template": { "spec": {
            "restartPolicy": "Never", "containers": [{ "name": container, "image": "nginx:1" }],
        } } },
    })
}

pub(crate) async fn ended(cluster: &Cluster, kind: &str) -> Value {
    cluster
        .eventually("the job comes to its end", || async {
            let job = cluster.get(&format!("{JOBS}/work")).await;
            let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let told = |one: &Value| one["type"] == kind && one["status"] == "True";
            if conditions.iter().any(told) {
                Ok(())
            } else {
                Err(job["status"].clone())
            }
        })
        .await;
    cluster.get(&format!("{JOBS}/work")).await["status"].clone()
}

/// Goes through every change of pods: no more than `most` are active, and no index runs twice at
/// once. Returns all uids.
pub(crate) async fn history(store: &Store, most: usize) -> BTreeSet<String> {
    let mut watch = store.watch(&Prefix::resource("", "pods"), 0).expect("a watch");
    let newest = store.revision();
    let mut active: BTreeMap<String, Value> = BTreeMap::new();
    let mut all = BTreeSet::new();
    while let Ok(told) = tokio::time::timeout(std::time::Duration::from_millis(1), watch.next()).await {
        let event = told.expect("a change");
        let pod: Value = serde_json::from_slice(&event.entry.bytes).expect("a pod");
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        all.insert(uid.clone());
        let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
            || !pod["metadata"]["deletionTimestamp"].is_null()
            || matches!(event.kind, EventKind::Delete { .. });
        if over {
            active.remove(&uid);
        } else {
            active.insert(uid, pod["metadata"]["labels"][INDEX].clone());
        }
        let revision = event.entry.revision;
        assert!(
            active.len() <= most,
            "revision {revision}: {} pods are active",
            active.len()
        );
        let indexes: Vec<String> = active
            .values()
            .filter(|index| !index.is_null())
            .map(Value::to_string)
            .collect();
        let distinct: BTreeSet<&String> = indexes.iter().collect();
        assert_eq!(
            distinct.len(),
            indexes.len(),
            "revision {revision}: an index runs twice"
        );
        if revision >= newest {
            break;
        }
    }
    all
}

async fn one_seed(seed: u64) {
    let mode = if seed.is_multiple_of(2) {
        "Indexed"
    } else {
        "NonIndexed"
    };
    let mut cluster = Cluster::builder().nodes(2).lossy(seed).start().await;
    cluster.create(JOBS, &job(mode, "works")).await;
    for pods in [1, 3, 5].into_iter().filter(|_| seed.is_multiple_of(4)) {
        crate::under_way(&cluster, pods).await;
        cluster.restart_controllers();
    }
    let status = ended(&cluster, "Complete").await;
    assert_eq!(status["succeeded"], 6, "seed {seed}: {status}");
    assert!(status["failed"].is_null(), "seed {seed}: {status}");
    assert_eq!(status["uncountedTerminatedPods"], json!({}), "seed {seed}");
    let all = history(&cluster.store, 3).await;
    assert_eq!(all.len(), 6, "seed {seed}: a pod was made twice");
}

#[tokio::test(start_paused = true)]
async fn a_job_makes_each_pod_once_over_a_lossy_network() {
    for seed in 0..crate::seeds() {
        one_seed(seed).await;
    }
}

/// The finalizer keeps the pod, and no agent tells its end.
#[tokio::test(start_paused = true)]
async fn a_pod_that_never_had_a_node_is_replaced() {
    let cluster = Cluster::builder().nodes(1).start().await;
    let mut job = job("NonIndexed", "works");
    job["spec"]["podReplacementPolicy"] = json!("Failed");
    job["spec"]["completions"] = json!(1);
    job["spec"]["template"]["spec"]["nodeSelector"] = json!({ "there": "no" });
    cluster.create(JOBS, &job).await;
    let pods = "/api/v1/namespaces/default/pods";
    let first = cluster
        .eventually("there is a pod", || async {
            let all = cluster.list(pods).await;
            let first = all.first().map(|pod| pod["metadata"]["name"].clone());
            first.and_then(|name| name.as_str().map(str::to_owned)).ok_or(all)
        })
        .await;
    let path = format!("{pods}/{first}");
    let deleted = cluster.request("DELETE", &path, "application/json", &json!({})).await;
    deleted.expect("deleted");
    cluster
        .eventually("another pod takes its place", || async {
            let all = cluster.list(pods).await;
            let names: Vec<&Value> = all.iter().map(|pod| &pod["metadata"]["name"]).collect();
            if names.len() == 1 && *names[0] != json!(first) {
                Ok(())
            } else {
                Err((
                    all.clone(),
                    cluster.get(&format!("{JOBS}/work")).await["status"].clone(),
                ))
            }
        })
        .await;
    let failed = cluster.get(&format!("{JOBS}/work")).await["status"]["failed"].clone();
    assert_eq!(failed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_pods_fail_waits_longer_each_time_and_then_fails() {
    let cluster = Cluster::builder().nodes(1).start().await;
    let mut job = job("NonIndexed", "fails");
    job["spec"]["parallelism"] = json!(1);
    cluster.create(JOBS, &job).await;
    let status = ended(&cluster, "Failed").await;
    assert_eq!(status["failed"], 3, "{status}");
    let pods = cluster.list(crate::PODS).await;
    let time = |pod: &Value| {
        let text = pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
        text.parse::<k8s_openapi::jiff::Timestamp>()
            .expect("a time")
            .as_second()
    };
    let mut times: Vec<i64> = pods.iter().map(time).collect();
    times.sort_unstable();
    let waits: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A second of work, then ten of waiting, then twenty.
    assert!(matches!(waits.as_slice(), [10..=13, 20..=23]), "{waits:?}");
    let held = pods
        .iter()
        .filter(|pod| !pod["metadata"]["finalizers"].is_null())
        .count();
    assert_eq!(held, 0, "all are counted");
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_keeps_its_times_and_its_history() {
    let cluster = Cluster::builder().nodes(1).start().await;
    let spec = job("NonIndexed", "works")["spec"].clone();
    let cron_job = json!({
        "metadata": { "name": "tick" },
        "spec": { "schedule": "*/5 * * * *", "jobTemplate": { "spec": spec }, "successfulJobsHistoryLimit": 2 },
    });
    cluster.create(CRON_JOBS, &cron_job).await;
    let after = |minutes: u64| tokio::time::sleep(std::time::Duration::from_mins(minutes));
    after(22).await;
    let jobs = cluster.list(JOBS).await;
    let minutes = |job: &Value| {
        let name = job["metadata"]["name"].as_str().unwrap_or_default();
        name.strip_prefix("tick-")
            .and_then(|minutes| minutes.parse::<u64>().ok())
            .expect("minutes")
    };
    let mut times: Vec<u64> = jobs.iter().map(minutes).collect();
    times.sort_unstable();
    assert_eq!(times.len(), 2, "the oldest went: {times:?}");
    assert!(
        times.iter().all(|minutes| minutes % 5 == 0) && times[1] - times[0] == 5,
        "{times:?}"
    );
    let status = cluster.get(&format!("{CRON_JOBS}/tick")).await["status"].clone();
    assert!(
        status["active"].is_null() && !status["lastSuccessfulTime"].is_null(),
        "{status}"
    );
    // Two hours pass at once: a single Job makes up for all missed ones.
    cluster.jump(7200);
    after(6).await;
    let later: Vec<u64> = cluster.list(JOBS).await.iter().map(minutes).collect();
    let new: Vec<u64> = later.iter().copied().filter(|time| !times.contains(time)).collect();
    assert!(
        matches!(new.as_slice(), [one] if *one >= times[1] + 120),
        "{later:?} after {times:?}"
    );
}
