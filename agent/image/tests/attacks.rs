//! Malicious registries and modified blobs.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_image::{Digest, chain};
use support::{
    DockerRegistry, answer, busybox, layers_of, me, nothing_staged, quick, redirect, refusal, serve, serve_by_hand,
    store,
};
use tokio::time::Instant;

#[tokio::test]
async fn attack_06_a_corrupt_blob_is_never_used() {
    let registry = DockerRegistry::start("");
    registry.push(&busybox(), "busybox:1", &[]);
    let (good_home, images) = store(quick());
    let name = format!("{}/busybox:1", registry.address);
    let image = images.pull(&name, &[]).await.unwrap();
    let manifest = std::fs::read_to_string(registry.blob(image.digests[0].split_once('@').unwrap().1)).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let blob = registry.blob(manifest["layers"][0]["digest"].as_str().unwrap());
    drop((images, good_home));
    let whole = std::fs::read(&blob).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (content, text) in [
        (flipped, "digest is"),
        (whole[..whole.len() / 2].to_vec(), "size is"),
        (Vec::new(), "size is"),
    ] {
        std::fs::write(&blob, content).unwrap();
        let (home, images) = store(quick());
        let error = images.pull(&name, &[]).await.unwrap_err();
        assert!(error.message().contains(text), "{}", error.message());
        assert_eq!(layers_of(home.path()), 0);
        nothing_staged(home.path());
        assert!(images.list().is_empty());
    }
}

#[tokio::test]
async fn attack_06_a_manifest_is_read_to_a_bound() {
    // 64 MiB without a `Content-Length`; the limit is 4 MiB.
    let address = serve(|_| answer("", &vec![b' '; 64 << 20]));
    let (_home, images) = store(quick());
    let error = images.pull(&format!("{address}/x:1"), &[]).await.unwrap_err();
    assert!(
        error.message().contains("manifest is larger than 4194304 bytes"),
        "{}",
        error.message()
    );
}

#[tokio::test]
async fn attack_06_tokens_are_read_to_a_bound_and_refusals_are_not_repeated() {
    let denial = |place: &str| {
        refusal(&format!(
            "WWW-Authenticate: Bearer realm=\"http://{place}/t\",service=\"s\"\r\n"
        ))
    };
    let forbidden = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhidden";
    for (place, text) in [
        (
            serve(|_| answer("", &vec![b' '; 64 << 20])),
            "token is larger than 65536 bytes",
        ),
        (serve(|_| answer("Content-Length: 2\r\n", b"{}")), "the answer is none"),
        (
            serve(|_| forbidden.to_vec()),
            "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to http://127.0.0.1",
        ),
    ] {
        let address = serve(move |_| denial(&place));
        let (_home, images) = store(quick());
        let error = images.pull(&format!("{address}/x:1"), &[]).await.unwrap_err();
        assert!(error.message().contains(text), "{}", error.message());
        assert!(!error.message().contains("hidden"), "{}", error.message());
    }
    // With credentials the server issues a token, and another answer with the token.
    let place = serve(|request| {
        let known = request.to_lowercase().contains("authorization: basic bwu6c2vjcmv0");
        let asked = request.contains("GET /t?scope=repository%3Ax%3Apull&service=s ");
        let token: &[u8] = if known && asked { b"{\"token\":\"good\"}" } else { b"{}" };
        answer(&format!("Content-Length: {}\r\n", token.len()), token)
    });
    let address = serve(move |request| {
        if request.to_lowercase().contains("authorization: bearer good") {
            forbidden.to_vec()
        } else {
            denial(&place)
        }
    });
    let (_home, images) = store(quick());
    let error = images.pull(&format!("{address}/x:1"), &[me()]).await;
    let message = error.unwrap_err().message();
    assert!(message.ends_with("server message: 403 Forbidden"), "{message}");
}

#[tokio::test]
async fn attack_06_documents_that_mislead() {
    let huge = 200_u64 << 20;
    let digest = Digest::of(b"");
    let index = |media_type: &str| {
        format!(
            "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[{{\"mediaType\":\"{media_type}\",\"digest\":\"{digest}\",\"size\":{huge}}}]}}"
        )
    };
    for (document, text) in [
        (index("application/vnd.oci.image.index.v1+json"), "size is"),
        (
            "{\"schemaVersion\":2,\"manifests\":[],\"config\":null,\"layers\":[]}".to_owned(),
            "unsupported media type",
        ),
        (
            "{\"schemaVersion\":1,\"name\":\"old\"}".to_owned(),
            "unsupported media type",
        ),
        (
            "{\"schemaVersion\":2,\"mediaType\":\"text/html\"}".to_owned(),
            "unsupported media type",
        ),
        (
            String::from(
                "{\"schemaVersion\":2,\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"sha256:../../../../etc/passwd\",\"size\":1},\"layers\":[]}",
            ),
            "invalid checksum digest",
        ),
        ("[".repeat(100_000), "parse the manifest"),
        (
            "{\"schemaVersion\":2,\"manifests\":[]}".to_owned(),
            "no match for platform",
        ),
    ] {
        let body = document.clone();
        let address = serve(move |_| answer(&format!("Content-Length: {}\r\n", body.len()), body.as_bytes()));
        let mut config = quick();
        config.limits.attempts = 1;
        let (_home, images) = store(config);
        let error = images.pull(&format!("{address}/x:1"), &[]).await.unwrap_err();
        assert!(error.message().contains(text), "{document:.200}: {}", error.message());
    }
}

#[tokio::test]
async fn attack_06_an_index_that_contains_itself_ends() {
    // A digest cannot contain itself, so each index names the next one; this server answers every
    // digest with one.
    let (home, images) = store(quick());
    let mut documents = vec![b"{}".to_vec()];
    for _ in 0..8 {
        let last = documents.last().unwrap();
        let text = format!(
            "{{\"schemaVersion\":2,\"manifests\":[{{\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"digest\":\"{}\",\"size\":{}}}]}}",
            Digest::of(last),
            last.len()
        );
        documents.push(text.into_bytes());
    }
    let top = documents.last().unwrap().clone();
    let address = serve(move |request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let found = documents
            .iter()
            .find(|document| path.ends_with(Digest::of(document).as_str()));
        let body = found.unwrap_or(&top);
        answer(&format!("Content-Length: {}\r\n", body.len()), body)
    });
    let error = images.pull(&format!("{address}/x:1"), &[]).await.unwrap_err();
    assert!(
        error.message().contains("nested more than 4 deep"),
        "{}",
        error.message()
    );
    nothing_staged(home.path());
}

#[tokio::test]
async fn attack_28_credentials_stay_with_their_host() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let other = serve(move |request| {
        sender.send(request.to_lowercase().contains("authorization")).unwrap();
        answer("Content-Length: 2\r\n", b"{}")
    });
    let registry = serve(move |request| {
        if !request.to_lowercase().contains("authorization") {
            return refusal("WWW-Authenticate: Basic realm=\"x\"\r\n");
        }
        redirect(&format!("http://{}/elsewhere", other.replace("127.0.0.1", "localhost")))
    });
    let (_home, images) = store(quick());
    images.pull(&format!("{registry}/x:1"), &[me()]).await.unwrap_err();
    assert!(!receiver.recv().unwrap(), "the other host saw no credentials");
    assert_eq!(chain(&std::io::Error::other("x")), "x");
}

#[tokio::test]
async fn attack_28_a_password_is_told_only_to_who_refuses_to_answer_without() {
    // A server without authentication, and one that requires it for its manifests.
    for refuses in [false, true] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let address = serve(move |request| {
            let told = request.to_lowercase().contains("authorization: basic bwu6c2vjcmv0");
            sender.send(told).unwrap();
            if refuses && !told {
                return refusal("");
            }
            answer("Content-Length: 2\r\n", b"{}")
        });
        let (_home, images) = store(quick());
        let pulled = images.pull(&format!("{address}/x:1"), &[me()]).await;
        let message = pulled.unwrap_err().message();
        let told: Vec<bool> = receiver.try_iter().collect();
        assert_eq!(told.contains(&true), refuses, "{told:?} {message}");
        // Its port may have the same digits.
        assert!(!message.replace(&address, "").contains("401"), "{message}");
    }
}

/// Registry with one image of one layer; `blob` answers requests for the layer from this offset on.
fn one_layer(layer: &[u8], blob: impl Fn(&mut TcpStream, usize) + Send + Sync + 'static) -> String {
    let config = format!(
        "{{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[\"{}\"]}}}}",
        Digest::of(layer)
    );
    let describe = |kind: &str, bytes: &[u8]| {
        let (digest, size) = (Digest::of(bytes), bytes.len());
        format!("{{\"mediaType\":\"application/vnd.oci.image.{kind}\",\"digest\":\"{digest}\",\"size\":{size}}}")
    };
    let manifest = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{},\"layers\":[{}]}}",
        describe("config.v1+json", config.as_bytes()),
        describe("layer.v1.tar", layer)
    );
    let layer = Digest::of(layer).to_string();
    serve_by_hand(move |request, connection| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        if path.ends_with(&layer) {
            let range = request.to_lowercase();
            let from = range
                .split("range: bytes=")
                .nth(1)
                .and_then(|rest| rest.split('-').next());
            blob(connection, from.map_or(0, |from| from.parse().unwrap()));
            return;
        }
        let body = if path.contains("/manifests/") {
            &manifest
        } else {
            &config
        };
        let bytes = answer(&format!("Content-Length: {}\r\n", body.len()), body.as_bytes());
        connection.write_all(&bytes).ok();
    })
}

/// Empty tar stream with padding.
fn layer() -> Vec<u8> {
    vec![0; 256 << 10]
}

#[tokio::test]
async fn attack_28_a_transfer_that_breaks_goes_on_where_it_broke() {
    let layer = layer();
    let (asked, whole) = (Arc::new(Mutex::new(Vec::new())), layer.clone());
    let seen = Arc::clone(&asked);
    let address = one_layer(&layer, move |connection, from| {
        seen.lock().unwrap().push(from);
        let rest = &whole[from..];
        let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            rest.len()
        );
        connection.write_all(head.as_bytes()).unwrap();
        connection.write_all(&rest[..rest.len().min(100 << 10)]).unwrap();
    });
    let mut config = quick();
    config.limits.attempts = 4;
    let (home, images) = store(config);
    images.pull(&format!("{address}/x:1"), &[]).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [0, 100 << 10, 200 << 10]);
    assert_eq!(layers_of(home.path()), 1);
}

#[tokio::test]
async fn attack_28_a_registry_that_trickles_is_given_up() {
    let length = layer().len();
    let address = one_layer(&layer(), move |connection, _| {
        let head = answer(&format!("Content-Length: {length}\r\n"), b"");
        connection.write_all(&head).ok();
        // Blocks until the client disconnects.
        let (_quiet, clock) = std::sync::mpsc::channel::<()>();
        while connection.write_all(b"\0").is_ok() {
            clock.recv_timeout(Duration::from_millis(5)).ok();
        }
    });
    let mut config = quick();
    config.limits.pace_time = Duration::from_millis(300);
    let (home, images) = store(config);
    let name = format!("{address}/x:1");
    let pull = images.pull(&name, &[]);
    let error = tokio::time::timeout(Duration::from_mins(1), pull)
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.message().contains("the registry has sent"), "{}", error.message());
    nothing_staged(home.path());
}

#[tokio::test]
async fn attack_28_a_registry_that_is_silent_or_lies_about_lengths_is_given_up() {
    let silent = one_layer(&layer(), |connection, _| {
        let head = answer(&format!("Content-Length: {}\r\n", layer().len()), b"some");
        connection.write_all(&head).ok();
        // Until the client disconnects.
        drop(connection.read(&mut [0]));
    });
    let mut config = quick();
    config.limits.read_timeout = Duration::from_millis(300);
    let (home, images) = store(config);
    let error = images.pull(&format!("{silent}/x:1"), &[]).await.unwrap_err();
    assert!(error.message().contains("operation timed out"), "{}", error.message());
    nothing_staged(home.path());

    let longer = one_layer(&layer(), |connection, _| {
        let mut body = layer();
        body.extend_from_slice(&[0; 512]);
        connection
            .write_all(&answer(&format!("Content-Length: {}\r\n", body.len()), &body))
            .ok();
    });
    let (home, images) = store(quick());
    let error = images.pull(&format!("{longer}/x:1"), &[]).await.unwrap_err();
    assert!(error.message().contains("size is"), "{}", error.message());
    nothing_staged(home.path());
    assert_eq!(layers_of(home.path()), 0);
}

#[tokio::test]
async fn attack_28_a_registry_that_is_busy_is_asked_again_so_often_and_no_sooner_than_it_says() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let address = serve(move |_| {
        seen.lock().unwrap().push(Instant::now());
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
    });
    let mut config = quick();
    config.limits.attempts = 3;
    let (_home, images) = store(config);
    let error = images.pull(&format!("{address}/x:1"), &[]).await.unwrap_err();
    assert!(error.message().contains("429"), "{}", error.message());
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 3);
    for pair in asked.windows(2) {
        assert!(pair[1].duration_since(pair[0]) >= Duration::from_secs(1));
    }
}
