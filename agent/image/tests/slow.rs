//! Slow registries and their effect on other pulls.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::io::Write as _;
use std::pin::pin;
use std::time::Duration;

use agent_image::{Digest, Images, Limits};
use support::{answer, layers_of, nothing_staged, quick, serve_by_hand, store};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Registry that has one image with this many layers under every name. It sends those of names that
/// begin with `slow` slowly, and signals each request for one.
fn registry(layers: usize, asked: UnboundedSender<()>) -> String {
    // Empty tar stream with padding.
    let layer = vec![0_u8; 256 << 10];
    let digest = Digest::of(&layer).to_string();
    let list = |each: &str| vec![each; layers].join(",");
    let describe = |kind: &str, digest: &str, size: usize| {
        format!("{{\"mediaType\":\"application/vnd.oci.image.{kind}\",\"digest\":\"{digest}\",\"size\":{size}}}")
    };
    let config = format!(
        "{{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[{}]}}}}",
        list(&format!("\"{digest}\""))
    );
    let manifest = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{},\"layers\":[{}]}}",
        describe("config.v1+json", Digest::of(config.as_bytes()).as_str(), config.len()),
        list(&describe("layer.v1.tar", &digest, layer.len()))
    );
    serve_by_hand(move |request, connection| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let is_layer = path.ends_with(&digest);
        let body = if is_layer {
            layer.as_slice()
        } else if path.contains("/manifests/") {
            manifest.as_bytes()
        } else {
            config.as_bytes()
        };
        let head = answer(&format!("Content-Length: {}\r\n", body.len()), b"");
        connection.write_all(&head).ok();
        if !(is_layer && path.starts_with("/v2/slow")) {
            connection.write_all(body).ok();
            return;
        }
        asked.send(()).ok();
        // Blocks until the client disconnects.
        let (_quiet, clock) = std::sync::mpsc::channel::<()>();
        while connection.write_all(b"\0").is_ok() {
            clock.recv_timeout(Duration::from_millis(5)).ok();
        }
    })
}

/// Pulls a slow image; once it holds its share of the slots, another image still completes, and the
/// slow one takes no more slots.
async fn others_get_on(images: &Images, slow: &[String], mut asked: UnboundedReceiver<()>, slots: usize, other: &str) {
    let mut slow = pin!(futures::future::join_all(
        slow.iter().map(|name| images.pull(name, &[]))
    ));
    let others = async {
        for _ in 0..slots {
            asked.recv().await.unwrap();
        }
        let image = images.pull(other, &[]).await.unwrap();
        assert_eq!(image.names, [other]);
        assert!(asked.try_recv().is_err(), "more slots than are due");
    };
    let others = tokio::time::timeout(Duration::from_mins(1), others);
    tokio::select! {
        pulled = &mut slow => panic!("{pulled:?}"),
        done = others => done.expect("the other image comes"),
    }
}

#[tokio::test]
async fn attack_28_a_registry_that_drips_on_one_image_still_gives_another() {
    let (sender, asked) = unbounded_channel();
    let address = registry(8, sender);
    let (home, images) = store(quick());
    let most = Limits::default().parallel_layers / 2;
    let slow = [format!("{address}/slow:1")];
    others_get_on(&images, &slow, asked, most, &format!("{address}/quick:1")).await;
    assert_eq!(layers_of(home.path()), 8);
}

#[tokio::test]
async fn attack_28_a_registry_that_drips_on_all_images_keeps_no_other_registry_waiting() {
    let (sender, asked) = unbounded_channel();
    let address = registry(1, sender);
    let (unused, _never) = unbounded_channel();
    let other = registry(8, unused);
    let (home, images) = store(quick());
    let most = Limits::default().parallel_layers / 2 + 1;
    let slow: Vec<String> = (0..20).map(|number| format!("{address}/slow{number}:1")).collect();
    others_get_on(&images, &slow, asked, most, &format!("{other}/quick:1")).await;
    assert_eq!(layers_of(home.path()), 8);
}

#[tokio::test]
async fn attack_28_who_waits_for_slow_pulls_still_has_all_its_own_time() {
    let (sender, mut asked) = unbounded_channel();
    let address = registry(1, sender);
    let mut config = quick();
    config.limits.parallel_layers = 1;
    config.limits.pull_time = Duration::from_secs(8);
    let (home, images) = store(config);
    let slow: Vec<String> = (0..3).map(|number| format!("{address}/slow{number}:1")).collect();
    let pulls = futures::future::join_all(slow.iter().map(|name| images.pull(name, &[])));
    for pulled in tokio::time::timeout(Duration::from_mins(3), pulls).await.unwrap() {
        let told = pulled.unwrap_err().message();
        assert!(told.contains("not complete after 8 s"), "{told}");
        assert!(asked.try_recv().is_ok(), "each has its turn, however late");
    }
    nothing_staged(home.path());
}
