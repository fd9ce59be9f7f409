use std::collections::BTreeSet;

use expect_test::{Expect, expect};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use serde_json::{Value, json};

use super::{Snapshot, plan};
use crate::step::Step;

/// Minutes since the epoch at this hour, as in Jobs' names.
const HOUR: i64 = 29_453_820;

fn job(text: &str) -> Job {
    let words: Vec<&str> = text.split(' ').collect();
    let minutes: i64 = words[0].parse().unwrap();
    let time = k8s_openapi::jiff::Timestamp::from_second((HOUR + minutes) * 60).unwrap();
    let manual = words.contains(&"manual");
    let name = if manual {
        format!("manual-{minutes}")
    } else {
        format!("tick-{}", HOUR + minutes)
    };
    let annotation = if manual {
        json!({})
    } else {
        json!({ super::SCHEDULED: time.to_string() })
    };
    let end = words[1];
    let condition = json!([{ "type": end, "status": "True" }]);
    let done = (end == "Complete").then(|| time.to_string());
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "uid": words[0], "annotations": annotation },
        "spec": { "template": {} },
        "status": {
            "conditions": if end == "Active" { json!([]) } else { condition },
            "startTime": time.to_string(), "completionTime": done,
        },
    }))
    .unwrap()
}

fn cron_job(spec: &Value, status: &Value) -> CronJob {
    let mut whole = json!({
        "schedule": "*/10 * * * *", "concurrencyPolicy": "Allow",
        "jobTemplate": { "metadata": { "labels": { "a": "b" } }, "spec": { "template": {} } },
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": "tick", "namespace": "default", "uid": "c", "creationTimestamp": "2026-01-01T00:55:00Z",
        },
        "spec": whole, "status": status,
    }))
    .unwrap()
}

/// Plans each status and its Jobs at a time of day, and prints a line that names these, then one
/// line per step.
fn table(rows: &[(&Value, &Value, &[&str], &str)], expected: &Expect) {
    let mut lines = Vec::new();
    for (spec, status, jobs, now) in rows {
        let cron_job = cron_job(spec, status);
        let made: Vec<Job> = jobs.iter().map(|text| job(text)).collect();
        let made: Vec<&Job> = made.iter().collect();
        let missing = BTreeSet::from(["gone".to_owned()]);
        let snapshot = Snapshot {
            cron_job: &cron_job,
            jobs: &made,
            uid_of: &|name| name.ends_with("850").then(|| "of-another".to_owned()),
            missing: &missing,
            rescheduled: &|| jobs.contains(&"-9 Complete rescheduled"),
        };
        let plan = plan(&snapshot, format!("2026-01-01T{now}Z").parse().unwrap());
        lines.push(format!("{now} [{}]", jobs.join(", ")));
        lines.extend(plan.stages.iter().flatten().map(line));
        lines.extend(plan.again.map(|delay| format!("again in {}s", delay.as_secs())));
    }
    expected.assert_eq(&lines.join("\n"));
}

fn line(step: &Step) -> String {
    match step {
        Step::Create { body, .. } => format!("{step} {}", body["metadata"]["annotations"]),
        Step::Patch { body, .. } => {
            let mut status = body["status"].clone();
            for active in status["active"].as_array_mut().into_iter().flatten() {
                *active = active["name"].clone();
            }
            format!("{step} {status}")
        }
        Step::Delete { .. } | Step::Look(_) | Step::Measure(_) | Step::Event(_) => step.to_string(),
    }
}

fn active(uids: &[&str], last: &str) -> Value {
    let active: Vec<Value> = uids
        .iter()
        .map(|uid| json!({ "uid": uid, "name": format!("job-{uid}") }))
        .collect();
    json!({ "active": active, "lastScheduleTime": format!("2026-01-01T{last}Z") })
}

#[test]
fn a_job_is_made_at_each_time_and_listed_when_it_is_there() {
    let (ten, new, listed) = (&json!({}), &json!({}), &active(&["0"], "01:00:00"));
    // The Job of 00:30 has another controller.
    let half_past = &json!({ "schedule": "30 * * * *" });
    table(
        &[
            (ten, new, &[], "00:59:30"),
            (ten, new, &[], "01:00:00"),
            (ten, new, &["0 Active"], "01:00:01"),
            (ten, new, &["0 Complete"], "01:00:01"),
            (ten, listed, &["0 Active"], "01:00:02"),
            (ten, listed, &["0 Complete"], "01:05:00"),
            (ten, listed, &["0 Active"], "01:10:00"),
            (half_past, new, &[], "01:30:00"),
        ],
        &expect![[r#"
            00:59:30 []
            again in 30s
            01:00:00 []
            create Job tick-29453820 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T01:00:00Z"}
            again in 600s
            01:00:01 [0 Active]
            patch CronJob tick/status {"active":["tick-29453820"],"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":null}
            again in 599s
            01:00:01 [0 Complete]
            patch CronJob tick/status {"active":null,"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":"2026-01-01T01:00:00Z"}
            event SawCompletedJob: Saw completed job: tick-29453820, condition: Complete
            again in 599s
            01:00:02 [0 Active]
            again in 598s
            01:05:00 [0 Complete]
            patch CronJob tick/status {"active":null,"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":"2026-01-01T01:00:00Z"}
            event SawCompletedJob: Saw completed job: tick-29453820, condition: Complete
            again in 300s
            01:10:00 [0 Active]
            create Job tick-29453830 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T01:10:00Z"}
            again in 600s
            01:30:00 []
            again in 3600s"#]],
    );
}

#[test]
fn two_at_once_are_a_matter_of_policy() {
    let policy = |policy: &str| json!({ "concurrencyPolicy": policy });
    let (forbid, replace) = (&policy("Forbid"), &policy("Replace"));
    let listed = &active(&["0"], "01:00:00");
    table(
        &[
            (forbid, listed, &["0 Active"], "01:10:00"),
            (forbid, listed, &["0 Failed"], "01:10:00"),
            (replace, listed, &["0 Active"], "01:10:00"),
            (forbid, &active(&[], "01:00:00"), &["3 Active manual"], "01:10:00"),
        ],
        &expect![[r#"
            01:10:00 [0 Active]
            event JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid
            again in 600s
            01:10:00 [0 Failed]
            patch CronJob tick/status {"active":null,"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":null}
            event SawCompletedJob: Saw completed job: tick-29453820, condition: Failed
            create Job tick-29453830 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T01:10:00Z"}
            again in 600s
            01:10:00 [0 Active]
            delete Job tick-29453820 (SuccessfulDelete: Deleted job {})
            patch CronJob tick/status {"active":null,"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":null}
            create Job tick-29453830 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T01:10:00Z"}
            again in 600s
            01:10:00 [3 Active manual]
            event UnexpectedJob: Saw a job that the controller did not create or forgot: manual-3
            create Job tick-29453830 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T01:10:00Z"}
            again in 600s"#]],
    );
}

#[test]
fn missed_times_are_made_up_for_once() {
    let (ten, often, every) = (
        &json!({}),
        &json!({ "schedule": "* * * * *" }),
        &json!({ "schedule": "@every 7m" }),
    );
    let deadline = &json!({ "startingDeadlineSeconds": 60 });
    let none = &active(&[], "01:00:00");
    table(
        &[
            (ten, none, &[], "02:34:00"),
            (often, none, &[], "03:34:00"),
            (deadline, none, &[], "01:10:59"),
            (deadline, none, &[], "01:12:00"),
            (every, &active(&[], "01:00:03"), &[], "01:20:00"),
            // The clock was set back.
            (ten, &active(&[], "05:00:00"), &[], "01:10:00"),
        ],
        &expect![[r#"
            02:34:00 []
            create Job tick-29453910 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T02:30:00Z"}
            again in 360s
            03:34:00 []
            event TooManyMissedTimes: too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew
            create Job tick-29453974 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T03:34:00Z"}
            again in 60s
            01:10:59 []
            create Job tick-29453830 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T01:10:00Z"}
            again in 541s
            01:12:00 []
            again in 480s
            01:20:00 []
            create Job tick-29453834 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T01:14:03Z"}
            again in 63s
            01:10:00 []
            again in 14400s"#]],
    );
}

#[test]
fn a_new_schedule_counts_from_its_next_time_on() {
    let often = json!({ "schedule": "* * * * *" });
    table(
        &[(
            &often,
            &active(&[], "00:51:00"),
            &["-9 Complete rescheduled"],
            "01:05:20",
        )],
        &expect![[r#"
            01:05:20 [-9 Complete rescheduled]
            patch CronJob tick/status {"active":null,"lastScheduleTime":"2026-01-01T00:51:00Z","lastSuccessfulTime":"2026-01-01T00:51:00Z"}
            again in 40s"#]],
    );
}

#[test]
fn old_jobs_go() {
    let spec = json!({ "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0 });
    let jobs = ["-40 Complete", "-30 Failed", "-20 Complete", "-10 Active"];
    table(
        &[(&spec, &active(&["-10"], "01:00:00"), &jobs, "01:05:00")],
        &expect![[r#"
            01:05:00 [-40 Complete, -30 Failed, -20 Complete, -10 Active]
            delete Job tick-29453780 (SuccessfulDelete: Deleted job {})
            delete Job tick-29453790 (SuccessfulDelete: Deleted job {})
            patch CronJob tick/status {"active":["job--10"],"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":"2026-01-01T00:40:00Z"}
            again in 300s"#]],
    );
}

#[test]
fn jobs_that_are_missing_are_looked_for() {
    let ten = &json!({});
    table(
        &[
            (ten, &active(&["1"], "01:00:00"), &[], "01:05:00"),
            (ten, &active(&["gone"], "01:00:00"), &[], "01:05:00"),
        ],
        &expect![[r#"
            01:05:00 []
            look for Job job-1
            01:05:00 []
            patch CronJob tick/status {"active":null,"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":null}
            event MissingJob: Active job went missing: job-gone
            again in 300s"#]],
    );
}

#[test]
fn schedules_that_never_come_are_told_of() {
    let new = &json!({});
    let schedule = |text: &str| json!({ "schedule": text });
    let berlin = &json!({ "schedule": "0 2 * * *", "timeZone": "Europe/Berlin" });
    table(
        &[
            (&json!({ "suspend": true }), new, &["0 Active"], "01:10:00"),
            (&schedule("0 0 31 2 *"), new, &[], "01:10:00"),
            (&schedule("TZ=UTC * * * * *"), new, &[], "01:10:00"),
            (&json!({ "timeZone": "Mars/Olympus" }), new, &[], "01:10:00"),
            (berlin, new, &[], "01:00:05"),
        ],
        &expect![[r#"
            01:10:00 [0 Active]
            patch CronJob tick/status {"active":["tick-29453820"],"lastScheduleTime":"2026-01-01T01:00:00Z","lastSuccessfulTime":null}
            01:10:00 []
            event InvalidSchedule: invalid schedule: 0 0 31 2 * : time difference between two schedules is less than 1 second
            01:10:00 []
            event UnparseableSchedule: unparseable schedule: "TZ=UTC * * * * *" : expected exactly 5 fields, found 6: [TZ=UTC * * * * *]
            01:10:00 []
            event UnknownTimeZone: invalid timeZone: "Mars/Olympus": unknown time zone Mars/Olympus
            01:00:05 []
            create Job tick-29453820 (SuccessfulCreate: Created job {}) {"batch.kubernetes.io/cronjob-scheduled-timestamp":"2026-01-01T02:00:00+01:00"}
            again in 86395s"#]],
    );
}
