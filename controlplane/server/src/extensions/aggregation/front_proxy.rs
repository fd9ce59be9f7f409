//! Front proxy identity, by which aggregated API servers trust the user headers: a client
//! certificate from an authority that signs nothing else.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;

use crate::authn::pki::{Identity, Pki};
use crate::transport::tls::TlsError;

/// Client certificate, which may be renewed, and its authority.
#[derive(Debug)]
pub struct FrontProxy {
    authority: String,
    shown: RwLock<Arc<CertifiedKey>>,
}

impl FrontProxy {
    /// Shows an identity that an authority signed.
    ///
    /// # Errors
    /// When the identity cannot be used.
    pub fn new(authority: &Pki, identity: &Identity) -> Result<Self, TlsError> {
        Ok(Self {
            authority: authority.authority().to_owned(),
            shown: RwLock::new(certified(identity)?),
        })
    }

    /// Shows another one from now on.
    ///
    /// # Errors
    /// When the identity cannot be used; what was shown before stays.
    pub fn renew(&self, identity: &Identity) -> Result<(), TlsError> {
        let shown = certified(identity)?;
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = shown;
        Ok(())
    }

    /// Authority that signed the certificate, as PEM.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }
}

fn certified(identity: &Identity) -> Result<Arc<CertifiedKey>, TlsError> {
    let (chain, key) = identity.to_der().map_err(TlsError::Certificates)?;
    let certified = CertifiedKey::from_der(chain, key, &common_tls::provider()).map_err(TlsError::Setup)?;
    Ok(Arc::new(certified))
}

impl ResolvesClientCert for FrontProxy {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
