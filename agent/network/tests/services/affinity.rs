//! Session affinity: a client stays with its endpoint until that is gone, or until it was silent for
//! as long as the Service says.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::CLIENT;
use crate::lab::{Lab, TABLE, eventually};

/// Returns the endpoint that the client is led to.
fn ask(lab: &Lab, at: &str) -> String {
    let answer = lab.ask(CLIENT, at);
    let name = answer.split(' ').next().unwrap().to_owned();
    assert!(["web", "db"].contains(&name.as_str()), "{answer}");
    name
}

#[tokio::test]
async fn a_client_stays_with_its_endpoint_until_that_is_gone() {
    let mut lab = Lab::new().await;
    for (address, family) in [("10.96.0.20", "four"), ("[fd96::20]", "six")] {
        let spec = json!({"clusterIPs": ["10.96.0.20", "fd96::20"], "ports": [{"port": 80}],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}});
        lab.service("web", &spec, &["web", "db"]);
        let at = format!("{address}:80");
        let ask = |lab: &Lab| ask(lab, &at);
        let first = ask(&lab);
        let all: BTreeSet<String> = (0..30).map(|_| ask(&lab)).collect();
        assert_eq!(all, BTreeSet::from([first.clone()]), "{family}");
        let other = if first == "web" { "db" } else { "web" };
        lab.service("web", &spec, &[other]);
        assert_eq!(ask(&lab), other, "{family}: the endpoint is gone");
        lab.service("web", &spec, &["web", "db"]);
        let all: BTreeSet<String> = (0..30).map(|_| ask(&lab)).collect();
        assert_eq!(
            all,
            BTreeSet::from([other.to_owned()]),
            "{family}: it stays where it went"
        );
        // A new agent keeps session affinity.
        lab.fill();
        let all: BTreeSet<String> = (0..30).map(|_| ask(&lab)).collect();
        assert_eq!(all, BTreeSet::from([other.to_owned()]), "{family}: after a start");
        lab.remove("web");
    }
    lab.end().await;
}

/// True if the kernel knows the endpoint of a client.
fn is_known() -> bool {
    let mut nft = Command::new("nft");
    let listed = nft.args(["list", "map", "ip", TABLE, "affinity"]).output().unwrap();
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(text.contains("map affinity"), "{text}");
    text.contains("elements")
}

#[tokio::test]
async fn a_client_that_was_silent_for_the_timeout_is_led_anew() {
    let mut lab = Lab::new().await;
    let spec = json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}], "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}});
    lab.service("web", &spec, &["web", "db"]);
    let at = "10.96.0.20:80";
    let begun = Instant::now();
    let (mut last, mut first) = (begun, ask(&lab, at));
    while begun.elapsed() < Duration::from_millis(2500) {
        std::thread::park_timeout(Duration::from_millis(50));
        let now = Instant::now();
        let endpoint = ask(&lab, at);
        // The test itself may have been kept from asking in time.
        if last.elapsed() < Duration::from_millis(900) {
            assert_eq!(endpoint, first, "each connection begins the time anew");
        }
        (last, first) = (now, endpoint);
    }
    assert!(is_known() || last.elapsed() > Duration::from_millis(900));
    let moved = (0..30).any(|_| {
        eventually("a silent client is forgotten", || !is_known());
        ask(&lab, at) != first
    });
    assert!(moved, "always {first}");
    lab.end().await;
}
