mod ends;
mod histories;
mod world;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use world::World;

/// Plans each Job of a spec and status with its pods, and prints a line that names the pods, then
/// one line per step.
fn table(rows: &[(&Value, &Value, &[&str])], expected: &Expect) {
    let mut lines = Vec::new();
    for (spec, status, pods) in rows {
        let mut world = World::new(spec, status);
        for pod in *pods {
            world.put(pod);
        }
        lines.push(format!("[{}]", pods.join(", ")));
        lines.extend(world.plan().to_lines());
    }
    expected.assert_eq(&lines.join("\n"));
}

/// The status of a Job that has begun and has no pods.
fn begun() -> Value {
    json!({
        "ready": 0, "terminating": 0, "startTime": "2026-01-01T00:59:00Z", "uncountedTerminatedPods": {},
    })
}

#[test]
fn makes_pods_until_enough_have_succeeded() {
    let begun = &begun();
    let spec = |completions: Value, parallelism: u32| json!({ "completions": completions, "parallelism": parallelism });
    let (three, two, any) = (&spec(json!(3), 2), &spec(json!(2), 2), &spec(json!(null), 3));
    table(
        &[
            (&json!({}), begun, &[]),
            (three, begun, &[]),
            (three, begun, &["a Running", "b Succeeded at=50"]),
            (two, begun, &["a Running", "b Succeeded at=50"]),
            (any, begun, &["a Running", "b Running"]),
            (any, begun, &["a Running", "b Succeeded at=50"]),
            (&json!({}), begun, &["counted Succeeded at=50 untracked"]),
            (&spec(json!(0), 1), begun, &[]),
        ],
        &expect![[r#"
            []
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            []
            1 patch Job j/status {"active":2,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            [a Running, b Succeeded at=50]
            1 patch Job j/status {"active":2,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"succeeded":["b"]}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            2 patch Pod b untracked
            [a Running, b Succeeded at=50]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"succeeded":["b"]}} []
            2 patch Pod b untracked
            [a Running, b Running]
            1 patch Job j/status {"active":3,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            [a Running, b Succeeded at=50]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"succeeded":["b"]}} []
            2 patch Pod b untracked
            [counted Succeeded at=50 untracked]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            []
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} [SuccessCriteriaMet=True CompletionsReached: Reached expected number of succeeded pods]"#]],
    );
}

#[test]
fn gives_up_pods_that_are_too_many() {
    let begun = &begun();
    let indexed = json!({ "completions": 2, "parallelism": 2, "completionMode": "Indexed" });
    let pods = [
        "a Running index=0",
        "b Running index=0 ready",
        "c Running index=7",
        "d Running",
    ];
    table(
        &[
            (
                &json!({ "completions": 3, "parallelism": 1 }),
                begun,
                &["a Running ready", "b Pending", "c Running"],
            ),
            (&indexed, begun, &pods),
            (&json!({ "suspend": true }), begun, &["a Running", "b Failed at=10"]),
        ],
        &expect![[r"
            [a Running ready, b Pending, c Running]
            1 patch Pod b untracked exactly
            1 patch Pod c untracked exactly
            2 delete Pod b (SuccessfulDelete: Deleted pod: {})
            2 delete Pod c (SuccessfulDelete: Deleted pod: {})
            [a Running index=0, b Running index=0 ready, c Running index=7, d Running]
            1 patch Pod d untracked exactly
            1 patch Pod a untracked exactly
            1 patch Pod c untracked exactly
            2 delete Pod d (SuccessfulDelete: Deleted pod: {})
            2 delete Pod a (SuccessfulDelete: Deleted pod: {})
            2 delete Pod c (SuccessfulDelete: Deleted pod: {})
            [a Running, b Failed at=10]
            1 patch Pod a untracked exactly
            2 delete Pod a (SuccessfulDelete: Deleted pod: {})"]],
    );
}

#[test]
fn counts_each_pod_in_three_steps() {
    let spec = &json!({ "completions": 3, "parallelism": 1, "backoffLimit": 6 });
    let mut listed = begun();
    listed["active"] = json!(1);
    listed["uncountedTerminatedPods"] = json!({ "succeeded": ["a"], "failed": ["b"] });
    let pods = ["a Succeeded at=1", "b Failed at=2", "c Running"];
    table(
        &[
            (spec, &begun(), &pods),
            (spec, &listed, &pods),
            (
                spec,
                &listed,
                &["a Succeeded at=1 untracked", "b Failed at=2", "c Running"],
            ),
            (spec, &listed, &["c Running"]),
        ],
        &expect![[r#"
            [a Succeeded at=1, b Failed at=2, c Running]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["b"],"succeeded":["a"]}} []
            2 patch Pod a untracked
            2 patch Pod b untracked
            [a Succeeded at=1, b Failed at=2, c Running]
            1 patch Pod a untracked
            1 patch Pod b untracked
            [a Succeeded at=1 untracked, b Failed at=2, c Running]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{"failed":["b"]}} []
            2 patch Pod b untracked
            [c Running]
            1 patch Job j/status {"active":1,"failed":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{}} []"#]],
    );
}

#[test]
fn a_pod_that_is_deleted_has_failed_unless_its_end_is_waited_for() {
    let spec = |policy: &str| json!({ "podReplacementPolicy": policy });
    table(
        &[
            (&spec("TerminatingOrFailed"), &begun(), &["a Running deleted=1"]),
            (&spec("Failed"), &begun(), &["a Running deleted=1"]),
        ],
        &expect![[r#"
            [a Running deleted=1]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":1,"uncountedTerminatedPods":{"failed":["a"]}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            2 patch Pod a untracked
            [a Running deleted=1]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":1,"uncountedTerminatedPods":{}} []"#]],
    );
}

#[test]
fn a_failure_is_waited_after() {
    let (begun, one, two) = (&begun(), &json!({}), &json!({ "completions": 2 }));
    table(
        &[
            (one, begun, &["a Failed at=3599"]),
            (
                one,
                begun,
                &["a Failed at=3595", "b Failed at=3590", "c Failed at=3585"],
            ),
            (one, begun, &["a Failed at=3580"]),
            (two, begun, &["a Failed at=3595", "b Succeeded at=3598"]),
        ],
        &expect![[r#"
            [a Failed at=3599]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a"]}} []
            2 patch Pod a untracked
            again in 9s
            [a Failed at=3595, b Failed at=3590, c Failed at=3585]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a","b","c"]}} []
            2 patch Pod a untracked
            2 patch Pod b untracked
            2 patch Pod c untracked
            again in 35s
            [a Failed at=3580]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a"]}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            2 patch Pod a untracked
            [a Failed at=3595, b Succeeded at=3598]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a"],"succeeded":["b"]}} []
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            2 patch Pod a untracked
            2 patch Pod b untracked"#]],
    );
}

#[test]
fn indexes_have_a_pod_each() {
    let indexed = &json!({ "completions": 5, "parallelism": 3, "completionMode": "Indexed" });
    let mut told = begun();
    told["succeeded"] = json!(4);
    told["completedIndexes"] = json!("0-2,4");
    let pods = [
        "a Running index=1",
        "b Succeeded index=0 at=5",
        "c Failed index=2 at=6",
        "d Succeeded index=9 at=1",
    ];
    table(
        &[
            (indexed, &begun(), &[]),
            (indexed, &begun(), &pods),
            (indexed, &told, &["d Succeeded index=3 at=9"]),
            (indexed, &told, &["d Succeeded index=2 at=9"]),
        ],
        &expect![[r#"
            []
            1 patch Job j/status {"active":3,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j-0- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"0"} hostname="j-0" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            1 create Pod j-1- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"1"} hostname="j-1" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            1 create Pod j-2- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"2"} hostname="j-2" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            [a Running index=1, b Succeeded index=0 at=5, c Failed index=2 at=6, d Succeeded index=9 at=1]
            1 patch Job j/status {"active":3,"completedIndexes":"0","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{"failed":["c"]}} []
            1 create Pod j-2- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"2"} hostname="j-2" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            1 create Pod j-3- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"3"} hostname="j-3" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            2 patch Pod b untracked
            2 patch Pod c untracked
            2 patch Pod d untracked
            [d Succeeded index=3 at=9]
            1 patch Job j/status {"completedIndexes":"0-4","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":5,"terminating":0,"uncountedTerminatedPods":{}} [SuccessCriteriaMet=True CompletionsReached: Reached expected number of succeeded pods]
            2 patch Pod d untracked
            [d Succeeded index=2 at=9]
            1 patch Job j/status {"active":1,"completedIndexes":"0-2,4","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":4,"terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j-3- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"3"} hostname="j-3" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            2 patch Pod d untracked"#]],
    );
}

#[test]
fn an_index_has_a_limit_of_its_own() {
    let begun = &begun();
    let spec = &json!({
        "completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "backoffLimit": 100,
    });
    let mut few = spec.clone();
    few["maxFailedIndexes"] = json!(0);
    let (first, second) = ("a Failed index=0 at=3000", "d Failed index=0 failures=1 at=3100");
    let (b, c) = ("b Running index=1", "c Running index=2");
    let done = ["b Succeeded index=1 at=3", "c Succeeded index=2 at=1"];
    // The failed pod is kept until a new one has taken over its count.
    table(
        &[
            (spec, begun, &[first, b, c]),
            (spec, begun, &[first, "d Running index=0 failures=1", b, c]),
            (spec, begun, &[second, b, done[1]]),
            (spec, begun, &[second, done[0], done[1]]),
            (&few, begun, &[second, b, done[1]]),
        ],
        &expect![[r#"
            [a Failed index=0 at=3000, b Running index=1, c Running index=2]
            1 patch Job j/status {"active":3,"failedIndexes":"","ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
            1 create Pod j-0- (SuccessfulCreate: Created pod: {}) {"batch.kubernetes.io/job-completion-index":"0","batch.kubernetes.io/job-index-failure-count":"1"} hostname="j-0" env=[{"name":"JOB_COMPLETION_INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]
            [a Failed index=0 at=3000, d Running index=0 failures=1, b Running index=1, c Running index=2]
            1 patch Job j/status {"active":3,"failedIndexes":"","ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"failed":["a"]}} []
            2 patch Pod a untracked
            [d Failed index=0 failures=1 at=3100, b Running index=1, c Succeeded index=2 at=1]
            1 patch Job j/status {"active":1,"completedIndexes":"2","failedIndexes":"0","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":1,"terminating":0,"uncountedTerminatedPods":{"failed":["d"]}} []
            2 patch Pod d untracked
            2 patch Pod c untracked
            [d Failed index=0 failures=1 at=3100, b Succeeded index=1 at=3, c Succeeded index=2 at=1]
            1 patch Job j/status {"completedIndexes":"1,2","failedIndexes":"0","ready":0,"startTime":"2026-01-01T00:59:00Z","succeeded":2,"terminating":0,"uncountedTerminatedPods":{"failed":["d"]}} [FailureTarget=True FailedIndexes: Job has failed indexes]
            2 patch Pod d untracked
            2 patch Pod b untracked
            2 patch Pod c untracked
            [d Failed index=0 failures=1 at=3100, b Running index=1, c Succeeded index=2 at=1]
            1 delete Pod b (SuccessfulDelete: Deleted pod: {})
            2 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} [FailureTarget=True MaxFailedIndexesExceeded: Job has exceeded the specified maximal number of failed indexes]"#]],
    );
}

#[test]
fn a_suspended_job_begins_anew() {
    let mut suspended = begun();
    suspended["startTime"] = json!(null);
    suspended["conditions"] =
        json!([{ "type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended" }]);
    table(
        &[
            (&json!({ "suspend": true, "activeDeadlineSeconds": 60 }), &begun(), &[]),
            (&json!({ "activeDeadlineSeconds": 60 }), &suspended, &[]),
        ],
        &expect![[r#"
            []
            1 patch Job j/status (Suspended: Job suspended) {"ready":0,"terminating":0,"uncountedTerminatedPods":{}} [Suspended=True JobSuspended: Job suspended]
            []
            1 patch Job j/status (Resumed: Job resumed) {"active":1,"ready":0,"startTime":"2026-01-01T01:00:00Z","terminating":0,"uncountedTerminatedPods":{}} [Suspended=False JobResumed: Job resumed]
            1 create Pod j- (SuccessfulCreate: Created pod: {})
            again in 60s"#]],
    );
}

#[test]
fn a_job_that_goes_or_is_another_controllers_is_left_alone() {
    let manager = |name: &str| json!({ "managedBy": name });
    table(
        &[
            (&manager("example.com/other"), &begun(), &["a Succeeded at=1"]),
            (
                &manager("kubernetes.io/job-controller"),
                &begun(),
                &["a Succeeded at=1"],
            ),
        ],
        &expect![[r#"
            [a Succeeded at=1]
            [a Succeeded at=1]
            1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"succeeded":["a"]}} [SuccessCriteriaMet=True CompletionsReached: Reached expected number of succeeded pods]
            2 patch Pod a untracked"#]],
    );
    let mut world = World::new(&json!({ "completions": 2, "parallelism": 2 }), &begun());
    world.job["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    world.put("a Running");
    expect![[r#"
        1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []
        2 patch Pod a untracked"#]].assert_eq(&world.plan().to_lines().join("\n"));
}

#[test]
fn pods_are_adopted_and_released_with_their_finalizer() {
    table(
        &[
            (&json!({}), &begun(), &["a Running orphan untracked"]),
            (&json!({}), &begun(), &["a Running stranger"]),
            (
                &json!({ "selector": { "matchLabels": null } }),
                &begun(),
                &["a Running stranger"],
            ),
        ],
        &expect![[r#"
            [a Running orphan untracked]
            1 patch Pod a {"finalizers":["batch.kubernetes.io/job-tracking"],"ownerReferences":[{"apiVersion":"batch/v1","blockOwnerDeletion":true,"controller":true,"kind":"Job","name":"j","uid":"job"}]}
            [a Running stranger]
            1 patch Pod a {"finalizers":[],"ownerReferences":[]}
            [a Running stranger]
            1 patch Job j/status {"active":1,"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{}} []"#]],
    );
}

#[test]
fn a_refusal_keeps_nothing_from_being_counted() {
    let mut world = World::new(&json!({ "completions": 5, "parallelism": 5 }), &begun());
    world.put("a Succeeded at=1");
    world.refusal = true;
    expect![[r#"
        1 patch Job j/status {"ready":0,"startTime":"2026-01-01T00:59:00Z","terminating":0,"uncountedTerminatedPods":{"succeeded":["a"]}} []
        2 patch Pod a untracked
        3 create Pod j- (SuccessfulCreate: Created pod: {})"#]].assert_eq(&world.plan().to_lines().join("\n"));
}

#[test]
fn the_ends_of_many_pods_are_gathered() {
    let ended = &["end Succeeded at=1"][..];
    for (running, others, suspended, expected) in [
        (8, ended, false, false),
        (9, ended, false, true),
        (9, &["end Succeeded at=1", "other Failed at=2"][..], false, true),
        (20, ended, false, true),
        (9, ended, true, false),
    ] {
        let spec = json!({ "completions": 90, "parallelism": 30, "suspend": suspended });
        let mut world = World::new(&spec, &begun());
        (0..running).for_each(|pod| world.put(&format!("p{pod} Running")));
        for pod in others {
            world.put(pod);
        }
        let plan = world.plan().0;
        assert_eq!(plan.patience.is_some(), expected, "{running} {others:?} {suspended}");
        assert!(!plan.is_empty());
    }
}

#[test]
fn an_orphan_loses_its_finalizer_when_no_job_will_count_it() {
    let mut world = World::new(&json!({}), &json!({}));
    let finished = json!([{ "type": "Complete", "status": "True" }]);
    let mut lines = Vec::new();
    for (pod, conditions, known) in [
        ("free Running orphan", json!([]), true),
        ("counted Succeeded", json!([]), true),
        ("late Succeeded", finished, true),
        ("early Running", json!([]), false),
        ("gone Running deleted=1", json!([]), false),
        ("clean Succeeded untracked", json!([]), false),
    ] {
        world.put(pod);
        world.job["status"]["conditions"] = conditions;
        let name = pod.split(' ').next().unwrap();
        let job = serde_json::from_value(world.job.clone()).unwrap();
        let pod = serde_json::from_value(world.pods[name].clone()).unwrap();
        let plan = super::plan_orphan(&pod, Some(&job).filter(|_| known));
        lines.push(format!("{name}: {plan}"));
    }
    expect![[r"
        free: patch Pod free
        counted: 
        late: patch Pod late
        early: 
        gone: patch Pod gone
        clean: "]]
    .assert_eq(&lines.join("\n"));
}
