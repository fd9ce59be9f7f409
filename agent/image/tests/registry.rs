//! Tests with real archives and a real registry on loopback (the distribution's docker-registry,
//! filled by skopeo). Needs root: layers have owners, devices and trusted attributes.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::io::Write as _;
use std::process::Command;
use std::sync::{Arc, Mutex};

use agent_image::{Config, Credentials, Digest, Images, Registry};
use support::{DockerRegistry, answer, busybox, layers_of, me, nothing_staged, quick, refusal, saved, serve, store};

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
    let resolved = || images.resolve(name).unwrap().unwrap();
    let held = resolved();
    assert!(Arc::ptr_eq(&held, &resolved()), "who holds an image shares it");
    assert_eq!(images.resolve("busybox").unwrap(), None);
    images.resolve("Busybox").unwrap_err();
    nothing_staged(home.path());

    // The store persists across processes, and can be opened only once.
    Images::open(&home.path().join("images"), Config::default())
        .err()
        .unwrap();
    let image = Arc::clone(image);
    drop((images, imported));
    std::fs::create_dir(home.path().join("images/staging/image-left-over")).unwrap();
    let images = Images::open(&home.path().join("images"), Config::default()).unwrap();
    nothing_staged(home.path());
    assert_eq!(images.list(), [Arc::clone(&image)]);

    // Pinned while it has a name; its layers are removed with it.
    assert!(image.pinned);
    assert!(images.remove(&image.names[0]).await.unwrap());
    assert!(!images.remove(&image.names[0]).await.unwrap());
    assert!(!images.list()[0].pinned);
    assert_eq!(images.discard("sha256:other").await.unwrap(), 0);
    assert_eq!(layers_of(home.path()), 1);
    assert!(images.discard(&image.id).await.unwrap() > 0);
    assert_eq!(images.list(), []);
    assert_eq!(layers_of(home.path()), 0);
}

#[tokio::test]
async fn images_are_removed_while_others_are_pulled() {
    let (home, images) = store(Config::default());
    let image = images.import(&busybox()).await.unwrap().remove(0);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = format!("{}/x:1", silent.local_addr().unwrap());
    let mut pull = std::pin::pin!(images.pull(&name, &[]));
    let _connection = tokio::select! {
        pulled = &mut pull => panic!("{pulled:?}"),
        accepted = silent.accept() => accepted.unwrap(),
    };
    assert!(images.discard(&image.id).await.unwrap() > 0);
    assert_eq!(layers_of(home.path()), 0);
}

#[tokio::test]
async fn imports_docker_archives_and_compressed_ones() {
    let (home, images) = store(Config::default());
    let archive = home.path().join("saved.tar");
    saved(&archive, "example.org/saved:1");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&std::fs::read(&archive).unwrap()).unwrap();
    let directory = home.path().join("preload");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("saved.tar.gz"), encoder.finish().unwrap()).unwrap();
    std::fs::write(directory.join("damaged.tar"), "no archive").unwrap();
    let images_found = images.import_directory(&directory).await.unwrap();
    assert_eq!(images_found[0].names, ["example.org/saved:1"]);
    assert!(images_found[0].layers[0].join("bin/sh").symlink_metadata().is_ok());
    let streamed = images
        .import_stream(std::fs::read(&archive).unwrap().as_slice(), None)
        .await
        .unwrap();
    assert_eq!(streamed.images[0].id, images_found[0].id);
    nothing_staged(home.path());
}

#[tokio::test]
async fn what_is_exported_can_be_imported_by_us_and_by_others() {
    let (home, images) = store(Config::default());
    let image = images.import(&busybox()).await.unwrap().remove(0);
    let archive = home.path().join("exported.tar");
    // Another name of the same image, which is not requested.
    let named = home.path().join("named.tar");
    saved(&named, "example.org/other:1");
    let both = images.import(&named).await.unwrap().remove(0);
    assert!(
        both.id == image.id && both.names.len() > image.names.len(),
        "{:?}",
        both.names
    );
    let mut written = std::fs::File::create(&archive).unwrap();
    std::io::copy(&mut images.export(&image.names[0]).await.unwrap(), &mut written).unwrap();
    nothing_staged(home.path());
    images.export("example.org/none:1").await.unwrap_err();
    let (_other_home, other) = store(Config::default());
    let again = other.import(&archive).await.unwrap().remove(0);
    assert_eq!(again.names, image.names);
    assert_eq!(again.config.config(), image.config.config());
    let listing = |image: &agent_image::Image| {
        let found = Command::new("find")
            .current_dir(&image.layers[0])
            .args([".", "-printf", "%p %M %U %G %l %T@ %n\\n"])
            .output()
            .unwrap();
        let mut lines: Vec<String> = String::from_utf8(found.stdout)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    // The attributes of the layer's root directory are not compared.
    assert_eq!(listing(&again)[1..], listing(&image)[1..]);
    for kind in ["oci-archive", "docker-archive"] {
        let source = format!("{kind}:{}", archive.display());
        let read = Command::new("skopeo").args(["inspect", &source]).output().unwrap();
        assert!(
            read.status.success(),
            "{kind}: {}",
            String::from_utf8_lossy(&read.stderr)
        );
    }
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
    // The same layer in Docker's own format is not stored again.
    let docker = images
        .pull(&format!("{}/team/busybox:docker", registry.address), &[])
        .await
        .unwrap();
    assert_eq!(docker.layers, image.layers);
    assert_eq!(layers_of(home.path()), 1);
    nothing_staged(home.path());
    // Concurrent requests for the same image share one pull.
    let pulls = futures::future::join_all((0..8).map(|_| images.pull(&name, &[]))).await;
    assert!(
        pulls
            .iter()
            .all(|pulled| Arc::ptr_eq(pulled.as_ref().unwrap(), pulls[0].as_ref().unwrap()))
    );
}

#[tokio::test]
async fn an_image_that_the_registry_has_not_changed_is_not_fetched_again() {
    // By version: a configuration, and an image of it without layers.
    let made = |version: u32| {
        let config = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"User":"{version}"}},"rootfs":{{"type":"layers","diff_ids":[]}}}}"#
        );
        let (digest, size) = (Digest::of(config.as_bytes()), config.len());
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":{size}}},"layers":[]}}"#
        );
        (config, manifest)
    };
    let (asked, version) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(1)));
    let (seen, served) = (Arc::clone(&asked), Arc::clone(&version));
    let address = serve(move |request| {
        let mut words = request.split([' ', '/']);
        let (method, kind) = (words.next().unwrap(), words.nth(3).unwrap());
        seen.lock().unwrap().push(format!("{method} {kind}"));
        let (config, manifest) = made(*served.lock().unwrap());
        let body = if kind == "blobs" { config } else { manifest };
        let digest = Digest::of(body.as_bytes());
        let headers = format!("Docker-Content-Digest: {digest}\r\nContent-Length: {}\r\n", body.len());
        answer(&headers, if method == "HEAD" { &[] } else { body.as_bytes() })
    });
    let (_home, images) = store(quick());
    let name = format!("{address}/x:1");
    let requests = || std::mem::take(&mut *asked.lock().unwrap()).join(", ");
    let first = images.pull(&name, &[]).await.unwrap();
    assert_eq!(requests(), "GET manifests, GET blobs");
    for same in [&name, &first.digests[0]] {
        assert_eq!(images.pull(same, &[]).await.unwrap(), first);
        assert_eq!(requests(), "HEAD manifests", "{same}");
    }
    *version.lock().unwrap() = 2;
    let second = images.pull(&name, &[]).await.unwrap();
    assert_ne!(second.id, first.id);
    assert_eq!(requests(), "HEAD manifests, GET manifests, GET blobs");
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
    drop(registry);
    let mirrors = vec!["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
    let settings = Registry {
        mirrors,
        ..Registry::default()
    };
    let mut config = quick();
    config.limits.attempts = 1;
    config.registries.insert("127.0.0.1:3".to_owned(), settings);
    let (_home, images) = store(config);
    let told = images.pull("127.0.0.1:3/x:1", &[]).await.unwrap_err().message();
    for part in [
        "mirror \"127.0.0.1:1\": failed to",
        "; mirror \"127.0.0.1:2\": failed to",
        "; registry \"127.0.0.1:3\": failed to",
    ] {
        assert!(told.contains(part), "{told}");
    }
}

#[tokio::test]
async fn a_mirror_is_told_the_registry_and_may_have_a_path() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let mirror = serve(move |request| {
        let path = request.split(' ').nth(1).unwrap();
        seen.lock().unwrap().push(path.to_owned());
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
    });
    let settings = Registry {
        mirrors: vec![mirror.clone(), format!("{mirror}/team/hub")],
        ..Registry::default()
    };
    let mut config = quick();
    config.registries.insert("127.0.0.1:3".to_owned(), settings);
    let (_home, images) = store(config);
    images.pull("127.0.0.1:3/x:1", &[]).await.unwrap_err();
    let wanted = ["/v2/x", "/v2/team/hub/x"].map(|path| format!("{path}/manifests/1?ns=127.0.0.1:3"));
    assert_eq!(*asked.lock().unwrap(), wanted);
}

#[tokio::test]
async fn a_mirror_that_refuses_anonymous_requests_gets_the_credentials() {
    for refuses in [false, true] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let mirror = serve(move |request| {
            let told = request.to_lowercase().contains("authorization: basic bwu6c2vjcmv0");
            seen.lock().unwrap().push(told);
            if refuses && !told {
                return refusal("");
            }
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
        });
        let settings = Registry {
            mirrors: vec![mirror],
            ..Registry::default()
        };
        let mut config = quick();
        config.registries.insert("127.0.0.1:3".to_owned(), settings);
        let (_home, images) = store(config);
        let told = images.pull("127.0.0.1:3/x:1", &[me()]).await.unwrap_err().message();
        assert!(told.contains("127.0.0.1:3/x:1: not found"), "{told}");
        assert_eq!(asked.lock().unwrap().contains(&true), refuses, "{told}");
    }
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
    assert!(
        error
            .message()
            .contains("failed to resolve reference \"127.0.0.1:1/x:latest\": failed to do request: "),
        "{}",
        error.message()
    );
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
    // Errors of anonymous requests do not hide those of authenticated ones.
    let absent = format!("{}/private:2", registry.address);
    let missing = images.pull(&absent, &credentials).await.unwrap_err().message();
    assert!(missing.ends_with(&format!("{absent}: not found")), "{missing}");
    let image = images.pull(&name, &[vec![wrong], credentials].concat()).await.unwrap();
    assert_eq!(image.names, [name]);
}
