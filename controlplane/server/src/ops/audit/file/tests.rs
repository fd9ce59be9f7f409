use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde_json::Value;

use super::*;
use crate::ops::audit::Stage;

fn record(verb: &str, resource: &str, request: &str) -> Record {
    Record {
        request_object: Some(Bytes::copy_from_slice(request.as_bytes())),
        ..crate::ops::audit::tests::record(verb, resource)
    }
}

fn logged(records: Vec<Record>) -> Vec<Value> {
    governed(records, None)
}

fn governed(records: Vec<Record>, policy: Option<&str>) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let policy = policy.map(|text| Policy::parse(text).unwrap());
    let sink = FileSink::open(directory.path(), Limits::default(), policy).unwrap();
    for record in records {
        sink.record(record);
    }
    sink.close();
    let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_write_is_recorded_with_its_objects() {
    let lines = logged(vec![record(
        "create",
        "pods",
        "{\n \"kind\": \"Pod\",\r\n \"a\": \"\\n\"\n}\n",
    )]);
    let expected = serde_json::json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "auditID": "5b4f5e2c",
        "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/default/pods?fieldManager=kubectl",
        "verb": "create", "user": {"username": "jane", "groups": ["system:masters", "system:authenticated"]},
        "impersonatedUser": {"username": "joe", "groups": ["system:authenticated"]},
        "authenticationMetadata": {"impersonationConstraint": "impersonate:user-info"},
        "sourceIPs": ["10.0.0.1"], "userAgent": "kubectl/v1.33.0",
        "objectRef": {"resource": "pods", "namespace": "default", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "requestReceivedTimestamp": "2026-09-21T14:13:20.000001Z", "stageTimestamp": "2026-09-21T14:13:21.000000Z",
        "annotations": {"authorization.k8s.io/decision": "allow"},
        "requestObject": {"kind": "Pod", "a": "\n"}, "responseObject": {"metadata": {"name": "web"}},
    });
    assert_eq!(lines, [expected]);
}

/// As upstream's serializer writes lines (`serializer/json/json.go`).
#[test]
fn what_is_special_to_html_is_escaped() {
    let directory = tempfile::tempdir().unwrap();
    let sink = FileSink::open(directory.path(), Limits::default(), None).unwrap();
    let mut record = record("create", "pods", "{\"a\":\"<b>\u{2028}\"}");
    record.uri = "/api/v1/pods?a=1&b=2".into();
    sink.record(record);
    sink.close();
    let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    for escaped in [
        r#""requestURI":"/api/v1/pods?a=1\u0026b=2""#,
        r#""requestObject":{"a":"\u003cb\u003e\u2028"}"#,
    ] {
        assert!(text.contains(escaped), "{text}");
    }
}

#[test]
fn secrets_stay_out() {
    let secret = r#"{"kind":"Secret","data":{"password":"aHVudGVyMg=="}}"#;
    let mut refused = record("create", "secrets", secret);
    refused.code = 422;
    refused.failure = Some(Box::new(Status {
        message: Some("data[password]: Invalid value: \"aHVudGVyMg==\"".into()),
        reason: Some("Invalid".into()),
        ..Status::default()
    }));
    let misplaced = record("create", "configmaps", &secret.replace(':', " :\n"));
    let mut token = record("create", "serviceaccounts", "{}");
    token.response_object = Some(Bytes::from_static(br#"{"status":{"token":"aHVudGVyMg=="}}"#));
    token.object.as_mut().unwrap().subresource = "token".into();
    let lines = logged(vec![record("update", "secrets", secret), refused, misplaced, token]);
    assert_eq!(lines.len(), 4);
    for line in lines {
        assert!(!line.to_string().contains("aHVudGVyMg"), "{line}");
        assert_eq!(line.get("level").unwrap(), "Metadata");
    }
}

#[test]
fn a_policy_says_what_is_written_but_never_secrets() {
    let policy = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- {level: None, resources: [{resources: [events]}]}
- {level: Request, resources: [{resources: [configmaps]}]}
- {level: RequestResponse}
";
    let managed = r#"{"metadata":{"name":"a","managedFields":[{}]}}"#;
    let secret = r#"{"kind":"Secret","data":{"password":"aHVudGVyMg=="}}"#;
    let mut received = record("create", "pods", managed);
    received.stage = Stage::RequestReceived;
    let records = vec![
        received,
        record("create", "events", "{}"),
        record("update", "configmaps", managed),
        record("get", "pods", ""),
        record("create", "secrets", secret),
        record("create", "pods", secret),
    ];
    let lines: Vec<String> = governed(records, Some(policy))
        .iter()
        .map(|line| {
            let (request, response) = (&line["requestObject"], &line["responseObject"]);
            format!("{} {} {request} {response}", line["stage"], line["level"])
        })
        .collect();
    let answer = r#"{"metadata":{"name":"web"}}"#;
    assert_eq!(
        lines,
        [
            r#""RequestReceived" "RequestResponse" {"metadata":{"name":"a"}} null"#.to_owned(),
            r#""ResponseComplete" "Request" {"metadata":{"name":"a"}} null"#.to_owned(),
            format!(r#""ResponseComplete" "RequestResponse" null {answer}"#),
            r#""ResponseComplete" "Metadata" null null"#.to_owned(),
            r#""ResponseComplete" "Metadata" null null"#.to_owned(),
        ]
    );
}

#[test]
fn reads_are_short_and_renewals_are_silent() {
    let mut denied = record("update", "leases", "{}");
    denied.code = 403;
    let lines = logged(vec![
        record("get", "pods", ""),
        record("update", "leases", "{}"),
        denied,
        record("create", "events", "{}"),
        record("patch", "pods", "not json"),
    ]);
    let level = |line: &Value| line.get("level").and_then(Value::as_str).map(str::to_owned);
    assert_eq!(
        lines.iter().filter_map(level).collect::<Vec<_>>(),
        ["Metadata", "RequestResponse", "Metadata", "RequestResponse"]
    );
    assert!(
        lines
            .iter()
            .all(|line| line.get("requestObject").is_none_or(Value::is_object))
    );
}

#[test]
fn files_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits {
        bytes: 4096,
        files: 3,
        age: None,
    };
    let sink = FileSink::open(directory.path(), limits, None).unwrap();
    for _ in 0..100 {
        sink.record(record("create", "pods", "{}"));
    }
    sink.close();
    let mut found: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    found.sort_by_key(std::fs::DirEntry::file_name);
    let names: Vec<_> = found
        .iter()
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, ["audit.log", "audit.log.1", "audit.log.2"]);
    assert!(
        found
            .iter()
            .all(|entry| entry.metadata().unwrap().len() <= limits.bytes)
    );
}

/// As `--audit-log-maxbackup=0 --audit-log-maxage=1` of upstream's API server.
#[test]
fn a_named_file_may_have_any_number_beside_it_until_they_are_old() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/log");
    let limits = Limits {
        bytes: 1,
        files: u32::MAX,
        age: Some(Duration::from_hours(24)),
    };
    let policy = "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{level: Metadata}]}";
    let write = |count: usize| {
        let sink = FileSink::open_file(&path, limits, Policy::parse(policy).unwrap()).unwrap();
        assert_eq!(Sink::directory(&sink), None);
        for _ in 0..count {
            sink.record(record("create", "pods", "{}"));
        }
        sink.close();
        path.parent().unwrap().read_dir().unwrap().count()
    };
    assert_eq!(write(4), 4);
    let oldest = std::fs::File::options()
        .append(true)
        .open(path.with_added_extension("3"));
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_hours(24);
    oldest.unwrap().set_modified(long_ago).unwrap();
    assert_eq!(write(1), 4, "one was put aside, one was removed");
}

#[test]
fn leases_are_recorded_when_they_come_and_go() {
    let verbs = ["update", "create", "get", "delete"];
    let lines = logged(verbs.map(|verb| record(verb, "leases", "{}")).into());
    let seen: Vec<&str> = lines.iter().filter_map(|line| line["verb"].as_str()).collect();
    assert_eq!(seen, ["create", "delete"]);
}

#[test]
fn what_waits_is_bounded_in_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let sink = FileSink::open(directory.path(), Limits::default(), None).unwrap();
    let object = format!("{{\"a\":\"{}\"}}", "x".repeat(100));
    let mut small = record("create", "pods", &object);
    sink.state.waiting.store(QUEUE_BYTES - 50, Ordering::Relaxed);
    sink.bound(&mut small);
    assert!(small.request_object.is_none() && small.response_object.is_none());
    assert_eq!(
        small.annotations.last(),
        Some(&("audit.skiff.io/left-out".into(), "objects".to_owned()))
    );
    assert_eq!(sink.state.waiting.load(Ordering::Relaxed), QUEUE_BYTES - 50);
    sink.state.waiting.store(0, Ordering::Relaxed);
    let whole = record("create", "pods", &object);
    sink.record(whole);
    sink.close();
    assert_eq!(sink.state.waiting.load(Ordering::Relaxed), 0);
    let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
    assert!(text.contains("\"requestObject\":"));
}

/// A line that does not fit the buffer meets a disk that takes nothing.
#[test]
fn what_the_disk_does_not_take_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", directory.path().join("audit.log")).unwrap();
    let sink = FileSink::open(directory.path(), Limits::default(), None).unwrap();
    let large = format!("{{\"kind\":\"Pod\",\"a\":\"{}\"}}", "x".repeat(64 << 10));
    for _ in 0..3 {
        sink.record(record("create", "pods", &large));
    }
    sink.close();
    assert_eq!((sink.events(), sink.failures()), (3, 3));
}

/// A pipe without a reader behaves like a disk that stalls.
#[tokio::test(start_paused = true)]
async fn a_disk_that_stands_still_keeps_a_write_for_a_while_and_no_thread() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let made = std::process::Command::new("mkfifo").arg(&log).status().unwrap();
    assert!(made.success());
    let pipe = std::fs::File::options().read(true).write(true).open(&log).unwrap();
    let sink = FileSink::open(directory.path(), Limits::default(), None).unwrap();
    // More than the pipe takes: the thread stands in this record, and takes no other.
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
    assert!(sink.record(record("create", "pods", &large)).is_none());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while sink.state.waiting.load(Ordering::Relaxed) > 0 {
        assert!(tokio::time::Instant::now() < deadline, "the thread took nothing");
        std::thread::yield_now();
    }
    let write = || sink.record(record("create", "pods", "{}"));
    let waiting = std::iter::repeat_with(write).find_map(|waiting| waiting).unwrap();
    assert!(
        sink.record(record("get", "pods", "")).is_none(),
        "a read is only counted"
    );
    assert_eq!(sink.failures(), 0);
    waiting.await.unwrap();
    assert_eq!(sink.failures(), 1, "the write went on");
    assert!(write().is_none(), "after it none waits");
    assert_eq!(sink.failures(), 2);
    let taken = usize::try_from(sink.events() - 3).unwrap();
    let reader = std::thread::spawn(move || {
        std::io::BufRead::lines(std::io::BufReader::new(pipe))
            .take(taken)
            .count()
    });
    sink.close();
    assert_eq!(reader.join().unwrap(), taken, "what had a place was written");
    assert_eq!(sink.state.lost.load(Ordering::Relaxed), 0, "what had none was told of");
}

#[test]
fn what_a_webhook_changed_is_written_where_the_object_is() {
    let patch = ("patch.webhook.admission.k8s.io/round_0_index_0".into(), "[]".to_owned());
    for (resource, written) in [("pods", true), ("secrets", false)] {
        let directory = tempfile::tempdir().unwrap();
        let sink = FileSink::open(directory.path(), Limits::default(), None).unwrap();
        let mut record = record("create", resource, "{}");
        record.annotations.push(patch.clone());
        sink.record(record);
        sink.close();
        let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
        assert_eq!(text.contains("patch.webhook"), written, "{text}");
    }
}
