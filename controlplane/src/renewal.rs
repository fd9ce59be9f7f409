//! The control plane's certificates, which are renewed while it runs, long before they end. Connections go on.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use server::FrontProxy;
use server::node_proxy::NodeProxy;
use server::pki::{self, Identity, Pki, PkiError, Profile};
use server::tls::{TlsError, Transport};
use tracing::error;

use crate::clock;
use crate::config::{self, Config};

/// The longest time between two looks at the certificates.
const LOOK: Duration = Duration::from_hours(12);
/// Looks in the life of a certificate: several of them fall into its last part, in which it is renewed.
const LOOKS: u32 = 48;

/// Failure to issue or renew a certificate.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The certificate cannot be made, read or written.
    #[error("make a certificate")]
    Make(#[from] PkiError),
    /// The certificate cannot be used.
    #[error("use a certificate")]
    Use(#[from] TlsError),
}

/// Authority, and the certificates in use.
pub struct Certificates {
    authority: Arc<Pki>,
    transport: Transport,
    nodes: Arc<NodeProxy>,
    front_authority: Pki,
    front_proxy: Arc<FrontProxy>,
    serving: Profile,
}

impl Certificates {
    /// Opens the authority; creates missing files.
    ///
    /// # Errors
    /// When a certificate cannot be made or used.
    pub fn open(config: &Config, now: Timestamp) -> Result<Self, RenewalError> {
        let authority = Pki::open(&config.pki(), now)?.with_lifetime(config.certificate_lifetime());
        let profile = config.serving_profile();
        let serving = serving(config, &authority, &profile, now)?;
        let client = authority.keep(pki::KUBELET_CLIENT, &client_profile(), now)?;
        let front_authority = Pki::open_front_proxy(&config.pki(), now)?.with_lifetime(config.certificate_lifetime());
        let front = front_authority.keep("client", &front_profile(), now)?;
        Ok(Self {
            front_proxy: Arc::new(FrontProxy::new(&front_authority, &front)?),
            front_authority,
            transport: Transport::trusting(&authority, &serving, &client_authorities(config)?)?,
            nodes: Arc::new(NodeProxy::new(&authority, &client, config.listen.ip().is_loopback())?),
            authority: Arc::new(authority),
            serving: profile,
        })
    }

    /// Signs all certificates.
    pub fn authority(&self) -> &Arc<Pki> {
        &self.authority
    }

    /// Transport that clients connect to.
    pub fn transport(&self) -> Transport {
        self.transport.clone()
    }

    /// Client for the nodes' agents.
    pub fn nodes(&self) -> Arc<NodeProxy> {
        Arc::clone(&self.nodes)
    }

    /// Client certificate for aggregated API servers.
    pub fn front_proxy(&self) -> Arc<FrontProxy> {
        Arc::clone(&self.front_proxy)
    }

    /// Renews certificates that are about to expire, and rewrites an outdated administrator's
    /// kubeconfig.
    ///
    /// # Errors
    /// When a certificate cannot be made or used; what is in use stays.
    pub fn renew(&self, config: &Config, address: SocketAddr, now: Timestamp) -> Result<(), RenewalError> {
        let serving = serving(config, &self.authority, &self.serving, now)?;
        self.transport.renew(&serving)?;
        let client = self.authority.keep(pki::KUBELET_CLIENT, &client_profile(), now)?;
        self.nodes.renew(&self.authority, &client)?;
        let front = self.front_authority.keep("client", &front_profile(), now)?;
        self.front_proxy.renew(&front)?;
        let kubeconfig = config.admin_kubeconfig();
        self.authority
            .admin_kubeconfig(&kubeconfig, &config::url(address), now)?;
        Ok(())
    }

    /// Renews the certificates periodically, forever.
    pub async fn run(&self, config: &Config, address: SocketAddr) -> Infallible {
        let pause = (config.certificate_lifetime() / LOOKS).min(LOOK);
        loop {
            tokio::time::sleep(pause).await;
            if let Err(failure) = self.renew(config, address, clock::now()) {
                error!(error = &failure as &dyn std::error::Error, "renew certificates");
            }
        }
    }
}

/// Serving certificate: that of the configured files, or one of our own.
fn serving(config: &Config, authority: &Pki, profile: &Profile, now: Timestamp) -> Result<Identity, PkiError> {
    let alone = config.api_server.as_ref();
    if let Some((certificate, key)) = alone.and_then(|alone| alone.serving.as_ref()) {
        return Ok(Identity {
            certificate: pki::read(certificate)?,
            key: pki::read(key)?,
        });
    }
    let kept = authority.keep("apiserver", profile, now)?;
    if let Some(directory) = alone.and_then(|alone| alone.certificates.as_ref()) {
        pki::write_private(&directory.join("apiserver.key"), &kept.key)?;
        let chain = format!("{}{}", kept.certificate, authority.authority());
        pki::write_private(&directory.join("apiserver.crt"), &chain)?;
    }
    Ok(kept)
}

/// The authorities of clients' certificates besides our own.
fn client_authorities(config: &Config) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let alone = config.api_server.as_ref();
    match alone.and_then(|alone| alone.client_authorities.as_ref()) {
        Some(pem) => pki::certificates(pem),
        None => Ok(Vec::new()),
    }
}

fn front_profile() -> Profile {
    Profile::client(pki::FRONT_PROXY, &[])
}

fn client_profile() -> Profile {
    Profile::client(pki::KUBELET_CLIENT, &["system:masters"])
}
