//! The control plane's certificates, which are renewed while it runs, long before they end. Connections go on.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use server::FrontProxy;
use server::authn::pki::{self, Identity, Pki, PkiError, Profile};
use server::node::client::NodeProxy;
use server::transport::tls::{TlsError, Transport};
use tokio::time::Instant;
use tracing::error;

use crate::config::{self, Config};

/// The longest time between two looks at the certificates.
const LOOK: Duration = Duration::from_hours(12);
/// Looks in the life of a certificate: several of them fall into its last part, in which it is renewed.
const LOOKS: u32 = 48;

/// Interval of comparisons of the wall clock with the time that has passed, and the difference in
/// seconds from which on the clock was set.
const TICK: Duration = Duration::from_secs(30);
const SET: i64 = 60;

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
    /// Opens the authority; creates missing files. Its own certificate is renewed here alone, with
    /// years left: before it ends, the process has been replaced.
    ///
    /// # Errors
    /// When a certificate cannot be made or used.
    pub fn open(config: &Config, now: Timestamp) -> Result<Self, RenewalError> {
        let of =
            |authority: Pki| Ok::<_, PkiError>(authority.renewed(now)?.with_lifetime(config.certificate_lifetime()));
        let authority = of(Pki::open(&config.pki(), now)?)?;
        let profile = config.serving_profile();
        let serving = serving(config, &authority, &profile, now)?;
        let client = authority.keep(pki::KUBELET_CLIENT, &client_profile(), now)?;
        let front_authority = of(Pki::open_front_proxy(&config.pki(), now)?)?;
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

    /// Renews the certificates forever: periodically, and when the clock was set. Those that a
    /// machine without a battery makes at its start, by a clock that is years off, are of no use then.
    pub async fn run(&self, config: &Config, address: SocketAddr, clock: impl Fn() -> Timestamp) -> Infallible {
        let pause = (config.certificate_lifetime() / LOOKS).min(LOOK);
        loop {
            let (begun, from) = (Instant::now(), clock());
            let was_set = |passed: Duration| {
                let expected = from.as_second() + i64::try_from(passed.as_secs()).unwrap_or(0);
                (clock().as_second() - expected).abs() > SET
            };
            loop {
                tokio::time::sleep(TICK.min(pause)).await;
                let passed = begun.elapsed();
                if passed >= pause || was_set(passed) {
                    break;
                }
            }
            if let Err(failure) = self.renew(config, address, clock()) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn certificates_of_a_wrong_clock_are_replaced_once_it_is_set() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (right, wrong) = (1_790_000_000, 86_400);
        let home = tempfile::tempdir().unwrap();
        let address = "127.0.0.1:6443".parse().unwrap();
        let config = Config::alone(home.path().to_owned(), address).unwrap();
        pki::private_directory(&config.directory()).unwrap();
        drop(Certificates::open(&config, at(right)).unwrap());
        let served = || std::fs::read_to_string(config.pki().join("apiserver.crt")).unwrap();
        let good = served();

        let certificates = Certificates::open(&config, at(wrong)).unwrap();
        let made = served();
        assert_ne!(made, good, "it is not valid yet by that clock");
        let clock = AtomicI64::new(wrong);
        let set = async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            clock.store(right + 3600, Ordering::Relaxed);
        };
        let running = certificates.run(&config, address, || at(clock.load(Ordering::Relaxed)));
        let minute = tokio::time::timeout(Duration::from_mins(1), async { tokio::join!(running, set) });
        assert!(minute.await.is_err(), "it runs on");
        assert_ne!(served(), made, "it is over by the right clock");
    }
}
