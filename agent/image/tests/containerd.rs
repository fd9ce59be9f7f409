//! Images in the test's own containerd, inspected with `ctr`. Needs root.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

#[path = "../../runtime/tests/common/daemon.rs"]
mod daemon;
mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use agent_image::{Config, ContainerdConfig, Images};
use daemon::Daemon;
use support::{DockerRegistry, answer, busybox, nothing_staged, quick, serve};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

struct Machine {
    home: tempfile::TempDir,
    daemon: Daemon,
}

impl Machine {
    async fn new() -> Self {
        let home = tempfile::Builder::new().prefix("skiff-images-").tempdir().unwrap();
        let daemon = Daemon::start(&home.path().join("containerd")).await;
        Self { home, daemon }
    }

    async fn open(&self, config: Config) -> Images {
        let folder = self.home.path().join("containerd");
        let place = ContainerdConfig {
            address: Daemon::address(&folder),
            namespace: Daemon::namespace(&folder),
            snapshotter: "overlayfs".to_owned(),
        };
        let directory = self.home.path().join("images");
        Images::open_containerd(&directory, config, place).await.unwrap()
    }

    fn listed(&self, words: &[&str]) -> Vec<String> {
        self.daemon.ctr(words).lines().map(str::to_owned).collect()
    }

    fn names(&self) -> Vec<String> {
        self.listed(&["images", "ls", "-q"])
    }

    fn blobs(&self) -> Vec<String> {
        self.listed(&["content", "ls", "-q"])
    }

    fn snapshots(&self) -> Vec<String> {
        let lines = self.listed(&["snapshots", "ls"]);
        lines
            .iter()
            .skip(1)
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect()
    }

    /// Triggers containerd's garbage collection.
    fn sweep(&self) {
        self.daemon
            .ctr(&["images", "tag", &self.names()[0], "example.org/sweep:1"]);
        self.daemon.ctr(&["images", "rm", "--sync", "example.org/sweep:1"]);
    }

    /// Waits until containerd has nothing: it deletes what no lease holds asynchronously.
    async fn nothing(&self) {
        nothing_staged(self.home.path());
        until("nothing is left", || {
            (self.names(), self.blobs(), self.snapshots()) == Default::default()
        })
        .await;
    }

    /// Waits until all leases are deleted, which happens asynchronously.
    async fn without_leases(&self) {
        until("the leases end", || self.listed(&["leases", "ls", "-q"]).is_empty()).await;
    }

    async fn finish(self) {
        self.without_leases().await;
        self.daemon.finish().await;
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let held = tokio::time::timeout(Duration::from_secs(30), wait).await;
    assert!(held.is_ok(), "{what}");
}

fn docker_archive(path: &Path, name: &str) {
    let done = Command::new("skopeo")
        .args(["copy", "--quiet", "--insecure-policy"])
        .arg(format!("oci-archive:{}", busybox().display()))
        .arg(format!("docker-archive:{}:{name}", path.display()))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test]
async fn imported_images_are_containerds_own_and_go_with_their_last_name() {
    let machine = Machine::new().await;
    let images = machine.open(Config::default()).await;
    let image = images.import(&busybox()).await.unwrap().remove(0);
    let snapshot = image.snapshot.clone().unwrap();
    assert!(image.layers.is_empty() && image.pinned);
    for name in [&image.names[0], &image.digests[0], &image.id] {
        assert!(machine.names().contains(name), "{name} in {:?}", machine.names());
        assert_eq!(images.resolve(name).unwrap().as_ref(), Some(&image), "{name}");
    }
    nothing_staged(machine.home.path());
    machine.without_leases().await;
    machine.sweep();
    assert_eq!(machine.snapshots(), std::slice::from_ref(&snapshot));
    let all = ["images", "check", "-q"];
    assert!(
        machine.listed(&all).contains(&image.names[0]),
        "{:?}",
        machine.listed(&all)
    );

    // The same image from a docker-save archive, which has no manifest.
    let archive = machine.home.path().join("saved.tar");
    docker_archive(&archive, "example.org/saved:1");
    let saved = images.import(&archive).await.unwrap().remove(0);
    assert_eq!(
        (saved.names[0].as_str(), &saved.snapshot),
        ("example.org/saved:1", &image.snapshot)
    );
    machine.without_leases().await;
    machine.sweep();
    assert!(machine.listed(&all).contains(&saved.names[0]));

    // The exported layers are identical to the imported ones.
    let exported = machine.home.path().join("exported.tar");
    let mut written = std::fs::File::create(&exported).unwrap();
    std::io::copy(&mut images.export(&image.names[0]).await.unwrap(), &mut written).unwrap();
    let again = images.import(&exported).await.unwrap().remove(0);
    assert_eq!((&again.id, &again.snapshot), (&image.id, &image.snapshot));
    nothing_staged(machine.home.path());

    // A new process reads the existing images.
    drop(images);
    let images = machine.open(Config::default()).await;
    assert_eq!(images.resolve(&image.id).unwrap().unwrap().snapshot, Some(snapshot));
    assert!(images.list().iter().all(|image| image.pinned));
    for id in images.list().iter().map(|image| image.id.clone()) {
        assert!(images.discard(&id).await.unwrap() > 0);
    }
    assert_eq!(images.list(), []);
    machine.nothing().await;
    machine.finish().await;
}

#[tokio::test]
async fn pulled_images_share_what_they_have_in_common() {
    let registry = DockerRegistry::start("");
    registry.push(&busybox(), "team/busybox:1", &[]);
    registry.push(&busybox(), "team/busybox:docker", &["--format", "v2s2"]);
    let machine = Machine::new().await;
    let images = machine.open(quick()).await;
    let name = |tag: &str| format!("{}/team/busybox:{tag}", registry.address);
    let image = images.pull(&name("1"), &[]).await.unwrap();
    assert_eq!((image.names.clone(), image.pinned), (vec![name("1")], false));
    assert_eq!(images.pull(&image.digests[0], &[]).await.unwrap(), image);
    let docker = images.pull(&name("docker"), &[]).await.unwrap();
    assert_eq!(docker.snapshot, image.snapshot);
    assert_eq!(machine.snapshots().len(), 1);
    machine.without_leases().await;

    // Removing a name keeps the image; removing the image keeps layers that others use.
    assert!(images.remove(&name("docker")).await.unwrap());
    assert!(!images.remove(&name("docker")).await.unwrap());
    assert!(!machine.names().contains(&name("docker")));
    assert!(images.resolve(&docker.id).unwrap().is_some());
    if docker.id != image.id {
        images.discard(&docker.id).await.unwrap();
        assert_eq!(machine.snapshots().len(), 1);
    }
    images.discard(&image.id).await.unwrap();
    machine.nothing().await;
    machine.finish().await;
}

#[tokio::test]
async fn what_others_do_with_ctr_is_seen() {
    let machine = Machine::new().await;
    let images = machine.open(quick()).await;
    let archive = busybox().display().to_string();
    // Images created by other clients, such as nerdctl.
    machine.daemon.ctr(&["images", "import", &archive]);
    until("the image is known", || !images.list().is_empty()).await;
    let image = images.list().remove(0);
    assert!(image.pinned, "others may want it");
    machine
        .daemon
        .ctr(&["images", "tag", &image.names[0], "example.org/own:2"]);
    let resolved = |name: &str| images.resolve(name).unwrap().map(|found| found.id.clone());
    until("the new name is known", || {
        resolved("example.org/own:2").as_ref() == Some(&image.id)
    })
    .await;
    machine.daemon.ctr(&["images", "rm", "example.org/own:2"]);
    until("the name is gone", || resolved("example.org/own:2").is_none()).await;
    // Another containerd with the same images.
    let mut machine = machine;
    machine.daemon.kill();
    machine.daemon.resume().await;
    machine.daemon.ctr(&["images", "rm", "--sync", &image.names[0]]);
    until("the image is gone", || images.list().is_empty()).await;
    machine.finish().await;
}

#[tokio::test]
async fn attack_06_what_is_not_what_it_says_never_reaches_containerd() {
    let registry = DockerRegistry::start("");
    registry.push(&busybox(), "busybox:1", &[]);
    let name = format!("{}/busybox:1", registry.address);
    let machine = Machine::new().await;
    let images = machine.open(quick()).await;
    let image = images.pull(&name, &[]).await.unwrap();
    let digest = image.digests[0].split_once('@').unwrap().1.to_owned();
    let manifest = std::fs::read_to_string(registry.blob(&digest)).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    images.discard(&image.id).await.unwrap();
    let blob = registry.blob(manifest["layers"][0]["digest"].as_str().unwrap());
    let mut changed = std::fs::read(&blob).unwrap();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    std::fs::write(&blob, changed).unwrap();
    let error = images.pull(&name, &[]).await.unwrap_err().message();
    assert!(error.contains("digest is"), "{error}");
    machine.without_leases().await;
    machine.nothing().await;
    // Images above the size limit are refused, too.
    let mut small = quick();
    small.limits.layer_bytes = 1 << 20;
    drop(images);
    let images = machine.open(small).await;
    let archive = machine.home.path().join("large.tar");
    docker_archive(&archive, "example.org/large:1");
    let error = images.import(&archive).await.unwrap_err();
    let error = agent_image::chain(&error);
    assert!(error.contains("more than 1048576 bytes"), "{error}");
    machine.without_leases().await;
    machine.nothing().await;
    machine.finish().await;
}

/// Registry that serves a manifest and a configuration, and signals requests for the layer, which
/// it never completes.
fn endless(manifest: Vec<u8>, config: Vec<u8>, asked: UnboundedSender<()>) -> String {
    serve(move |request| {
        if request.contains("/manifests/") {
            answer(
                "Content-Type: application/vnd.oci.image.manifest.v1+json\r\n",
                &manifest,
            )
        } else if request.contains(agent_image::Digest::of(&config).as_str()) {
            answer("", &config)
        } else {
            asked.send(()).ok();
            std::thread::park_timeout(Duration::from_mins(1));
            Vec::new()
        }
    })
}

#[tokio::test]
async fn attack_25_what_a_pull_left_when_all_were_killed_goes_and_the_next_one_succeeds() {
    let registry = DockerRegistry::start("");
    registry.push(&busybox(), "busybox:1", &[]);
    let name = format!("{}/busybox:1", registry.address);
    let mut machine = Machine::new().await;
    let images = machine.open(quick()).await;
    let image = images.pull(&name, &[]).await.unwrap();
    let digest = image.digests[0].split_once('@').unwrap().1.to_owned();
    let manifest = std::fs::read(registry.blob(&digest)).unwrap();
    let config = std::fs::read(registry.blob(&image.id)).unwrap();
    images.discard(&image.id).await.unwrap();
    let (sender, mut asked) = unbounded_channel();
    let address = endless(manifest, config, sender);
    let (kill, killed) = oneshot::channel();
    // The agent is killed during the pull, so its lease is not deleted.
    let pulling = {
        let images = images.clone();
        std::thread::spawn(move || {
            let executor = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let slow = format!("{address}/busybox:1");
            executor.block_on(async {
                tokio::select! {
                    // It may notice that containerd is gone.
                    pulled = images.pull(&slow, &[]) => drop(pulled.unwrap_err()),
                    killed = killed => killed.unwrap(),
                }
            });
        })
    };
    // The lease exists by then.
    until("the layer is asked for", || asked.try_recv().is_ok()).await;
    machine.daemon.kill();
    kill.send(()).ok();
    pulling.join().unwrap();
    drop(images);
    machine.daemon.resume().await;
    assert_eq!(machine.listed(&["leases", "ls", "-q"]).len(), 1);
    let images = machine.open(quick()).await;
    machine.without_leases().await;
    let again = images.pull(&name, &[]).await.unwrap();
    assert_eq!(again.snapshot, image.snapshot);
    machine.without_leases().await;
    machine.sweep();
    assert_eq!(machine.snapshots().len(), 1);
    images.discard(&again.id).await.unwrap();
    machine.nothing().await;
    machine.finish().await;
}
