//! Ends of Jobs.

use expect_test::expect;
use serde_json::{Value, json};

use super::world::NOW;
use super::{begun, table};

#[test]
fn a_job_fails_at_its_limits() {
    let begun = &begun();
    let limit = &json!({ "backoffLimit": 1 });
    let deadline = |seconds: u32| json!({ "activeDeadlineSeconds": seconds });
    let in_place = &json!({ "backoffLimit": 2, "template": { "spec": { "restartPolicy": "OnFailure" } } });
    table(
        &[
            (limit, begun, &["a Failed at=1", "b Failed at=2", "c Running"]),
            (limit, begun, &["a Failed at=1", "b Failed at=2"]),
            (&deadline(60), begun, &["a Running"]),
            (&deadline(90), begun, &["a Running"]),
            (in_place, begun, &["a Running restarts=1"]),
            (in_place, begun, &["a Running restarts=2"]),
        ],
        &expect![[r#"
            [a Failed at=1, b Failed at=2, c Running]
            1 delete Pod c (SuccessfulDelete: Deleted pod: {})
            2 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} [FailureTarget=True BackoffLimitExceeded: Job has reached the specified backoff limit]
            [a Failed at=1, b Failed at=2]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a","b"]}} [FailureTarget=True BackoffLimitExceeded: Job has reached the specified backoff limit]
            2 patch Pod a untracked
            2 patch Pod b untracked
            [a Running]
            1 delete Pod a (SuccessfulDelete: Deleted pod: {})
            2 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} [FailureTarget=True DeadlineExceeded: Job was active longer than specified deadline]
            [a Running]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            again in 30s
            [a Running restarts=1]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            [a Running restarts=2]
            1 delete Pod a (SuccessfulDelete: Deleted pod: {})
            2 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} [FailureTarget=True BackoffLimitExceeded: Job has reached the specified backoff limit]"#]],
    );
}

#[test]
fn the_end_is_told_when_nothing_is_left() {
    let status = |kind: &str, reason: &str| {
        let mut status = begun();
        status["succeeded"] = json!(1);
        status["conditions"] = json!([{ "type": kind, "status": "True", "reason": reason, "message": "m" }]);
        status
    };
    let fails = &status("FailureTarget", "BackoffLimitExceeded");
    let succeeds = &status("SuccessCriteriaMet", "CompletionsReached");
    let one = &json!({});
    table(
        &[
            (one, fails, &["a Running deleted=1 untracked"]),
            (one, fails, &[]),
            (one, succeeds, &[]),
            (&json!({ "completions": 0 }), succeeds, &[]),
            (one, &status("Complete", "CompletionsReached"), &["a Succeeded"]),
        ],
        &expect![[r#"
            [a Running deleted=1 untracked]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":1,"uncountedTerminatedPods":{}} [FailureTarget=True BackoffLimitExceeded: m]
            []
            1 patch Job j/status (BackoffLimitExceeded: m) {"ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{}} [FailureTarget=True BackoffLimitExceeded: m; Failed=True BackoffLimitExceeded: m]
            []
            1 patch Job j/status (Completed: Job completed) {"completionTime":"2026-01-01T01:00:00Z","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{}} [SuccessCriteriaMet=True CompletionsReached: m; Complete=True CompletionsReached: m]
            []
            1 patch Job j/status (Completed: Job completed) {"completionTime":"2026-01-01T01:00:00Z","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{}} [SuccessCriteriaMet=True CompletionsReached: m; Complete=True CompletionsReached: m]
            2 event TooManySucceededPods: Too many succeeded pods running after completion count reached
            [a Succeeded]"#]],
    );
}

#[test]
fn a_failure_policy_says_what_a_failure_counts() {
    let begun = &begun();
    let policy = |action: &str| {
        json!({ "backoffLimit": 0, "podReplacementPolicy": "Failed", "podFailurePolicy": { "rules": [
            { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            { "action": action, "onExitCodes": { "containerName": "main", "operator": "In", "values": [3, 42] } },
        ] } })
    };
    let mut index = policy("FailIndex");
    for (field, value) in [
        ("completionMode", json!("Indexed")),
        ("completions", json!(2)),
        ("backoffLimitPerIndex", json!(5)),
        ("backoffLimit", json!(9)),
    ] {
        index[field] = value;
    }
    table(
        &[
            (&policy("FailJob"), begun, &["a Failed exit=42 at=1"]),
            (
                &policy("FailJob"),
                begun,
                &["a Failed exit=42 at=1 condition=DisruptionTarget"],
            ),
            (&policy("Count"), begun, &["a Failed exit=42 at=1"]),
            (&policy("Ignore"), begun, &["a Failed exit=3 at=3599"]),
            (&index, begun, &["a Failed exit=3 index=0 at=1"]),
            (&index, begun, &["a Failed exit=4 index=0 at=1 failures=2"]),
        ],
        &expect![[r#"
            [a Failed exit=42 at=1]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a"]}} [FailureTarget=True PodFailurePolicy: Container main for pod default/a failed with exit code 42 matching FailJob rule at index 1]
            2 patch Pod a untracked
            [a Failed exit=42 at=1 condition=DisruptionTarget]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            2 patch Pod a untracked
            [a Failed exit=42 at=1]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a"]}} [FailureTarget=True BackoffLimitExceeded: Job has reached the specified backoff limit]
            2 patch Pod a untracked
            [a Failed exit=3 at=3599]
            1 patch Pod a untracked
            again in 9s
            [a Failed exit=3 index=0 at=1]
            1 patch Job j/status {"active":1,"failedIndexes":"0","ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a"]}} []
            1 create Pod j-1- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"1","batch.kubernetes.io/job-index-failure-count":"0"} hostname="j-1" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            2 patch Pod a untracked
            [a Failed exit=4 index=0 at=1 failures=2]
            1 patch Job j/status {"active":1,"failedIndexes":"","ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j-0- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"0","batch.kubernetes.io/job-index-failure-count":"3"} hostname="j-0" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]"#]],
    );
}

#[test]
fn a_success_policy_ends_a_job_early() {
    let begun = &begun();
    let policy = |rule: Value| {
        json!({
            "completions": 5, "parallelism": 5, "completionMode": "Indexed", "successPolicy": { "rules": [rule] },
        })
    };
    let two = &policy(json!({ "succeededIndexes": "1-3", "succeededCount": 2 }));
    let pods = [
        "a Succeeded index=1 at=1",
        "b Succeeded index=3 at=2",
        "c Running index=0",
    ];
    table(
        &[
            (two, begun, &pods),
            (two, begun, &pods[..2]),
            (&policy(json!({ "succeededCount": 3 })), begun, &pods[1..]),
        ],
        &expect![[r#"
            [a Succeeded index=1 at=1, b Succeeded index=3 at=2, c Running index=0]
            1 delete Pod c (SuccessfulDelete: Deleted pod: {})
            2 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} [SuccessCriteriaMet=True SuccessPolicy: Matched rules at index 0]
            [a Succeeded index=1 at=1, b Succeeded index=3 at=2]
            1 patch Job j/status {"completedIndexes":"1,3","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":2,"terminating":0,"uncountedTerminatedPods":{}} [SuccessCriteriaMet=True SuccessPolicy: Matched rules at index 0]
            2 patch Pod a untracked
            2 patch Pod b untracked
            [b Succeeded index=3 at=2, c Running index=0]
            1 patch Job j/status {"active":4,"completedIndexes":"3","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j-1- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"1"} hostname="j-1" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            1 create Pod j-2- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"2"} hostname="j-2" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            1 create Pod j-4- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"4"} hostname="j-4" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            2 patch Pod b untracked"#]],
    );
}

#[test]
fn a_job_goes_some_time_after_its_end() {
    let mut lines = Vec::new();
    for (ttl, ended) in [
        (json!(null), "00:00:00"),
        (json!(0), "01:00:00"),
        (json!(60), "00:59:30"),
        (json!(60), "00:59:00"),
    ] {
        let job = json!({
            "metadata": { "name": "j", "namespace": "n", "uid": "u" },
            "spec": { "ttlSecondsAfterFinished": ttl, "template": {} },
            "status": { "conditions": [
                { "type": "Failed", "status": "True", "lastTransitionTime": format!("2026-01-01T{ended}Z") },
            ] },
        });
        let plan = crate::workloads::job::ttl::plan(&serde_json::from_value(job).unwrap(), NOW.parse().unwrap());
        lines.push(format!("{ttl} {ended}: {plan}"));
    }
    expect![[r"
        null 00:00:00: 
        0 01:00:00: delete Job j
        60 00:59:30:  again in 30s
        60 00:59:00: delete Job j"]]
    .assert_eq(&lines.join("\n"));
}
