//! Cost of the controllers of workloads: a Job of many pods, a StatefulSet in order, a `CronJob`'s second, and memory
//! while one of each kind is there.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tests::http::{Connection, Target};
use tests::machine::Machine;

use crate::figures::{Table, milliseconds, now};
use crate::memory;
use crate::pods::watch;

const BATCH: &str = "/apis/batch/v1/namespaces/default";
const APPS: &str = "/apis/apps/v1/namespaces/default";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const COMPLETIONS: u64 = 1_000;
const PARALLELISM: u64 = 100;
const REPLICAS: u64 = 10;
/// Minutes whose beginnings are waited for.
const MINUTES: usize = 2;

/// Measures with the nginx image, which has a shell's tools.
pub(crate) async fn measure(machine: &Machine, target: &Target, image: &str, table: &mut Table) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    let took = job(target, &mut connection, image).await?;
    table.row(
        format!("Job of {COMPLETIONS} pods of `true`, {PARALLELISM} at a time -> complete"),
        milliseconds(took),
    );
    let took = in_order(target, &mut connection, image).await?;
    table.row(
        format!("StatefulSet in order -> {REPLICAS} replicas Ready"),
        milliseconds(took),
    );
    let mut late = Vec::new();
    create(&mut connection, &format!("{BATCH}/cronjobs"), &tick(image)).await?;
    for _ in 0..MINUTES {
        late.push(milliseconds(lateness(target, &mut connection).await?));
    }
    table.row("CronJob's second -> its Job is told of", late.join(", "));
    beside(&mut connection, image).await?;
    memory::idle(machine, table, "a StatefulSet, DaemonSet, Job, CronJob and autoscaler")?;
    clear(&mut connection).await
}

async fn create(connection: &mut Connection, path: &str, object: &Value) -> anyhow::Result<()> {
    let body = Bytes::from(object.to_string());
    connection.expect(Method::POST, path, body).await.map(drop)
}

fn template(app: &str, image: &str, command: &[&str], restart: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": {
            "restartPolicy": restart, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": image, "command": command }],
        },
    })
}

async fn job(target: &Target, connection: &mut Connection, image: &str) -> anyhow::Result<Duration> {
    let job = json!({
        "metadata": { "name": "many" },
        "spec": {
            "completions": COMPLETIONS, "parallelism": PARALLELISM,
            "template": template("many", image, &["true"], "Never"),
        },
    });
    let start = now();
    create(connection, &format!("{BATCH}/jobs"), &job).await?;
    let path = format!("{BATCH}/jobs?fieldSelector=metadata.name%3Dmany&watch=true&resourceVersion=0");
    watch(target, &path, |event| {
        event.pointer("/object/status/completionTime").is_some()
    })
    .await?;
    Ok(start.elapsed())
}

async fn in_order(target: &Target, connection: &mut Connection, image: &str) -> anyhow::Result<Duration> {
    let set = json!({
        "metadata": { "name": "ordered" },
        "spec": {
            "replicas": REPLICAS, "selector": { "matchLabels": { "app": "ordered" } },
            "template": template("ordered", image, &["sleep", "3600"], "Always"),
        },
    });
    let start = now();
    create(connection, &format!("{APPS}/statefulsets"), &set).await?;
    let path = format!("{APPS}/statefulsets?fieldSelector=metadata.name%3Dordered&watch=true&resourceVersion=0");
    watch(target, &path, |event| {
        event.pointer("/object/status/readyReplicas").and_then(Value::as_u64) == Some(REPLICAS)
    })
    .await?;
    Ok(start.elapsed())
}

fn tick(image: &str) -> Value {
    let template = template("tick", image, &["true"], "Never");
    json!({
        "metadata": { "name": "tick" },
        "spec": { "schedule": "* * * * *", "jobTemplate": { "spec": { "template": template } } },
    })
}

/// The clock that a schedule goes by, since 1970.
#[expect(clippy::disallowed_methods, reason = "measuring is what this program is for")]
fn wall() -> anyhow::Result<Duration> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?)
}

/// Time from the next Job's scheduled second to its watch event.
async fn lateness(target: &Target, connection: &mut Connection) -> anyhow::Result<Duration> {
    let left = 60 - wall()?.as_secs() % 60;
    tokio::time::sleep(Duration::from_secs(left.saturating_sub(5))).await;
    let list = connection
        .expect(Method::GET, &format!("{BATCH}/jobs"), Bytes::new())
        .await?;
    let list: Value = serde_json::from_slice(&list)?;
    let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    let version = version.context("a list has a revision")?;
    let path = format!("{BATCH}/jobs?watch=true&resourceVersion={version}");
    watch(target, &path, |event| event.pointer("/type") == Some(&json!("ADDED"))).await?;
    let since = wall()?;
    let minute = Duration::from_mins(since.as_secs() / 60);
    Ok(since.saturating_sub(minute))
}

/// Makes those of the five kinds that are not there yet.
async fn beside(connection: &mut Connection, image: &str) -> anyhow::Result<()> {
    let set = json!({
        "metadata": { "name": "each" },
        "spec": {
            "selector": { "matchLabels": { "app": "each" } },
            "template": template("each", image, &["sleep", "3600"], "Always"),
        },
    });
    create(connection, &format!("{APPS}/daemonsets"), &set).await?;
    let scaler = json!({
        "metadata": { "name": "ordered" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "ordered" },
            "minReplicas": REPLICAS, "maxReplicas": REPLICAS + 1,
            "metrics": [{ "type": "Resource", "resource": {
                "name": "cpu", "target": { "type": "AverageValue", "averageValue": "1" },
            } }],
        },
    });
    create(connection, AUTOSCALERS, &scaler).await
}

async fn clear(connection: &mut Connection) -> anyhow::Result<()> {
    let jobs = format!("{BATCH}/jobs?propagationPolicy=Background");
    for path in [
        format!("{AUTOSCALERS}/ordered"),
        format!("{BATCH}/cronjobs/tick"),
        jobs,
        format!("{APPS}/statefulsets/ordered"),
        format!("{APPS}/daemonsets/each"),
    ] {
        connection.expect(Method::DELETE, &path, Bytes::new()).await?;
    }
    Ok(())
}
