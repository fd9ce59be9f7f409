//! The names that controller-runtime's envtest starts, started as it does (`pkg/internal/testing/controlplane`).

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Method, StatusCode};
use k8s_openapi::jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use server::authn::pki::{Pki, Profile, kubeconfig};
use tests::http::Target;
use tests::machine::TIMEOUT;
use tests::process;

/// A free port of the loopback, given once and to this process alone: one of the kernel's choice, as envtest takes it, may
/// be another test's before a program listens.
fn port() -> anyhow::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = 10_000 + std::process::id() % 1_000 * 20;
    let mut next = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    next.find_map(|port| u16::try_from(port).ok().filter(is_free))
        .context("a free port")
}

/// A program of the directory; it is killed when the test fails.
struct Started(Child, PathBuf);

impl Started {
    fn start(program: &Path, arguments: &[String], log: PathBuf) -> anyhow::Result<Self> {
        let file = fs::File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(Self(command.spawn()?, log))
    }

    /// Ends it as envtest does, which takes anything but 0 for a failure.
    fn stop(mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(i32::try_from(self.0.id())?), Signal::SIGTERM)?;
        let status = self.0.wait()?;
        let log = fs::read_to_string(&self.1)?;
        ensure!(status.success() && !log.contains("ERROR"), "{status}: {log}");
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }
}

/// A control plane as envtest makes it: folders, authorities, flags.
struct Environment {
    home: tempfile::TempDir,
    etcd: u16,
    secure: u16,
    clients: Pki,
}

impl Environment {
    fn new() -> anyhow::Result<Self> {
        let home = tempfile::Builder::new().prefix("envtest-").tempdir()?;
        let path = home.path();
        let skiff = process::programs()?.join("skiff");
        let printed = process::run(Command::new(skiff).arg("test-assets").arg(path.join("bin")))?;
        ensure!(printed.trim_end() == path.join("bin").canonicalize()?.to_string_lossy());
        let certificates = path.join("certificates");
        fs::create_dir_all(&certificates)?;
        let now = Timestamp::now();
        let authority = |name: &str| Pki::open(&path.join(name), now);
        let serving = Profile::Server {
            common_name: "localhost".to_owned(),
            organizations: vec!["envtest".to_owned()],
            names: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        };
        let serving = authority("serving")?.issue(&serving, now)?;
        fs::write(certificates.join("apiserver.crt"), serving.certificate)?;
        fs::write(certificates.join("apiserver.key"), serving.key)?;
        let (clients, _signer) = (authority("clients")?, authority("signer")?);
        fs::write(certificates.join("client-cert-auth-ca.crt"), clients.authority())?;
        for kind in ["crt", "key"] {
            fs::copy(
                path.join("signer").join(format!("ca.{kind}")),
                certificates.join(format!("sa-signer.{kind}")),
            )?;
        }
        let (etcd, secure) = (port()?, port()?);
        Ok(Self {
            home,
            etcd,
            secure,
            clients,
        })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.home.path().join("bin").join(name)
    }

    fn start_etcd(&self) -> anyhow::Result<Started> {
        let (url, data) = (format!("http://127.0.0.1:{}", self.etcd), self.home.path().join("data"));
        let arguments = [
            format!("--advertise-client-urls={url}"),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={url}"),
            format!("--listen-peer-urls=http://127.0.0.1:{}", port()?),
        ];
        Started::start(&self.program("etcd"), &arguments, self.home.path().join("etcd.log"))
    }

    fn start_api_server(&self, further: &[&str]) -> anyhow::Result<Started> {
        let (place, secure) = (self.home.path().join("certificates"), self.secure);
        let place = place.display();
        let mut arguments = vec![
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={place}"),
            format!("--client-ca-file={place}/client-cert-auth-ca.crt"),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd),
            format!("--secure-port={secure}"),
            format!("--service-account-issuer=https://127.0.0.1:{secure}/"),
            format!("--service-account-key-file={place}/sa-signer.crt"),
            format!("--service-account-signing-key-file={place}/sa-signer.key"),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        ];
        arguments.extend(further.iter().map(|&flag| flag.to_owned()));
        Started::start(
            &self.program("kube-apiserver"),
            &arguments,
            self.home.path().join("api.log"),
        )
    }

    /// A user by a certificate of the clients' authority; the server's own authority is the only one that he trusts.
    fn user(&self, name: &str, groups: &[&str]) -> anyhow::Result<Target> {
        let serving = fs::read_to_string(self.home.path().join("serving/ca.crt"))?;
        let identity = self.clients.issue(&Profile::client(name, groups), Timestamp::now())?;
        let file = self.home.path().join(format!("{name}.kubeconfig"));
        let server = format!("https://127.0.0.1:{}", self.secure);
        fs::write(&file, kubeconfig(&server, &serving, name, &identity))?;
        Target::from_kubeconfig(&file)
    }

    /// Waits as envtest does, without a certificate.
    async fn healthy(&self) -> anyhow::Result<()> {
        let anonymous = self.user("admin", &["system:masters"])?.anonymous()?;
        let up = async {
            loop {
                if let Ok(mut connection) = anonymous.connect().await
                    && let Ok((StatusCode::OK, _)) = connection.call(Method::GET, "/healthz", Bytes::new()).await
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let log = || fs::read_to_string(self.home.path().join("api.log")).unwrap_or_default();
        tokio::time::timeout(TIMEOUT, up).await.with_context(log)
    }

    async fn ask(&self, user: &Target, method: Method, path: &str, body: Value) -> anyhow::Result<(StatusCode, Value)> {
        let body = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let (code, answer) = user.connect().await?.call(method, path, body).await?;
        Ok((code, serde_json::from_slice(&answer)?))
    }

    /// Checks that a token is issued in the name that envtest gave the server, and that the server takes it.
    async fn issues_tokens(&self, admin: &Target) -> anyhow::Result<()> {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let (code, _) = self
            .ask(admin, Method::POST, accounts, json!({"metadata": {"name": "robot"}}))
            .await?;
        assert_eq!(code, StatusCode::CREATED);
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let (_, token) = self
            .ask(admin, Method::POST, &format!("{accounts}/robot/token"), request)
            .await?;
        let token = token["status"]["token"].as_str().context("a token")?;
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).context("claims")?)?;
        let claims: Value = serde_json::from_slice(&claims)?;
        let issuer = format!("https://127.0.0.1:{}/", self.secure);
        assert_eq!((&claims["iss"], &claims["aud"]), (&json!(issuer), &json!([issuer])));
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let (_, review) = self
            .ask(
                admin,
                Method::POST,
                "/apis/authentication.k8s.io/v1/tokenreviews",
                review,
            )
            .await?;
        assert_eq!(
            review["status"]["user"]["username"], "system:serviceaccount:default:robot",
            "{review}"
        );
        Ok(())
    }
}

#[test]
fn their_help_ends_well_and_names_no_flag_that_would_change_what_is_asked() -> anyhow::Result<()> {
    let environment = Environment::new()?;
    for (name, switch) in [("kube-apiserver", "--insecure-port"), ("etcd", "--unsafe-no-fsync")] {
        let help = process::run(
            Command::new(environment.program(name))
                .arg("--help")
                .stdin(Stdio::null()),
        )?;
        ensure!(
            !help.lines().any(|line| line.trim_start().starts_with(switch)),
            "{help}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn envtest_finds_an_api_server_that_keeps_its_objects_with_etcd() -> anyhow::Result<()> {
    let environment = Environment::new()?;
    let etcd = environment.start_etcd()?;
    // Readiness of etcd is what envtest waits for first; the API server needs it.
    let listening = async {
        while tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, environment.etcd))
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, listening)
        .await
        .context("etcd does not listen")?;
    let (policy, log) = (
        environment.home.path().join("policy"),
        environment.home.path().join("audit/log"),
    );
    fs::write(
        &policy,
        "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{level: Metadata, verbs: [create]}]}",
    )?;
    let audit = [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
    ];
    let server = environment.start_api_server(&["--feature-gates=A=true", "--v=2", &audit[0], &audit[1]])?;
    environment.healthy().await?;
    let admin = environment.user("admin", &["system:masters"])?;
    let (code, _) = environment
        .ask(&admin, Method::GET, "/api/v1/namespaces/default", Value::Null)
        .await?;
    assert_eq!(code, StatusCode::OK);

    // The account is made by a controller, and there is none.
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (code, made) = environment.ask(&admin, Method::POST, pods, pod).await?;
    assert_eq!(
        (code, made["spec"].get("serviceAccountName")),
        (StatusCode::CREATED, None),
        "{made}"
    );

    let jane = environment.user("jane", &["developers"])?;
    let (code, refused) = environment.ask(&jane, Method::GET, pods, Value::Null).await?;
    let message =
        "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"";
    assert_eq!(
        (code, refused["message"].as_str()),
        (StatusCode::FORBIDDEN, Some(message))
    );

    environment.issues_tokens(&admin).await?;
    server.stop()?;
    let audit = fs::read_to_string(log)?;
    assert!(
        audit.contains(r#""requestURI":"/api/v1/namespaces/default/pods","verb":"create""#),
        "{audit}"
    );
    let server = environment.start_api_server(&[])?;
    environment.healthy().await?;
    let (code, found) = environment
        .ask(&admin, Method::GET, &format!("{pods}/a"), Value::Null)
        .await?;
    assert_eq!(
        (code, &found["metadata"]["uid"]),
        (StatusCode::OK, &made["metadata"]["uid"])
    );
    server.stop()?;
    etcd.stop()
}
