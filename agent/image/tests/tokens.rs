//! Registries that require authentication: which challenge is followed, and which server receives
//! which credentials.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::sync::{Arc, Mutex};

use agent_image::Digest;
use support::{answer, me, quick, redirect, refusal, serve, store};

fn json(text: &str) -> Vec<u8> {
    answer(&format!("Content-Length: {}\r\n", text.len()), text.as_bytes())
}

/// Token server whose tokens consist of the requested scopes and the Basic authorization, if any.
fn tokens() -> String {
    serve(|request| {
        let query = request.split([' ', '?']).nth(2).unwrap_or_default();
        let scopes = query
            .split('&')
            .filter_map(|pair| pair.strip_prefix("scope=repository%3A"));
        let scopes: Vec<String> = scopes.map(|scope| scope.replace("%3Apull", "")).collect();
        let known = request.contains("Basic bWU6c2VjcmV0");
        json(&format!("{{\"token\":\"{}-{known}\"}}", scopes.join(".")))
    })
}

fn challenge(tokens: &str, scope: &str) -> Vec<u8> {
    refusal(&format!(
        "WWW-Authenticate: Bearer realm=\"http://{tokens}/t\",service=\"s\",scope=\"{scope}\"\r\n"
    ))
}

/// `Authorization` header of a request.
fn shown(request: &str) -> String {
    let mut lines = request.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.to_owned())
}

#[tokio::test]
async fn each_answers_challenge_is_obeyed_with_its_scope() {
    let config = "{}";
    let manifest = format!(
        "{{\"schemaVersion\":2,\"config\":{{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"{}\",\"size\":2}},\"layers\":[]}}",
        Digest::of(config.as_bytes())
    );
    let (asked, tokens) = (Arc::new(Mutex::new(Vec::new())), tokens());
    let seen = Arc::clone(&asked);
    // Requests for the API version get the challenge.
    let address = serve(move |request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        if path == "/v2/" {
            return json("{}");
        }
        let (kind, shown) = (path.split('/').nth(3).unwrap_or_default(), shown(request));
        seen.lock().unwrap().push(format!("{kind} {shown}"));
        match (kind, shown.as_str()) {
            ("manifests", "Bearer x-true") => json(&manifest),
            ("blobs", "Bearer base.x-true") => json(config),
            ("blobs", _) => challenge(&tokens, "repository:base:pull"),
            _ => challenge(&tokens, "repository:x:pull"),
        }
    });
    let (_home, images) = store(quick());
    let error = images.pull(&format!("{address}/x:1"), &[me()]).await.unwrap_err();
    // The registry's final answer.
    assert!(
        error.message().contains("parse the configuration"),
        "{}",
        error.message()
    );
    let wanted = [
        "manifests nothing",
        "manifests Bearer x-true",
        "blobs Bearer x-true",
        "blobs Bearer base.x-true",
    ];
    assert_eq!(*asked.lock().unwrap(), wanted);
}

#[tokio::test]
async fn attack_28_where_a_registry_redirects_to_strangers_are_answered_with_strangers_tokens() {
    let (asked, tokens) = (Arc::new(Mutex::new(Vec::new())), tokens());
    let seen = Arc::clone(&asked);
    let elsewhere_tokens = tokens.clone();
    let elsewhere = serve(move |request| {
        let shown = shown(request);
        let known = shown == "Bearer x-false";
        seen.lock().unwrap().push(format!("elsewhere {shown}"));
        if known {
            json("{}")
        } else {
            challenge(&elsewhere_tokens, "")
        }
    });
    let seen = Arc::clone(&asked);
    let registry = serve(move |request| {
        let shown = shown(request);
        let known = shown == "Bearer x-true";
        seen.lock().unwrap().push(format!("registry {shown}"));
        if known {
            redirect(&format!("http://{elsewhere}/m"))
        } else {
            challenge(&tokens, "")
        }
    });
    let (_home, images) = store(quick());
    images.pull(&format!("{registry}/x:1"), &[me()]).await.unwrap_err();
    let wanted = [
        "registry nothing",
        "registry Bearer x-true",
        "elsewhere nothing",
        "elsewhere Bearer x-false",
    ];
    assert_eq!(asked.lock().unwrap()[..4], wanted);
}

#[tokio::test]
async fn attack_28_a_chain_of_redirects_has_an_end() {
    let registry = serve(|_| redirect("/again"));
    let (_home, images) = store(quick());
    let error = images.pull(&format!("{registry}/x:1"), &[]).await.unwrap_err();
    assert!(
        error.message().ends_with("stopped after 10 redirects"),
        "{}",
        error.message()
    );
}

#[tokio::test]
async fn attack_28_neither_redirects_nor_tokens_lead_to_a_clouds_metadata() {
    const METADATA: &str = "169.254.169.254";
    for registry in [
        serve(|_| redirect(&format!("http://{METADATA}/latest"))),
        serve(|_| challenge(METADATA, "")),
    ] {
        let (_home, images) = store(quick());
        let error = images.pull(&format!("{registry}/x:1"), &[]).await.unwrap_err();
        let wanted = format!("failed to do request: {METADATA} is not asked on behalf of 127.0.0.1: ");
        assert!(error.message().contains(&wanted), "{}", error.message());
    }
}
