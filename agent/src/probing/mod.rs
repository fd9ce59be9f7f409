//! One attempt of a probe or of a hook over HTTP.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::pods;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use runtime::ExecSpec;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::context::Context;

const OUTPUT_BYTES: usize = 10 * 1024;

/// What came of an attempt.
pub(crate) enum Outcome {
    Success,
    /// The container said no.
    Failure(String),
    /// It could not be asked.
    Error(String),
}

impl Outcome {
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Self::Success)
    }
}

/// Whom to ask.
pub(crate) struct Subject<'a> {
    pub(crate) context: &'a Context,
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a str,
    pub(crate) sandbox: &'a str,
    pub(crate) instance: &'a str,
    pub(crate) addresses: &'a [IpAddr],
}

/// Asks once.
pub(crate) async fn run(subject: &Subject<'_>, probe: &Probe) -> Outcome {
    let timeout = u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1).max(1);
    let limit = Duration::from_secs(timeout);
    if let Some(exec) = &probe.exec {
        return command(subject, exec.command.clone().unwrap_or_default(), limit).await;
    }
    if let Some(action) = &probe.http_get {
        let target = match Target::http(subject.pod, subject.container, action, subject.addresses) {
            Ok(target) => target,
            Err(error) => return Outcome::Error(error),
        };
        return match get(&target, limit).await {
            Ok(answer) if (200..400).contains(&answer.status) => Outcome::Success,
            Ok(answer) => Outcome::Failure(format!("HTTP probe failed with statuscode: {}", answer.status)),
            Err(error) => Outcome::Failure(format!("Get \"{}\": {error}", target.url())),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let container = pods::container(subject.pod, subject.container);
        let port = match container.map(|container| port(container, &action.port)) {
            Some(Ok(port)) => port,
            Some(Err(error)) => return Outcome::Error(error),
            None => return Outcome::Error("the container is gone".to_owned()),
        };
        let host = host(action.host.as_deref(), subject.addresses);
        let address = format!("{host}:{port}");
        return match tokio::time::timeout(limit, TcpStream::connect(&address)).await {
            Ok(Ok(_)) => Outcome::Success,
            Ok(Err(error)) => Outcome::Failure(format!("dial tcp {address}: connect: {}", plain(&error))),
            Err(_) => Outcome::Failure(format!("dial tcp {address}: i/o timeout")),
        };
    }
    Outcome::Error("missing probe handler".to_owned())
}

async fn command(subject: &Subject<'_>, argv: Vec<String>, limit: Duration) -> Outcome {
    let shown = argv.join(" ");
    let spec = ExecSpec {
        argv,
        env: Vec::new(),
        timeout: limit,
        output_limit: OUTPUT_BYTES,
    };
    match subject
        .context
        .parts
        .runtime
        .exec(subject.sandbox, subject.instance, spec)
        .await
    {
        Ok(result) if result.timed_out => Outcome::Failure(format!(
            "command timed out: \"{shown}\" timed out after {}s",
            limit.as_secs()
        )),
        Ok(result) if result.exit_code == 0 => Outcome::Success,
        Ok(result) => Outcome::Failure(String::from_utf8_lossy(&result.output).into_owned()),
        Err(error) => Outcome::Error(image::chain(&error)),
    }
}

fn host(own: Option<&str>, addresses: &[IpAddr]) -> String {
    match own.filter(|host| !host.is_empty()) {
        Some(host) => host.to_owned(),
        None => addresses
            .first()
            .map_or_else(|| "127.0.0.1".to_owned(), ToString::to_string),
    }
}

fn port(container: &Container, wanted: &IntOrString) -> Result<u16, String> {
    let number = match wanted {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(name));
            named
                .map(|port| port.container_port)
                .or_else(|| name.parse().ok())
                .ok_or_else(|| format!("couldn't find port: {name}"))?
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

/// Where a request goes.
pub(crate) struct Target {
    secure: bool,
    host: String,
    port: u16,
    path: String,
    headers: Vec<(String, String)>,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
}

impl Target {
    pub(crate) fn http(
        pod: &Pod,
        container: &str,
        action: &HTTPGetAction,
        addresses: &[IpAddr],
    ) -> Result<Self, String> {
        let container = pods::container(pod, container).ok_or_else(|| "the container is gone".to_owned())?;
        let path = action.path.clone().unwrap_or_default();
        let path = if path.starts_with('/') {
            path
        } else {
            format!("/{path}")
        };
        let headers = action.http_headers.iter().flatten();
        Ok(Self {
            secure: action.scheme.as_deref() == Some("HTTPS"),
            host: host(action.host.as_deref(), addresses),
            port: port(container, &action.port)?,
            path,
            headers: headers
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect(),
        })
    }

    fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}

/// One GET; redirects are answers, bodies are not kept. The failure is in the words of the field.
pub(crate) async fn get(target: &Target, limit: Duration) -> Result<Answer, String> {
    match tokio::time::timeout(limit, request(target)).await {
        Ok(answer) => answer,
        Err(_) => Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()),
    }
}

async fn request(target: &Target) -> Result<Answer, String> {
    let address = format!("{}:{}", target.host, target.port);
    let stream = TcpStream::connect(&address)
        .await
        .map_err(|error| format!("dial tcp {address}: connect: {}", plain(&error)))?;
    if !target.secure {
        return exchange(stream, target).await;
    }
    let name = ServerName::try_from(target.host.clone()).map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(trusting()?);
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    exchange(stream, target).await
}

async fn exchange<S>(stream: S, target: &Target) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut request = http::Request::get(&target.path)
        .header("Accept", "*/*")
        .header("Connection", "close");
    let mut named = (false, false);
    for (name, value) in &target.headers {
        named.0 |= name.eq_ignore_ascii_case("host");
        named.1 |= name.eq_ignore_ascii_case("user-agent");
        request = request.header(name, value);
    }
    if !named.0 {
        request = request.header("Host", format!("{}:{}", target.host, target.port));
    }
    if !named.1 {
        request = request.header("User-Agent", "kube-probe/1.36");
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let talk = async move {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        // The end of a small body lets the server close in peace.
        let body = Limited::new(response.into_body(), OUTPUT_BYTES).collect().await;
        drop(body);
        Ok(Answer { status })
    };
    // The connection may end together with the answer: both are heard to their end.
    let (answer, _ended) = tokio::join!(talk, connection);
    answer
}

fn plain(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::ConnectionRefused {
        "connection refused".to_owned()
    } else {
        error.to_string()
    }
}

fn trusting() -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(Arc::new(
        builder
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth(),
    ))
}

/// Probes ask whether a server answers, not who it is.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
