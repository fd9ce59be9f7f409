//! Registries with TLS: which certificates are trusted. Needs root, as every test that unpacks
//! layers.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::process::Command;

use agent_image::{Credentials, Registry};
use support::{DockerRegistry, busybox, quick, store};

/// Certificate authority and a certificate it signed for 127.0.0.1: `ca.pem`, `own.pem`, `own.key`.
fn certificates(home: &std::path::Path) {
    std::fs::write(home.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    for words in [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=registry -keyout own.key -out own.csr",
        "x509 -req -in own.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out own.pem",
    ] {
        let done = Command::new("openssl")
            .args(words.split(' '))
            .current_dir(home)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

#[tokio::test]
async fn a_private_registry_behind_its_own_authority_gives_zstd_layers() {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let passwords = home.path().join("passwords");
    // bcrypt of "secret".
    std::fs::write(
        &passwords,
        "me:$2y$05$CL3a3zbpujbdtr1uthCWc.TZ05io93iolYColijXWo.XaM7M5XlDe\n",
    )
    .unwrap();
    let registry = DockerRegistry::start(&format!(
        "  tls: {{certificate: {0}/own.pem, key: {0}/own.key}}\nauth: {{htpasswd: {{realm: test, path: {1}}}}}\n",
        home.path().display(),
        passwords.display(),
    ));
    let archive = home.path().join("zstd.tar");
    let done = Command::new("skopeo")
        .args(["copy", "--quiet", "--insecure-policy", "--dest-compress-format", "zstd"])
        .arg(format!("oci-archive:{}", busybox().display()))
        .arg(format!("oci-archive:{}:x", archive.display()))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    registry.push(&archive, "team/private:1", &["--dest-creds", "me:secret"]);
    let name = format!("{}/team/private:1", registry.address);
    let authority = Registry {
        authorities: vec![home.path().join("ca.pem")],
        ..Registry::default()
    };
    let secret = format!(
        "{{\"auths\":{{\"https://{}/team\":{{\"username\":\"me\",\"password\":\"secret\"}}}}}}",
        registry.address
    );
    let credentials = Credentials::for_image(secret.as_bytes(), &name).unwrap();
    assert_eq!(credentials.len(), 1);

    let mut config = quick();
    config.limits.attempts = 1;
    config.registries.insert(registry.address.clone(), authority.clone());
    let (_store, images) = store(config.clone());
    let denied = images.pull(&name, &[]).await.unwrap_err().message();
    assert!(denied.contains("pull access denied"), "{denied}");
    let image = images.pull(&name, &credentials).await.unwrap();
    assert!(image.layers[0].join("bin/busybox").is_file());

    // A client that does not know the authority refuses the connection and sends no password.
    config.registries.insert(
        registry.address.clone(),
        Registry {
            authorities: vec![home.path().join("other.pem")],
            ..Registry::default()
        },
    );
    let (_store, images) = store(config.clone());
    let unread = images.pull(&name, &credentials).await.unwrap_err().message();
    assert!(unread.contains("other.pem"), "{unread}");
    certificates(home.path());
    let (_store, images) = {
        config.registries.insert(registry.address.clone(), authority);
        store(config)
    };
    let stranger = images.pull(&name, &credentials).await.unwrap_err().message();
    assert!(stranger.contains("failed to do request"), "{stranger}");
}

/// Self-signed certificate as in Docker's documentation: openssl marks it as an authority.
#[tokio::test]
async fn a_registrys_own_certificate_is_enough() {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x -addext subjectAltName=IP:127.0.0.1 -keyout self.key -out self.pem";
    let made = Command::new("openssl")
        .args(words.split(' '))
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let place = home.path().display();
    let alone = DockerRegistry::start(&format!(
        "  tls: {{certificate: {place}/self.pem, key: {place}/self.key}}\n"
    ));
    alone.push(&busybox(), "x:1", &[]);
    let trusted = |file: &str| {
        let mut config = quick();
        config.limits.attempts = 1;
        let authorities = vec![home.path().join(file)];
        let settings = Registry {
            authorities,
            ..Registry::default()
        };
        config.registries.insert(alone.address.clone(), settings);
        store(config)
    };
    let own = format!("{}/x:1", alone.address);
    trusted("self.pem").1.pull(&own, &[]).await.unwrap();
    let refused = trusted("ca.pem").1.pull(&own, &[]).await.unwrap_err().message();
    assert!(refused.contains("invalid peer certificate"), "{refused}");
}

/// On loopback, HTTP is used for a registry without TLS; a registry with TLS only needs a trusted
/// certificate.
#[tokio::test]
async fn a_loopback_registry_that_speaks_tls_alone_is_asked_so_and_must_be_trusted() {
    let home = tempfile::tempdir().unwrap();
    certificates(home.path());
    let place = home.path().display();
    let secure = DockerRegistry::start(&format!(
        "  tls: {{certificate: {place}/own.pem, key: {place}/own.key}}\n"
    ));
    let mut config = quick();
    config.limits.attempts = 1;
    let (_store, images) = store(config);
    let refused = images.pull(&format!("{}/x:1", secure.address), &[]).await;
    let told = refused.unwrap_err().message();
    assert!(
        told.contains("https://") && told.contains("invalid peer certificate"),
        "{told}"
    );
}
