//! Jobs and `CronJob`s of real containers, as people make them with kubectl.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tests::images;
use tests::machine::{Machine, eventually};

fn get(machine: &Machine, what: &[&str]) -> anyhow::Result<Value> {
    let words = ["get", "-o", "json"].into_iter().chain(what.iter().copied());
    Ok(serde_json::from_str(&machine.kubectl(words)?)?)
}

fn wait(machine: &Machine, job: &str, condition: &str) -> anyhow::Result<Value> {
    let (condition, timeout) = (format!("--for=condition={condition}"), "--timeout=90s");
    machine.kubectl(["wait", &condition, timeout, &format!("job/{job}")])?;
    get(machine, &["job", job])
}

/// The types of the conditions with their reasons.
fn conditions(job: &Value) -> Vec<String> {
    let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    conditions
        .map(|condition| format!("{} {}", text(&condition["type"]), text(&condition["reason"])))
        .collect()
}

fn events(machine: &Machine, about: &str, wanted: &str) -> anyhow::Result<()> {
    let selector = format!("--field-selector=involvedObject.name={about}");
    let format = "-o=jsonpath={range .items[*]}{.type} {.reason}: {.message}{\"\\n\"}{end}";
    eventually(&format!("an event of {about}: {wanted}"), || {
        let said = machine.kubectl(["get", "events", &selector, format]);
        let said = said.map_err(|error| error.to_string())?;
        if said.contains(wanted) { Ok(()) } else { Err(said) }
    })
}

#[test]
fn jobs_of_real_containers_come_to_their_end() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("jobs")?;
    let image = images::busybox(&machine)?;
    let home = tempfile::tempdir()?;
    let file = home.path().join("jobs.yaml");
    std::fs::write(&file, include_str!("jobs.yaml").replace("IMAGE", &image))?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    assert_plain(&machine, &image)?;
    assert_indexed(&machine)?;
    assert_policy(&machine)?;
    assert_short_lived(&machine)?;
    assert_suspended(&machine)?;
    assert_scheduled(&machine)?;
    machine.finish()
}

fn assert_plain(machine: &Machine, image: &str) -> anyhow::Result<()> {
    machine.kubectl([
        "create",
        "job",
        "plain",
        &format!("--image={image}"),
        "--",
        "echo",
        "hello",
    ])?;
    let job = wait(machine, "plain", "complete")?;
    assert_eq!(machine.kubectl(["logs", "job/plain"])?, "hello\n");
    assert_eq!(
        conditions(&job),
        ["SuccessCriteriaMet CompletionsReached", "Complete CompletionsReached"]
    );
    let status = &job["status"];
    assert_eq!(
        (&status["succeeded"], &status["ready"], &status["terminating"]),
        (&json!(1), &json!(0), &json!(0))
    );
    assert_eq!(status["uncountedTerminatedPods"], json!({}), "{status}");
    let pods = get(machine, &["pods", "-l", "batch.kubernetes.io/job-name=plain"])?;
    let pod = &pods["items"][0]["metadata"];
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1));
    assert!(pod["finalizers"].is_null(), "{pod}");
    let name = pod["name"].as_str().unwrap_or_default();
    assert!(name.starts_with("plain-") && name.len() == "plain-".len() + 5, "{name}");
    events(
        machine,
        "plain",
        &format!("Normal SuccessfulCreate: Created pod: {name}"),
    )?;
    eventually("its way is traced to its end", || {
        let trace = machine.skiff(["trace", "job/plain"]);
        let trace = trace.map_err(|error| format!("{error:#}"))?;
        let whole = trace.contains("end of Job stored") && !trace.contains("ReplicaSet");
        whole.then_some(()).ok_or(trace)
    })?;
    events(machine, "plain", "Normal Completed: Job completed")
}

fn assert_indexed(machine: &Machine) -> anyhow::Result<()> {
    let job = wait(machine, "indexed", "complete")?;
    let status = &job["status"];
    assert_eq!(
        (&status["succeeded"], &status["completedIndexes"]),
        (&json!(20), &json!("0-19")),
        "{status}"
    );
    let pods = get(machine, &["pods", "-l", "batch.kubernetes.io/job-name=indexed"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    assert_eq!(pods.len(), 20, "no index ran twice");
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let index = &pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"];
        let index = index.as_str().unwrap_or_default();
        let log = machine.kubectl(["logs", name])?;
        assert_eq!(log, format!("{index} indexed-{index}\n"));
        assert!(name.starts_with(&format!("indexed-{index}-")), "{name}");
    }
    Ok(())
}

fn assert_policy(machine: &Machine) -> anyhow::Result<()> {
    let job = wait(machine, "strict", "failed")?;
    assert_eq!(
        conditions(&job),
        ["FailureTarget PodFailurePolicy", "Failed PodFailurePolicy"]
    );
    let message = job["status"]["conditions"][1]["message"].as_str().unwrap_or_default();
    let (start, end) = (
        "Container main for pod default/strict-",
        " failed with exit code 42 matching FailJob rule at index 0",
    );
    assert!(message.starts_with(start) && message.ends_with(end), "{message}");
    assert_eq!(job["status"]["failed"], 1);
    events(machine, "strict", "Warning PodFailurePolicy: Container main for pod")
}

fn assert_short_lived(machine: &Machine) -> anyhow::Result<()> {
    eventually("the job goes after its end, and its pods with it", || {
        let left = machine
            .kubectl(["get", "jobs,pods", "-o=name"])
            .map_err(|error| error.to_string())?;
        if left.contains("short-lived") {
            Err(left)
        } else {
            Ok(())
        }
    })
}

fn assert_suspended(machine: &Machine) -> anyhow::Result<()> {
    let job = wait(machine, "suspended", "suspended")?;
    assert!(job["status"]["startTime"].is_null(), "{}", job["status"]);
    let why = machine.skiff(["why", "job/suspended"])?;
    assert!(why.contains("It is suspended"), "{why}");
    let directives = r#"{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/os":"linux"}}}}}"#;
    machine.kubectl(["patch", "job", "suspended", "-p", directives])?;
    machine.kubectl(["patch", "job", "suspended", "-p", r#"{"spec":{"suspend":false}}"#])?;
    let job = wait(machine, "suspended", "complete")?;
    assert_eq!(conditions(&job)[0], "Suspended JobResumed");
    events(machine, "suspended", "Normal Suspended: Job suspended")?;
    events(machine, "suspended", "Normal Resumed: Job resumed")
}

fn assert_scheduled(machine: &Machine) -> anyhow::Result<()> {
    machine.kubectl(["create", "job", "--from=cronjob/tick", "by-hand"])?;
    wait(machine, "by-hand", "complete")?;
    let scheduled = "--for=jsonpath={.status.lastScheduleTime}";
    machine.kubectl(["wait", scheduled, "--timeout=90s", "cronjob/tick"])?;
    let status = get(machine, &["cronjob", "tick"])?["status"].clone();
    let scheduled = status["lastScheduleTime"].as_str().unwrap_or_default().to_owned();
    assert!(scheduled.ends_with(":00Z"), "{status}");
    let jobs = get(machine, &["jobs"])?;
    let jobs = jobs["items"].as_array().cloned().unwrap_or_default();
    let annotation = "batch.kubernetes.io/cronjob-scheduled-timestamp";
    let own = jobs
        .iter()
        .find(|job| job["metadata"]["annotations"][annotation] == *scheduled);
    let own = own.unwrap_or_else(|| panic!("no job for {scheduled}: {jobs:#?}"));
    let name = own["metadata"]["name"].as_str().unwrap_or_default();
    let minutes = scheduled.parse::<k8s_openapi::jiff::Timestamp>()?.as_second() / 60;
    assert_eq!(name, format!("tick-{minutes}"));
    wait(machine, name, "complete")?;
    let succeeded = "--for=jsonpath={.status.lastSuccessfulTime}";
    machine.kubectl(["wait", succeeded, "--timeout=60s", "cronjob/tick"])?;
    assert_eq!(machine.kubectl(["logs", &format!("job/{name}")])?, "tick\n");
    events(machine, "tick", &format!("Normal SuccessfulCreate: Created job {name}"))?;
    events(
        machine,
        "tick",
        &format!("Normal SawCompletedJob: Saw completed job: {name}, condition: Complete"),
    )
}
