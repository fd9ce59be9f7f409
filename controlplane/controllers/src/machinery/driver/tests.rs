use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};

use controlplane_plan::step::{CONFIG_MAPS, Note, Outcome, PODS, Severity, Step, Target};
use http::{Request, Response};
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::client::Body;
use serde_json::{Value, from_value, json};

use super::testing::{context, context_on};
use super::*;

/// A controller that always returns the same plan.
struct Stubborn {
    step: Step,
    plans: AtomicU32,
}

impl Controller for Stubborn {
    fn plan(&self, _key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        self.plans.fetch_add(1, Ordering::Relaxed);
        let mut plan = Plan::default();
        plan.stage(vec![self.step.clone()]);
        plan
    }
}

/// A controller with a different, non-urgent plan each time.
#[derive(Default)]
struct Patient {
    plans: AtomicU32,
    hurry: std::sync::atomic::AtomicBool,
}

const PATIENCE_OF_PLANS: Duration = Duration::from_millis(50);

impl Controller for Patient {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        self.plans.fetch_add(1, Ordering::Relaxed);
        let mut plan = Plan::default();
        let target = Target {
            resource: CONFIG_MAPS,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: String::new(),
        };
        plan.stage(vec![Step::Look(target)]);
        plan.patience = (!self.hurry.swap(false, Ordering::Relaxed)).then_some(PATIENCE_OF_PLANS);
        plan
    }
}

/// A controller that panics on one object.
#[derive(Default)]
struct Fragile {
    good: AtomicU32,
    bad: AtomicU32,
}

impl Controller for Fragile {
    fn plan(&self, key: &Key, _failure: Option<&Failure>, _now: Timestamp) -> Plan {
        if key.name == "bad" {
            self.bad.fetch_add(1, Ordering::Relaxed);
            panic!("it cannot be read");
        }
        self.good.fetch_add(1, Ordering::Relaxed);
        Plan::default()
    }
}

/// Number of plans and requests in a minute, with a server that always refuses in the same way.
async fn minute(step: Step, caches: Caches, refusal: Value) -> (u32, u32) {
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    let code = u16::try_from(refusal["code"].as_u64().unwrap_or(500)).unwrap();
    let server = tower::service_fn(move |_: Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let answer = Response::builder().status(code);
        let answer = answer.body(Body::from(refusal.to_string().into_bytes())).unwrap();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let context = context(kube::Client::new(server, "default"), caches);
    let plans = AtomicU32::new(0);
    let controller = Arc::new(Stubborn { step, plans });
    let queue = Queue::new("stubborn");
    queue.push(Key::new("ns", "it"));
    let working = work(&*controller, "test-controller", &context, &queue);
    assert!(tokio::time::timeout(Duration::from_mins(1), working).await.is_err());
    let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    (count(&controller.plans), count(&requests))
}

fn create() -> Step {
    Step::Create {
        resource: PODS,
        namespace: "ns".to_owned(),
        body: Box::new(json!({ "metadata": { "generateName": "it-" } })),
        outcome: Outcome::default(),
    }
}

fn terminating() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no",
        "details": { "causes": [{ "reason": "NamespaceTerminating", "message": "it goes", "field": "metadata.namespace" }] },
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_namespace_that_goes_refuses_is_not_asked_for_without_end() {
    let (plans, requests) = minute(create(), Caches::new(), terminating()).await;
    assert!((2..20).contains(&plans), "{plans} plans");
    assert!(requests <= plans, "{requests} requests in {plans} plans");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_in_a_namespace_that_is_known_to_go() {
    let caches = Caches::new();
    let going = json!({ "metadata": { "name": "ns", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let going: Namespace = from_value(going).unwrap();
    caches.namespaces.replace(vec![going], 1, 1);
    let (plans, requests) = minute(create(), caches, terminating()).await;
    assert!((2..20).contains(&plans), "{plans} plans");
    assert_eq!(requests, 0);
}

#[tokio::test(start_paused = true)]
async fn who_only_has_something_to_say_says_it_once() {
    let note = Note {
        about: ObjectReference::default(),
        severity: Severity::Warning,
        reason: "Odd",
        message: "odd".to_owned(),
    };
    let (plans, requests) = minute(Step::Event(note), Caches::new(), terminating()).await;
    assert_eq!((plans, requests), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_seen_to_be_gone_before_the_next_plan() {
    let caches = Caches::new();
    let there = json!({ "metadata": { "name": "it", "namespace": "ns", "uid": "u", "resourceVersion": "5" } });
    caches.config_maps.replace(vec![from_value(there).unwrap()], 5, 1);
    let step = Step::Delete {
        target: Target {
            resource: CONFIG_MAPS,
            namespace: "ns".to_owned(),
            name: "it".to_owned(),
            uid: "u".to_owned(),
        },
        resource_version: None,
        propagation: None,
        grace_seconds: None,
        outcome: Outcome::default(),
    };
    let gone = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no" });
    assert_eq!(minute(step, caches, gone).await, (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_makes_a_plan_panic_does_not_stop_the_others() {
    let server =
        tower::service_fn(|_: Request<Body>| std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty()))));
    let context = context(kube::Client::new(server, "default"), Caches::new());
    let controller = Arc::new(Fragile::default());
    let queue = Queue::new("fragile");
    queue.push(Key::new("ns", "bad"));
    queue.push(Key::new("ns", "good"));
    let working = work(&*controller, "test-controller", &context, &queue);
    assert!(tokio::time::timeout(Duration::from_mins(5), working).await.is_err());
    let (good, bad) = (&controller.good, &controller.bad);
    assert_eq!(good.load(Ordering::Relaxed), 1);
    let bad = bad.load(Ordering::Relaxed);
    assert!((2..10).contains(&bad), "{bad} plans");
}

#[tokio::test(start_paused = true)]
async fn a_patient_plan_waits_for_more_but_not_for_ever() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, begin) = (Arc::clone(&asked), Instant::now());
    let server = tower::service_fn(move |_: Request<Body>| {
        seen.lock().unwrap().push(begin.elapsed());
        let found = json!({ "metadata": { "name": "it", "namespace": "ns", "uid": "u", "resourceVersion": "5" } });
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(
            found.to_string().into_bytes(),
        ))))
    });
    let context = context(kube::Client::new(server, "default"), Caches::new());
    let controller = Arc::new(Patient::default());
    let queue = Queue::new("patient");
    let little = Duration::from_millis(10);
    let told = async {
        // It is woken all the time; its plan is asked for once in each interval of patience.
        for _ in 0..18 {
            queue.push(Key::new("ns", "it"));
            tokio::time::sleep(little).await;
        }
        controller.hurry.store(true, Ordering::Relaxed);
        let before = asked.lock().unwrap().len();
        queue.push(Key::new("ns", "it"));
        tokio::time::sleep(little).await;
        (before, asked.lock().unwrap().len())
    };
    let (before, after) = tokio::select! {
        () = work(&*controller, "test-controller", &context, &queue) => panic!("it works for ever"),
        told = told => told,
    };
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.first(), Some(&PATIENCE_OF_PLANS), "{asked:?}");
    assert_eq!(before, 3, "{asked:?}");
    assert_eq!(after, before + 1, "one in a hurry does not wait: {asked:?}");
    assert!(controller.plans.load(Ordering::Relaxed) >= 18);
}

#[tokio::test(start_paused = true)]
async fn plans_that_wait_for_more_are_no_hot_loop() {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let context = context_on(Caches::new(), move |_, _, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        (
            200,
            json!({ "metadata": { "name": "it", "namespace": "ns", "uid": "u" } }),
        )
    });
    let controller = Arc::new(Patient::default());
    let queue = Queue::new("patient");
    queue.push(Key::new("ns", "it"));
    let working = work(&*controller, "test-controller", &context, &queue);
    assert!(tokio::time::timeout(Duration::from_mins(1), working).await.is_err());
    let asked = asked.load(Ordering::Relaxed);
    assert!((1000..=1200).contains(&asked), "{asked} in a minute, 20 in a second");
}

/// Methods of the requests to a server that refuses all but patches.
async fn asked(tolerant: Option<usize>) -> Vec<String> {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let server = tower::service_fn(move |request: Request<Body>| {
        seen.lock().unwrap().push(request.method().to_string());
        let code = if request.method() == "PATCH" { 200 } else { 409 };
        let taken = json!({
            "kind": "Status", "status": "Failure", "code": code, "reason": "AlreadyExists", "message": "no",
            "metadata": { "name": "it", "resourceVersion": "5" },
        });
        let answer = Response::builder().status(code);
        let answer = answer.body(Body::from(taken.to_string().into_bytes())).unwrap();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let target = Target {
        resource: CONFIG_MAPS,
        namespace: "ns".to_owned(),
        name: "it".to_owned(),
        uid: String::new(),
    };
    let patch = Step::Patch {
        target,
        subresource: None,
        kind: controlplane_plan::step::PatchKind::Merge,
        body: Box::default(),
        outcome: Outcome::default(),
    };
    let plan = Plan {
        stages: vec![vec![create()], vec![create()], vec![patch]],
        tolerant,
        ..Plan::default()
    };
    let context = context(kube::Client::new(server, "default"), Caches::new());
    assert!(perform(&context, "stubborn-controller", plan).await.retry);
    asked.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn the_last_stage_follows_a_failure_where_the_plan_tolerates_it() {
    assert_eq!(asked(None).await, ["POST"]);
    assert_eq!(asked(Some(0)).await, ["POST", "PATCH"]);
    assert_eq!(asked(Some(1)).await, ["POST"]);
}

#[tokio::test]
async fn sets_of_pods_hear_of_those_that_cannot_be_deleted() {
    for (kind, code, expected) in [
        ("ReplicaSet", 403, Some("denied")),
        ("ReplicationController", 403, Some("denied")),
        ("DaemonSet", 403, None),
        ("ReplicaSet", 404, None),
        ("ReplicaSet", 409, None),
    ] {
        let failed = Note {
            about: ObjectReference {
                kind: Some(kind.to_owned()),
                ..ObjectReference::default()
            },
            severity: Severity::Warning,
            reason: "FailedDelete",
            message: "Error deleting: {}".to_owned(),
        };
        let step = Step::Delete {
            target: Target {
                resource: PODS,
                namespace: "ns".to_owned(),
                name: "it".to_owned(),
                uid: "u".to_owned(),
            },
            resource_version: None,
            propagation: None,
            grace_seconds: None,
            outcome: Outcome {
                done: None,
                failed: vec![failed],
            },
        };
        let refusal =
            json!({ "kind": "Status", "status": "Failure", "code": code, "reason": "Forbidden", "message": "denied" });
        let context = context_on(Caches::new(), move |_, _, _| (code, refusal.clone()));
        let plan = Plan {
            stages: vec![vec![step]],
            ..Plan::default()
        };
        let done = perform(&context, "some-controller", plan).await;
        let message = done.failure.map(|failure| failure.message);
        assert_eq!(message.as_deref(), expected, "{kind} {code}");
    }
}
