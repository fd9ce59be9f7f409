//! The agent's client and server certificates: reloaded when a file changes, and renewed before
//! they expire. Requests in progress continue on their existing connections.

use std::convert::Infallible;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use agent::certificates::{CLIENT, SERVING};
use agent::connection::Servers;
use agent::serve::Files;
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use kube::runtime::wait::await_condition;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::Value;
use tracing::{info, warn};

/// Interval between checks for changed files and certificates that are about to expire.
const LOOK: Duration = Duration::from_mins(1);
/// A certificate is renewed when less than this fraction (one in …) of its lifetime is left.
const LAST_PART: i64 = 6;
/// Longest time to wait for a certificate to be signed.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Longest pause after a failed renewal, in seconds.
const PAUSE: i64 = 6 * 3600;
pub(crate) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(crate) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
const CERTIFICATE: &str = "/users/0/user/client-certificate-data";
const KEY: &str = "/users/0/user/client-key-data";

/// Kubeconfig of the agent and the certificate of its server.
pub(crate) struct Credentials {
    kubeconfig: PathBuf,
    servers: Servers,
    serving: Files,
    current: Arc<RwLock<kube::Client>>,
    /// Kubeconfig in use.
    used: String,
}

/// Lifetime of a certificate of the agent.
#[derive(Default)]
pub(crate) struct Own {
    pub(crate) common_name: String,
    pub(crate) from: i64,
    /// Equal to `from` for a certificate that does not exist yet: the signer decides the lifetime.
    pub(crate) until: i64,
}

/// Parameters of a `CertificateSigningRequest`.
pub(crate) struct Wanted<'a> {
    pub(crate) signer: &'static str,
    pub(crate) usage: &'static str,
    pub(crate) own: &'a Own,
    pub(crate) names: Vec<String>,
}

impl Credentials {
    /// Reads the kubeconfig. The client uses renewed credentials.
    pub(crate) async fn open(
        kubeconfig: &Path,
        servers: Servers,
        serving: Files,
    ) -> anyhow::Result<(Self, kube::Client)> {
        let used = read(kubeconfig)?;
        let current = Arc::new(RwLock::new(connect(&used, &servers).await?));
        let namespace = "default";
        let inner = Arc::clone(&current);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let client = inner.read().unwrap_or_else(PoisonError::into_inner).clone();
            agent::requests::send(client, request)
        });
        let client = kube::Client::new(service, namespace);
        let own = Self {
            kubeconfig: kubeconfig.to_owned(),
            servers,
            serving,
            current,
            used,
        };
        Ok((own, client))
    }

    /// Maintains the credentials without end.
    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            let mut pause = LOOK;
            if let Err(error) = self.look(Timestamp::now(), &mut pause).await {
                warn!(error = format!("{error:#}"), "the agent's credentials are not renewed");
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn look(&mut self, now: Timestamp, pause: &mut Duration) -> anyhow::Result<()> {
        let text = read(&self.kubeconfig)?;
        if text != self.used {
            self.take_up(text).await?;
        }
        let mut value = parse(&self.used)?;
        let own = Own::of_client(&value);
        CLIENT.expires(own.as_ref().map_or(0, |own| own.until));
        // Tokens and files without a renewable certificate are rotated by their owner.
        if let Some(own) = own.filter(|own| own.is_nearly_over(now)) {
            *pause = own.pause(now);
            let wanted = Wanted {
                signer: CLIENT_SIGNER,
                usage: "client auth",
                own: &own,
                names: Vec::new(),
            };
            let renewed = wanted.ask(self.client(), TIMEOUT).await;
            let (certificate, key) = renewed.inspect_err(|_| CLIENT.failed())?;
            for (pointer, pem) in [(CERTIFICATE, &certificate), (KEY, &key)] {
                if let Some(old) = value.pointer_mut(pointer) {
                    *old = STANDARD.encode(pem).into();
                }
            }
            let text = serde_json::to_string_pretty(&value).context("write the kubeconfig")?;
            write(&self.kubeconfig, &text)?;
            self.take_up(text).await?;
        }
        self.renew_serving(now, pause).await
    }

    /// Renews the serving certificate, which the server reloads itself.
    async fn renew_serving(&self, now: Timestamp, pause: &mut Duration) -> anyhow::Result<()> {
        let pem = read(&self.serving.certificate)?;
        let own = Own::read(pem.as_bytes());
        SERVING.expires(own.as_ref().map_or(0, |own| own.until));
        let Some(own) = own.filter(|own| own.is_nearly_over(now)) else {
            return Ok(());
        };
        *pause = own.pause(now);
        let node = own.common_name.strip_prefix("system:node:").unwrap_or_default();
        let wanted = Wanted {
            signer: SERVING_SIGNER,
            usage: "server auth",
            own: &own,
            names: vec![node.to_owned()],
        };
        let renewed = wanted.ask(self.client(), TIMEOUT).await;
        let (certificate, key) = renewed.inspect_err(|_| SERVING.failed())?;
        write(&self.serving.key, &key)?;
        write(&self.serving.certificate, &certificate)?;
        info!("the server's certificate is renewed");
        Ok(())
    }

    async fn take_up(&mut self, text: String) -> anyhow::Result<()> {
        let client = connect(&text, &self.servers).await?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = client;
        self.used = text;
        info!("the client's credentials have changed");
        Ok(())
    }

    fn client(&self) -> kube::Client {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Wanted<'_> {
    /// Requests a new certificate and waits for its signature for at most `limit`; returns it with
    /// its new key.
    pub(crate) async fn ask(&self, client: kube::Client, limit: Duration) -> anyhow::Result<(String, String)> {
        let key = KeyPair::generate().context("make a key")?;
        let mut params = CertificateParams::new(self.names.clone()).context("name the node")?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(DnType::CommonName, self.own.common_name.as_str());
        let request = params.serialize_request(&key).and_then(|request| request.pem());
        let object = CertificateSigningRequest {
            metadata: ObjectMeta {
                generate_name: Some("csr-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.context("make a request")?.into_bytes()),
                signer_name: self.signer.to_owned(),
                usages: Some(vec!["digital signature".to_owned(), self.usage.to_owned()]),
                expiration_seconds: i32::try_from(self.own.until - self.own.from)
                    .ok()
                    .filter(|life| *life > 0)
                    .map(|life| life.max(600)),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let requests: Api<CertificateSigningRequest> = Api::all(client);
        let made = requests.create(&PostParams::default(), &object).await;
        let name = made.context("ask for a certificate")?.metadata.name.unwrap_or_default();
        let decided = tokio::time::timeout(limit, await_condition(requests, &name, is_decided)).await;
        let decided = decided.with_context(|| format!("nobody has signed the request {name}"))?;
        let decided = decided.with_context(|| format!("wait for the request {name}"))?;
        let status = decided.and_then(|request| request.status);
        let certificate = status
            .and_then(|status| status.certificate)
            .map(|certificate| certificate.0);
        let certificate = certificate.with_context(|| format!("the request {name} is not signed"))?;
        let certificate = String::from_utf8(certificate).context("read the certificate")?;
        Ok((certificate, key.serialize_pem()))
    }
}

/// True if a request is approved and signed, denied, failed, or gone.
fn is_decided(request: Option<&CertificateSigningRequest>) -> bool {
    let Some(request) = request else { return true };
    let Some(status) = &request.status else { return false };
    let signed = status
        .certificate
        .as_ref()
        .is_some_and(|certificate| !certificate.0.is_empty());
    let mut conditions = status.conditions.iter().flatten();
    signed || conditions.any(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))
}

impl Own {
    pub(crate) fn read(pem: &[u8]) -> Option<Self> {
        let (_, block) = x509_parser::pem::parse_x509_pem(pem).ok()?;
        let certificate = block.parse_x509().ok()?;
        let (common_name, _) = api::certificate::subject_of(certificate.subject())?;
        Some(Self {
            common_name,
            from: certificate.validity().not_before.timestamp(),
            until: certificate.validity().not_after.timestamp(),
        })
    }

    /// Returns the lifetime of the certificate in a kubeconfig.
    pub(crate) fn of_client(kubeconfig: &Value) -> Option<Self> {
        let encoded = kubeconfig.pointer(CERTIFICATE).and_then(Value::as_str)?;
        Self::read(&STANDARD.decode(encoded).ok()?)
    }

    fn is_nearly_over(&self, now: Timestamp) -> bool {
        self.until - now.as_second() < (self.until - self.from) / LAST_PART
    }

    /// Returns the time until the next attempt.
    fn pause(&self, now: Timestamp) -> Duration {
        let left = (self.until - now.as_second()) / 24;
        u64::try_from(left.min(PAUSE)).map_or(LOOK, |left| Duration::from_secs(left).max(LOOK))
    }
}

pub(crate) async fn connect(text: &str, servers: &Servers) -> anyhow::Result<kube::Client> {
    agent::connection::open(configuration(text).await?, servers).context("make the API client")
}

/// Connects as the kubeconfig says now, such that the connection can switch protocols.
pub(crate) async fn connect_switching(kubeconfig: &Path, servers: &Servers) -> anyhow::Result<kube::Client> {
    let configuration = configuration(&read(kubeconfig)?).await?;
    agent::connection::open_switching(configuration, servers).context("make the API client")
}

async fn configuration(text: &str) -> anyhow::Result<kube::Config> {
    let kubeconfig = Kubeconfig::from_yaml(text).context("read the kubeconfig")?;
    let mut configuration = common_proxy::configuration(kubeconfig).await?;
    // Watches are idle for long; all other requests have timeouts of their own.
    configuration.read_timeout = Some(Duration::from_mins(6));
    configuration.connect_timeout = Some(Duration::from_secs(5));
    Ok(configuration)
}

pub(crate) fn parse(text: &str) -> anyhow::Result<Value> {
    Ok(api::yaml::to_json(text.as_bytes())
        .context("read the kubeconfig")?
        .value)
}

pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Replaces a file atomically by one that only its owner may read.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let part = path.with_extension("part");
    let replace = || {
        if part.exists() {
            std::fs::remove_file(&part)?;
        }
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    replace().with_context(|| format!("write {}", path.display()))
}
