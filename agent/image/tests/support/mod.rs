//! Test support: registries, malicious servers, temporary stores.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses a part")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use agent_image::{Config, Credentials, Images, Limits};

/// Registry that is stopped with the test.
pub struct DockerRegistry {
    process: Child,
    pub address: String,
    home: tempfile::TempDir,
}

impl DockerRegistry {
    pub fn start(extra: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("config.yml");
        let storage = home.path().join("storage");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\nhttp:\n  addr: 127.0.0.1:0\n{extra}",
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
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            // msg="listening on 127.0.0.1:37813, tls"
            let (_, rest) = line.split_once("listening on ")?;
            rest.split([',', '"']).next().map(str::to_owned)
        });
        // Drains its output, so that it does not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: address.expect("the registry listens"),
            home,
        }
    }

    pub fn push(&self, archive: &Path, name: &str, extra: &[&str]) {
        let done = Command::new("skopeo")
            .args(["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"])
            .args(extra)
            .arg(format!("oci-archive:{}", archive.display()))
            .arg(format!("docker://{}/{name}", self.address))
            .output()
            .expect("skopeo, of the package of that name");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    pub fn blob(&self, digest: &str) -> PathBuf {
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

/// Archive as written by `docker save`.
pub fn saved(archive: &Path, name: &str) {
    let done = Command::new("skopeo")
        .args(["copy", "--quiet", "--insecure-policy"])
        .arg(format!("oci-archive:{}", busybox().display()))
        .arg(format!("docker-archive:{}:{name}", archive.display()))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

pub fn busybox() -> PathBuf {
    let script = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../tests/images/build");
    let output = Command::new(script).arg("busybox").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().lines().last().unwrap())
}

pub fn store(config: Config) -> (tempfile::TempDir, Images) {
    let home = tempfile::tempdir().unwrap();
    let images = Images::open(&home.path().join("images"), config).unwrap();
    (home, images)
}

pub fn quick() -> Config {
    Config {
        limits: Limits {
            attempts: 2,
            ..Limits::default()
        },
        ..Config::default()
    }
}

pub fn layers_of(home: &Path) -> usize {
    std::fs::read_dir(home.join("images/layers")).unwrap().count()
}

pub fn nothing_staged(home: &Path) {
    assert_eq!(std::fs::read_dir(home.join("images/staging")).unwrap().count(), 0);
}

/// Serves the same answer for each connection, after reading the request.
pub fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> String {
    serve_by_hand(move |request, connection| {
        connection.write_all(&answer(request)).ok();
    })
}

/// Serves one request per connection, each in its own thread.
pub fn serve_by_hand(serve: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection): Result<TcpStream, _> = connection else {
                break;
            };
            let serve = std::sync::Arc::clone(&serve);
            std::thread::spawn(move || {
                let mut request = Vec::new();
                let mut byte = [0_u8; 1];
                while !request.ends_with(b"\r\n\r\n") && connection.read(&mut byte).is_ok_and(|read| read > 0) {
                    request.extend_from_slice(&byte);
                    // A TLS handshake: servers without TLS close the connection.
                    if request == [0x16] {
                        return;
                    }
                }
                serve(&String::from_utf8_lossy(&request), &mut connection);
            });
        }
    });
    address
}

/// 401 answer with these challenges.
pub fn refusal(headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 401 Unauthorized\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
}

pub fn redirect(location: &str) -> Vec<u8> {
    format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// User `me` with the password `secret`: `Basic bWU6c2VjcmV0`.
pub fn me() -> Credentials {
    Credentials {
        username: "me".to_owned(),
        password: "secret".to_owned(),
    }
}

pub fn answer(headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{headers}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
