//! Users whose tokens come from an OpenID Connect issuer, from its absence to the rotation of its keys.

#![allow(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Method;
use http::header::AUTHORIZATION;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tests::http::Target;
use tests::machine::TIMEOUT;
use tests::process;
use tests::server::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What the issuer shows; nothing while it is down.
#[derive(Default)]
struct Shown {
    is_up: AtomicBool,
    url: String,
    keys: Mutex<String>,
}

/// An issuer on a socket of its own, with keys made by openssl.
struct Issuer {
    home: tempfile::TempDir,
    shown: Arc<Shown>,
    _serving: JoinSet<()>,
}

impl Issuer {
    async fn start() -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        let words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
                     -keyout tls.key -out tls.crt";
        openssl(home.path(), words)?;
        let certificate = CertificateDer::from_pem_slice(&std::fs::read(home.path().join("tls.crt"))?)?;
        let key = PrivateKeyDer::from_pem_slice(&std::fs::read(home.path().join("tls.key"))?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let shown = Arc::new(Shown {
            url: format!("https://localhost:{}/realm", listener.local_addr()?.port()),
            ..Shown::default()
        });
        let mut serving = JoinSet::new();
        let of_requests = Arc::clone(&shown);
        serving.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if of_requests.is_up.load(Ordering::SeqCst)
                    && let Err(error) = answer(&acceptor, stream, &of_requests).await
                {
                    tracing::debug!(%error, "a request to the issuer");
                }
            }
        });
        Ok(Self {
            home,
            shown,
            _serving: serving,
        })
    }

    /// Makes a key and publishes it alone.
    fn rotate(&self, kid: &str) -> anyhow::Result<()> {
        let home = self.home.path();
        openssl(
            home,
            &format!("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out {kid}.pem"),
        )?;
        let modulus = openssl(home, &format!("rsa -in {kid}.pem -noout -modulus"))?;
        let digits = modulus.trim().strip_prefix("Modulus=").context("a modulus")?;
        let bytes: Result<Vec<u8>, _> = (0..digits.len() / 2)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16))
            .collect();
        let key = json!({"kty": "RSA", "use": "sig", "kid": kid, "n": URL_SAFE_NO_PAD.encode(bytes?), "e": "AQAB"});
        *self.shown.keys.lock().unwrap_or_else(PoisonError::into_inner) = json!({"keys": [key]}).to_string();
        Ok(())
    }

    /// A token of Jane, signed by a key.
    fn token(&self, kid: &str) -> anyhow::Result<String> {
        let claims = json!({
            "iss": self.shown.url, "aud": "skiff", "exp": 4_102_444_800_u32,
            "sub": "7", "name": "jane", "roles": ["dev"],
        });
        let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let message = format!("{}.{}", encoded(&json!({"alg": "RS256", "kid": kid})), encoded(&claims));
        let home = self.home.path();
        std::fs::write(home.join("message"), &message)?;
        openssl(home, &format!("dgst -sha256 -sign {kid}.pem -out signature message"))?;
        let signature = std::fs::read(home.join("signature"))?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// A configuration that names it.
    fn configuration(&self) -> anyhow::Result<String> {
        let path = self.home.path().join("authentication.yaml");
        let authority = std::fs::read_to_string(self.home.path().join("tls.crt"))?;
        let configuration = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "anonymous": {"enabled": true, "conditions": [{"path": "/readyz"}]},
            "jwt": [{
                "issuer": {"url": self.shown.url, "audiences": ["skiff"], "certificateAuthority": authority},
                "claimMappings": {
                    "username": {"claim": "name", "prefix": "oidc:"},
                    "groups": {"expression": "claims.roles.map(role, 'oidc:' + role)"},
                    "uid": {"claim": "sub"},
                },
                "userValidationRules": [{"expression": "!user.username.startsWith('system:')"}],
            }],
        });
        std::fs::write(&path, configuration.to_string())?;
        Ok(path.display().to_string())
    }
}

fn openssl(home: &Path, words: &str) -> anyhow::Result<String> {
    process::run(Command::new("openssl").args(words.split_whitespace()).current_dir(home))
}

/// Answers one request.
async fn answer(acceptor: &TlsAcceptor, stream: TcpStream, shown: &Shown) -> anyhow::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    let request = String::from_utf8(request)?;
    let (status, body) = match request.split(' ').nth(1) {
        Some("/realm/.well-known/openid-configuration") => {
            let url = &shown.url;
            (
                "200 OK",
                json!({"issuer": url, "jwks_uri": format!("{url}/keys")}).to_string(),
            )
        }
        Some("/realm/keys") => {
            let keys = shown.keys.lock().unwrap_or_else(PoisonError::into_inner);
            ("200 OK", keys.clone())
        }
        Some(_) | None => ("404 Not Found", String::new()),
    };
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// Reads as the bearer of a token.
async fn get(target: &Target, path: &str, token: &str) -> anyhow::Result<Bytes> {
    let bearer = format!("Bearer {token}");
    let mut connection = target.anonymous()?.connect().await?;
    connection.read_as(path, &[(AUTHORIZATION, &bearer)]).await
}

/// Reads as the bearer of a token once it is taken.
async fn taken(target: &Target, path: &str, token: &str) -> anyhow::Result<Bytes> {
    let attempts = async {
        loop {
            match get(target, path, token).await {
                Err(error) if error.to_string().contains("401") => tokio::time::sleep(Duration::from_millis(50)).await,
                other => break other,
            }
        }
    };
    tokio::time::timeout(TIMEOUT, attempts)
        .await
        .context("the token is not taken")?
}

/// The user that stock kubectl is with a token.
fn whoami(server: &Server, token: &str) -> anyhow::Result<Value> {
    let kubeconfig: Value = serde_yaml::from_str(&std::fs::read_to_string(server.state().join("admin.kubeconfig"))?)?;
    let newest = process::kubectls()?.pop().context("a kubectl")?;
    let said = process::run(
        Command::new(newest)
            .args([
                "auth",
                "whoami",
                "-o",
                "json",
                "--kubeconfig",
                "/dev/null",
                "--token",
                token,
            ])
            .args([
                "--server",
                kubeconfig["clusters"][0]["cluster"]["server"]
                    .as_str()
                    .context("a URL")?,
            ])
            .arg("--certificate-authority")
            .arg(server.state().join("controlplane/pki/ca.crt")),
    )?;
    let review: Value = serde_json::from_str(&said)?;
    Ok(review["status"]["userInfo"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_an_issuer_have_the_rights_of_their_groups() -> anyhow::Result<()> {
    tests::logging();
    let issuer = Issuer::start().await?;
    issuer.rotate("first")?;
    let configuration = issuer.configuration()?;
    let server = Server::start_with(None, "127.0.0.1:0", &["--authentication-config", &configuration])?;
    let target = server.ready().await?;
    let (token, pods) = (issuer.token("first")?, "/api/v1/namespaces/default/pods");

    // It is down while the control plane starts.
    let refused = get(&target, pods, &token).await.unwrap_err().to_string();
    assert!(refused.contains("401"), "{refused}");
    issuer.shown.is_up.store(true, Ordering::SeqCst);
    taken(&target, "/version", &token).await?;

    let user = whoami(&server, &token)?;
    let groups = json!(["oidc:dev", "system:authenticated"]);
    assert_eq!(
        (&user["username"], &user["groups"], &user["uid"]),
        (&json!("oidc:jane"), &groups, &json!("7"))
    );
    let refused = get(&target, pods, &token).await.unwrap_err().to_string();
    assert!(
        refused.contains("User \\\"oidc:jane\\\" cannot list resource"),
        "{refused}"
    );
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "developers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "oidc:dev"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let mut admin = target.connect().await?;
    admin.expect(Method::POST, bindings, binding.to_string().into()).await?;
    get(&target, pods, &token).await?;

    // Its next key takes the place of the first one.
    issuer.rotate("second")?;
    taken(&target, pods, &issuer.token("second")?).await?;
    let refused = get(&target, pods, &token).await.unwrap_err().to_string();
    assert!(refused.contains("401"), "{refused}");

    // Who shows nothing may ask for what the file names.
    let mut nobody = target.anonymous()?.connect().await?;
    let (ready, _) = nobody.call(Method::GET, "/readyz", Bytes::new()).await?;
    let (version, _) = nobody.call(Method::GET, "/version", Bytes::new()).await?;
    assert_eq!((ready.as_u16(), version.as_u16()), (200, 401));
    server.finish()
}
