//! A small HTTP client over one TLS connection, for measurements and for requests that no well-behaved client sends.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::header::HeaderName;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Address of a server, and the certificate for requests to it.
#[derive(Clone)]
pub struct Target {
    address: String,
    host: String,
    tls: Arc<rustls::ClientConfig>,
    roots: Arc<rustls::RootCertStore>,
}

impl Target {
    /// Reads server, CA and client certificate from a kubeconfig file with embedded data.
    ///
    /// # Errors
    /// Fails if the file is not such a kubeconfig.
    pub fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let config: serde_json::Value = serde_yaml::from_str(&std::fs::read_to_string(path)?)?;
        let server: http::Uri = text(&config, "/clusters/0/cluster/server")?.parse()?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in
            CertificateDer::pem_slice_iter(&decode(&config, "/clusters/0/cluster/certificate-authority-data")?)
        {
            roots.add(certificate?)?;
        }
        let chain = CertificateDer::pem_slice_iter(&decode(&config, "/users/0/user/client-certificate-data")?)
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&decode(&config, "/users/0/user/client-key-data")?)?;
        let roots = Arc::new(roots);
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain, key)?;
        let host = server.host().context("a host")?.to_owned();
        let address = format!("{host}:{}", server.port_u16().unwrap_or(443));
        Ok(Self {
            address,
            host,
            tls: Arc::new(tls),
            roots,
        })
    }

    /// The same server, without a client certificate.
    ///
    /// # Errors
    /// Fails if the TLS library refuses its defaults.
    pub fn anonymous(&self) -> anyhow::Result<Self> {
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_no_client_auth();
        Ok(Self {
            tls: Arc::new(tls),
            ..self.clone()
        })
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// Fails if the server cannot be reached or its certificate is not the cluster's.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = self.raw().await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
        Ok(Connection {
            sender,
            host: self.host.clone(),
            driver,
        })
    }
}

impl Target {
    /// Opens a connection for callers that write their own requests.
    ///
    /// # Errors
    /// Fails if the server cannot be reached or its certificate is not the cluster's.
    pub async fn raw(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        self.stream(Arc::clone(&self.tls)).await
    }

    async fn stream(&self, tls: Arc<rustls::ClientConfig>) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(self.host.clone())?;
        Ok(TlsConnector::from(tls).connect(name, stream).await?)
    }

    /// Opens a connection of HTTP/2 and starts as many watches on it.
    ///
    /// # Errors
    /// Fails if the server cannot be reached or refuses one.
    pub async fn watches(&self, path: &str, count: usize) -> anyhow::Result<Watches> {
        let mut tls = rustls::ClientConfig::clone(&self.tls);
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let stream = self.stream(Arc::new(tls)).await?;
        let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
        let mut bodies = Vec::new();
        for _ in 0..count {
            let uri = format!("https://{}{path}", self.address);
            let request = Request::builder().uri(uri).body(Full::new(Bytes::new()))?;
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            if !response.status().is_success() {
                bail!("watch {path}: {}", response.status());
            }
            bodies.push(response.into_body());
        }
        Ok(Watches { bodies, driver })
    }
}

/// Watches that share a connection.
pub struct Watches {
    /// Their events, one JSON line each.
    pub bodies: Vec<Incoming>,
    /// Drives the connection; ends with it.
    pub driver: JoinSet<()>,
}

fn text<'a>(config: &'a serde_json::Value, pointer: &str) -> anyhow::Result<&'a str> {
    config
        .pointer(pointer)
        .and_then(serde_json::Value::as_str)
        .with_context(|| format!("{pointer} in the kubeconfig"))
}

fn decode(config: &serde_json::Value, pointer: &str) -> anyhow::Result<Vec<u8>> {
    use base64::Engine as _;
    Ok(base64::engine::general_purpose::STANDARD.decode(text(config, pointer)?)?)
}

/// Kept-alive connection; requests on it follow each other.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    /// Drives the connection; ends with it.
    #[expect(dead_code, reason = "held so that the driver lives as long as the connection")]
    driver: JoinSet<()>,
}

impl Connection {
    /// Sends a request and returns its answer before the body is read.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub async fn open(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<http::Response<Incoming>> {
        self.open_as(method, path, "application/json", body).await
    }

    async fn open_as(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> anyhow::Result<http::Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, &self.host)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(Full::new(body))?;
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }

    /// Reads an object or a list in the form that the headers ask for.
    ///
    /// # Errors
    /// When the connection breaks or the server refuses.
    pub async fn read_as(&mut self, path: &str, headers: &[(HeaderName, &str)]) -> anyhow::Result<Bytes> {
        let mut request = Request::builder().uri(path).header(http::header::HOST, &self.host);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        self.sender.ready().await?;
        let response = self.sender.send_request(request.body(Full::new(Bytes::new()))?).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("GET {path}: {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(answer)
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(StatusCode, Bytes)> {
        let response = self.open(method, path, body).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    /// Like [`Self::call`], with a body of another content type.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let response = self.open_as(method, path, content_type, body.into()).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    /// Like [`Self::call`], but any response other than a success is an error that quotes the
    /// response.
    ///
    /// # Errors
    /// Fails if the connection breaks or the server refuses.
    pub async fn expect(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let (status, answer) = self.call(method.clone(), path, body).await?;
        if !status.is_success() {
            bail!("{method} {path}: {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(answer)
    }
}

/// The events of a watch, one JSON line each.
pub struct Events {
    body: Incoming,
    rest: Vec<u8>,
}

impl Events {
    /// The next event; `None` when the server ended the watch.
    ///
    /// # Errors
    /// Fails if the connection breaks or a line is no JSON.
    pub async fn next(&mut self) -> anyhow::Result<Option<serde_json::Value>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

impl Connection {
    /// Starts a watch on this connection.
    ///
    /// # Errors
    /// Fails if the server refuses it.
    pub async fn events(&mut self, path: &str) -> anyhow::Result<Events> {
        let response = self.open(Method::GET, path, Bytes::new()).await?;
        if !response.status().is_success() {
            bail!("watch {path}: {}", response.status());
        }
        Ok(Events {
            body: response.into_body(),
            rest: Vec::new(),
        })
    }
}
