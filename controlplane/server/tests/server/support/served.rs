//! A server on a real socket, with certificates of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use controlplane_server::authn::pki::{Pki, Profile};
use controlplane_server::transport::tls::{self, Transport};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::Api;

/// Far more than anything here takes, also on a busy machine.
pub const TIMEOUT: Duration = Duration::from_mins(1);
/// Lifetime of certificates.
pub const LIFETIME: Duration = Duration::from_mins(10);

/// Server with its transport and authority.
pub struct Served {
    pub api: Api,
    pub pki: Pki,
    pub transport: Transport,
    pub address: SocketAddr,
    pub stop: CancellationToken,
    pub serving: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

/// The time that certificates are judged by.
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// Profile of the server's certificate.
pub fn serving() -> Profile {
    Profile::Server {
        common_name: "kube-apiserver".to_owned(),
        organizations: Vec::new(),
        names: vec!["localhost".to_owned()],
    }
}

/// Serves on a free port; `change` can modify the transport.
pub async fn serve(change: impl FnOnce(Transport) -> Transport) -> Served {
    serve_api(Api::start().await, change).await
}

/// As [`serve`], of a server that is there.
pub async fn serve_api(api: Api, change: impl FnOnce(Transport) -> Transport) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), now()).unwrap().with_lifetime(LIFETIME);
    let transport = Transport::new(&pki, &pki.keep("apiserver", &serving(), now()).unwrap()).unwrap();
    let transport = change(transport);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let running = tls::serve(listener, transport.clone(), api.server.router(), stop.clone());
    Served {
        serving: tokio::spawn(running),
        api,
        pki,
        transport,
        address,
        stop,
        _directory: directory,
    }
}

/// A TLS connection; `user` shows a certificate of that name.
pub async fn dial(served: &Served, user: Option<&str>, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(served.pki.authority_der().unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match user {
        None => config.with_no_client_auth(),
        Some(user) => {
            let identity = served
                .pki
                .issue(&Profile::client(user, &["system:masters"]), now())
                .unwrap();
            let (chain, key) = identity.to_der().unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(served.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// A connection of an administrator, and the certificate that the server showed.
pub async fn connect(served: &Served) -> (SendRequest<Body>, CertificateDer<'static>) {
    let stream = dial(served, Some("root"), "http/1.1").await.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    (speak(stream).await, shown)
}

/// HTTP/1.1 over a connection.
pub async fn speak(stream: TlsStream<TcpStream>) -> SendRequest<Body> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { connection.await.ok() });
    sender
}

/// GET.
pub async fn get(sender: &mut SendRequest<Body>, path: &str) -> Response<Incoming> {
    let request = Request::get(path)
        .header("host", "localhost")
        .body(Body::empty())
        .unwrap();
    sender.send_request(request).await.unwrap()
}
