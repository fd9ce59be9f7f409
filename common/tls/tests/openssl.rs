//! Tests against openssl's server.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common_tls::Bundle;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};

struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// Starts a server with a self-signed certificate whose key and signature are P-521.
    fn start(home: &Path, digest: &str, constraints: &str, options: &str) -> Self {
        let words = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -days 2 -{digest} -subj /CN=x -addext \
             subjectAltName=DNS:localhost -addext basicConstraints=critical,{constraints} -keyout own.key -out own.pem"
        );
        let made = Command::new("openssl")
            .args(words.split(' '))
            .current_dir(home)
            .output();
        let made = made.expect("openssl, of the package of that name");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let words = format!("s_server -accept 127.0.0.1:0 -cert own.pem -key own.key -www {options}");
        let mut process = Command::new("openssl")
            .args(words.split(' '))
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let address = lines
            .find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned))
            .expect("it listens");
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }

    /// Fetches the server's page.
    fn ask(&self, config: ClientConfig) -> String {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(client, TcpStream::connect(&self.address).unwrap());
        let mut page = String::new();
        let asked = stream
            .write_all(b"GET / HTTP/1.0\r\n\r\n")
            .and_then(|()| stream.read_to_string(&mut page));
        match asked {
            Err(error) if page.is_empty() => error.to_string(),
            Ok(_) | Err(_) => page,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
fn keys_and_exchanges_of_p521_are_spoken() {
    for version in ["-tls1_2", "-tls1_3"] {
        for digest in ["sha256", "sha384", "sha512"] {
            let home = tempfile::tempdir().unwrap();
            let server = Server::start(home.path(), digest, "CA:FALSE", &format!("{version} -groups P-521"));
            let page = server.ask(common_tls::trusting().unwrap());
            assert!(page.starts_with("HTTP/1.0 200 ok"), "{version} {digest}: {page}");
            // It is an authority for itself alone.
            let pem = std::fs::read(home.path().join("own.pem")).unwrap();
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
            let builder = ClientConfig::builder_with_provider(Arc::new(common_tls::provider()));
            let builder = builder.with_safe_default_protocol_versions().unwrap();
            let page = server.ask(builder.clone().with_root_certificates(roots).with_no_client_auth());
            assert!(page.starts_with("HTTP/1.0 200 ok"), "{version} {digest}: {page}");
            let other = tempfile::tempdir().unwrap();
            let _stranger = Server::start(other.path(), digest, "CA:FALSE", version);
            let pem = std::fs::read(other.path().join("own.pem")).unwrap();
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
            let refused = server.ask(builder.with_root_certificates(roots).with_no_client_auth());
            assert!(
                refused.contains("invalid peer certificate"),
                "{version} {digest}: {refused}"
            );
        }
    }
}

#[test]
fn an_authority_is_a_server_to_those_alone_who_trust_it() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path(), "sha256", "CA:TRUE", "-tls1_3");
    let pem = std::fs::read(home.path().join("own.pem")).unwrap();
    let page = server.ask(Bundle::client(&pem).unwrap());
    assert!(page.starts_with("HTTP/1.0 200 ok"), "{page}");
    let other = tempfile::tempdir().unwrap();
    let _stranger = Server::start(other.path(), "sha256", "CA:TRUE", "-tls1_3");
    let pem = std::fs::read(other.path().join("own.pem")).unwrap();
    let refused = server.ask(Bundle::client(&pem).unwrap());
    assert_eq!(refused, "invalid peer certificate: UnknownIssuer");
}
