//! Against real archives and a real registry on loopback (the distribution's docker-registry, filled by skopeo). Needs
//! root: layers carry owners, devices and trusted attributes.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use agent_image::{Config, Credentials, Digest, Images, Limits, Registry, chain};

/// A registry that ends with the test.
struct DockerRegistry {
    process: Child,
    address: String,
    home: tempfile::TempDir,
}

impl DockerRegistry {
    fn start(extra: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = home.path().join("config.yml");
        let storage = home.path().join("storage");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\nhttp:\n  addr: {free}\n{extra}",
            storage.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry, of the package of that name");
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.contains("listening on"))
            .expect("the registry listens");
        // What it says later must go somewhere, or it would stop at a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: free.to_string(),
            home,
        }
    }

    fn push(&self, archive: &Path, name: &str, extra: &[&str]) {
        let done = Command::new("skopeo")
            .args(["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"])
            .args(extra)
            .arg(format!("oci-archive:{}", archive.display()))
            .arg(format!("docker://{}/{name}", self.address))
            .output()
            .expect("skopeo, of the package of that name");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        self.home
            .path()
            .join("storage/docker/registry/v2/blobs/sha256")
            .join(&hex[..2])
            .join(hex)
            .join("data")
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn busybox() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/build");
    let output = Command::new(script).arg("busybox").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().lines().last().unwrap())
}

fn store(config: Config) -> (tempfile::TempDir, Images) {
    let home = tempfile::tempdir().unwrap();
    let images = Images::open(&home.path().join("images"), config).unwrap();
    (home, images)
}

fn quick() -> Config {
    Config {
        limits: Limits {
            attempts: 2,
            ..Limits::default()
        },
        ..Config::default()
    }
}

fn layers_of(home: &Path) -> usize {
    std::fs::read_dir(home.join("images/layers")).unwrap().count()
}

fn nothing_staged(home: &Path) {
    assert_eq!(std::fs::read_dir(home.join("images/staging")).unwrap().count(), 0);
}

#[tokio::test]
async fn imports_a_layout_and_finds_it_by_every_name() {
    let (home, images) = store(Config::default());
    let imported = images.import(&busybox()).await.unwrap();
    let image = &imported[0];
    let name = &image.names[0];
    assert!(name.starts_with("skiff.local/busybox:"), "{name}");
    assert!(image.layers[0].join("bin/busybox").is_file());
    assert_eq!(
        image.config.config().as_ref().unwrap().cmd().as_deref(),
        Some(["sh".to_owned()].as_slice())
    );
    for spelling in [name, &image.id, &image.digests[0]] {
        assert_eq!(images.resolve(spelling).unwrap().as_ref(), Some(image), "{spelling}");
    }
    assert_eq!(images.resolve("busybox").unwrap(), None);
    images.resolve("Busybox").unwrap_err();
    nothing_staged(home.path());

    // The store survives its process, and is not opened twice.
    Images::open(&home.path().join("images"), Config::default())
        .err()
        .unwrap();
    let image = Arc::clone(image);
    drop((images, imported));
    std::fs::create_dir(home.path().join("images/staging/image-left-over")).unwrap();
    let images = Images::open(&home.path().join("images"), Config::default()).unwrap();
    nothing_staged(home.path());
    assert_eq!(images.list(), [Arc::clone(&image)]);

    // Untagged, in use, unused.
    assert!(images.remove(&image.names[0]).unwrap());
    assert!(!images.remove(&image.names[0]).unwrap());
    let in_use = BTreeSet::from([image.id.clone()]);
    assert_eq!(images.collect(&in_use).unwrap().images.len(), 0);
    assert_eq!(layers_of(home.path()), 1);
    let collected = images.collect(&BTreeSet::new()).unwrap();
    assert_eq!(
        (collected.images.as_slice(), collected.layers),
        ([image.id.clone()].as_slice(), 1)
    );
    assert_eq!(layers_of(home.path()), 0);
}

#[tokio::test]
async fn imports_docker_archives_and_compressed_ones() {
    let (home, images) = store(Config::default());
    let archive = home.path().join("saved.tar");
    let done = Command::new("skopeo")
        .args(["copy", "--quiet", "--insecure-policy"])
        .arg(format!("oci-archive:{}", busybox().display()))
        .arg(format!("docker-archive:{}:example.org/saved:1", archive.display()))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&std::fs::read(&archive).unwrap()).unwrap();
    let directory = home.path().join("preload");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("saved.tar.gz"), encoder.finish().unwrap()).unwrap();
    let images_found = images.import_directory(&directory).await.unwrap();
    assert_eq!(images_found[0].names, ["example.org/saved:1"]);
    assert!(images_found[0].layers[0].join("bin/sh").symlink_metadata().is_ok());
    let streamed = images
        .import_stream(std::fs::read(&archive).unwrap().as_slice())
        .await
        .unwrap();
    assert_eq!(streamed[0].id, images_found[0].id);
    nothing_staged(home.path());
}

#[tokio::test]
async fn pulls_by_tag_and_by_digest() {
    let registry = DockerRegistry::start("");
    registry.push(&busybox(), "team/busybox:1", &[]);
    registry.push(&busybox(), "team/busybox:docker", &["--format", "v2s2"]);
    let (home, images) = store(quick());
    let name = format!("{}/team/busybox:1", registry.address);
    let image = images.pull(&name, &[]).await.unwrap();
    assert_eq!(image.names, std::slice::from_ref(&name));
    assert!(image.layers[0].join("bin/busybox").is_file());
    assert_eq!(image.image_id(), image.digests[0]);
    let by_digest = images.pull(&image.digests[0], &[]).await.unwrap();
    assert_eq!(by_digest, image);
    // Docker's own format, the same layer: nothing new is kept.
    let docker = images
        .pull(&format!("{}/team/busybox:docker", registry.address), &[])
        .await
        .unwrap();
    assert_eq!(docker.layers, image.layers);
    assert_eq!(layers_of(home.path()), 1);
    nothing_staged(home.path());
    // Many who want the same share one pull.
    let pulls = futures::future::join_all((0..8).map(|_| images.pull(&name, &[]))).await;
    assert!(
        pulls
            .iter()
            .all(|pulled| Arc::ptr_eq(pulled.as_ref().unwrap(), pulls[0].as_ref().unwrap()))
    );
}

#[tokio::test]
async fn mirrors_are_asked_first_and_may_fail() {
    let registry = DockerRegistry::start("");
    registry.push(&busybox(), "library/busybox:1", &[]);
    let mut config = quick();
    config.limits.attempts = 1;
    let mirrors = vec!["127.0.0.1:1".to_owned(), registry.address.clone()];
    config.registries.insert(
        "docker.io".to_owned(),
        Registry {
            mirrors,
            ..Registry::default()
        },
    );
    let (_home, images) = store(config);
    let image = images.pull("busybox:1", &[]).await.unwrap();
    assert_eq!(image.names, ["docker.io/library/busybox:1"]);
}

#[tokio::test]
async fn says_why_in_the_words_of_containerd() {
    let registry = DockerRegistry::start("");
    let (_home, images) = store(quick());
    let name = format!("{}/team/none:1", registry.address);
    let error = images.pull(&name, &[]).await.unwrap_err();
    let wanted = format!(
        "failed to pull and unpack image \"{name}\": failed to resolve reference \"{name}\": {name}: not found"
    );
    assert_eq!((error.reason(), error.message()), ("ErrImagePull", wanted));
    let error = images.pull("Nginx:1", &[]).await.unwrap_err();
    assert_eq!(error.reason(), "InvalidImageName");
    assert!(error.message().ends_with("couldn't parse image name \"Nginx:1\": invalid reference format: repository name (library/Nginx) must be lowercase"), "{}", error.message());
    let error = images.pull("127.0.0.1:1/x", &[]).await.unwrap_err();
    assert!(error.message().contains("failed to"), "{}", error.message());
}

#[tokio::test]
async fn basic_credentials_open_a_private_registry() {
    let passwords = tempfile::NamedTempFile::new().unwrap();
    // bcrypt of "secret".
    std::fs::write(
        passwords.path(),
        "me:$2y$05$CL3a3zbpujbdtr1uthCWc.TZ05io93iolYColijXWo.XaM7M5XlDe\n",
    )
    .unwrap();
    let registry = DockerRegistry::start(&format!(
        "auth: {{htpasswd: {{realm: test, path: {}}}}}\n",
        passwords.path().display()
    ));
    registry.push(&busybox(), "private:1", &["--dest-creds", "me:secret"]);
    let (_home, images) = store(quick());
    let name = format!("{}/private:1", registry.address);
    let refused = images.pull(&name, &[]).await.unwrap_err();
    assert!(
        refused.message().contains("pull access denied"),
        "{}",
        refused.message()
    );
    let secret = format!(
        "{{\"auths\":{{\"{}\":{{\"auth\":\"bWU6c2VjcmV0\"}}}}}}",
        registry.address
    );
    let credentials = Credentials::for_image(secret.as_bytes(), &name).unwrap();
    let wrong = Credentials {
        username: "me".to_owned(),
        password: "wrong".to_owned(),
    };
    let image = images.pull(&name, &[vec![wrong], credentials].concat()).await.unwrap();
    assert_eq!(image.names, [name]);
}

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

/// Serves one answer per connection, for each connection the same, and counts the requests' bytes away.
fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection): Result<TcpStream, _> = connection else {
                break;
            };
            let mut request = Vec::new();
            let mut byte = [0_u8; 1];
            while !request.ends_with(b"\r\n\r\n") && connection.read(&mut byte).is_ok_and(|read| read > 0) {
                request.extend_from_slice(&byte);
            }
            connection.write_all(&answer(&String::from_utf8_lossy(&request))).ok();
        }
    });
    address
}

fn answer(headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{headers}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

#[tokio::test]
async fn attack_06_a_manifest_is_read_to_a_bound() {
    // 64 MiB without a length; the bound is 4 MiB.
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
    // A digest cannot contain itself, so each index names the next; this server has one for every digest, and lies.
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
async fn credentials_stay_with_their_host() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let other = serve(move |request| {
        sender.send(request.to_lowercase().contains("authorization")).unwrap();
        answer("Content-Length: 2\r\n", b"{}")
    });
    let redirect = serve(move |request| {
        if request.starts_with("GET /v2/ ") {
            return b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec();
        }
        let host = other.replace("127.0.0.1", "localhost");
        format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{host}/elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
    });
    let (_home, images) = store(quick());
    let credentials = Credentials {
        username: "me".to_owned(),
        password: "secret".to_owned(),
    };
    images
        .pull(&format!("{redirect}/x:1"), &[credentials])
        .await
        .unwrap_err();
    assert!(!receiver.recv().unwrap(), "the other host saw no credentials");
    assert_eq!(chain(&std::io::Error::other("x")), "x");
}
