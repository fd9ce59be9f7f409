//! The key that signs tokens: ES256, with JSON Web Signatures in their compact form.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::KeyPair;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// DER prefix of a P-256 public key, up to the point.
const PUBLIC_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const ALGORITHM: &str = "ES256";
/// Maximum length of a token in bytes.
const LONGEST: usize = 16 << 10;

/// Failure to load a key or to sign.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is no private key.
    #[error("read the key that signs tokens")]
    Unreadable(#[source] rcgen::Error),
    /// The key is on another curve.
    #[error("the key that signs tokens is none on the curve P-256: {0}")]
    Unfit(ring::error::KeyRejected),
    /// The text holds no public key and no certificate.
    #[error("read a public key that verifies tokens")]
    NoPublic(#[source] rustls_pki_types::pem::Error),
    /// The public key is of another kind.
    #[error("a public key that verifies tokens is none on the curve P-256")]
    NotOnCurve,
    /// A new key could not be made.
    #[error("make the key that signs tokens")]
    Make(#[source] rcgen::Error),
    /// The machine gave no random numbers.
    #[error("sign a token")]
    Sign,
}

/// Signs tokens and recognizes them again.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    /// The key's name in tokens and in the published set.
    id: String,
    /// Further public keys whose tokens are accepted: names and uncompressed points.
    further: Vec<(String, Vec<u8>)>,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SigningKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    alg: &'a str,
    #[serde(default)]
    kid: &'a str,
}

/// The name of a public key, by its uncompressed point.
fn name(point: &[u8]) -> String {
    let mut public = PUBLIC_PREFIX.to_vec();
    public.extend_from_slice(point);
    URL_SAFE_NO_PAD.encode(Sha256::digest(&public))
}

impl SigningKey {
    /// A new private key, as PEM.
    pub fn generate() -> Result<String, KeyError> {
        Ok(KeyPair::generate().map_err(KeyError::Make)?.serialize_pem())
    }

    /// The key of a PEM text.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let key = KeyPair::from_pem(pem).map_err(KeyError::Unreadable)?;
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der(), &random)
            .map_err(KeyError::Unfit)?;
        let id = name(pair.public_key().as_ref());
        Ok(Self {
            pair,
            random,
            id,
            further: Vec::new(),
        })
    }

    /// Takes the tokens of a further key, too: a PEM text with its public key or a certificate of it.
    ///
    /// # Errors
    /// When it holds no key on the curve P-256.
    pub fn trusting(mut self, pem: &str) -> Result<Self, KeyError> {
        let public = if let Ok(public) = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()) {
            public.to_vec()
        } else {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(KeyError::NoPublic)?;
            let (_, certificate) =
                X509Certificate::from_der(&certificate).map_err(|_unreadable| KeyError::NotOnCurve)?;
            certificate.public_key().raw.to_vec()
        };
        let point = public.strip_prefix(&PUBLIC_PREFIX).ok_or(KeyError::NotOnCurve)?;
        let id = name(point);
        if id != self.id {
            self.further.push((id, point.to_vec()));
        }
        Ok(self)
    }

    /// Names and points of all keys whose tokens are accepted.
    fn keys(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let own = (self.id.as_str(), self.pair.public_key().as_ref());
        let further = self.further.iter().map(|(id, point)| (id.as_str(), point.as_slice()));
        std::iter::once(own).chain(further)
    }

    /// A token with these claims.
    pub(crate) fn sign(&self, claims: &impl Serialize) -> Result<String, KeyError> {
        let header = Header {
            alg: ALGORITHM,
            kid: &self.id,
        };
        let encode = |part: Vec<u8>| URL_SAFE_NO_PAD.encode(part);
        let json = |part: Result<Vec<u8>, serde_json::Error>| part.map_err(|_unencodable| KeyError::Sign);
        let mut token = encode(json(serde_json::to_vec(&header))?);
        token.push('.');
        token.push_str(&encode(json(serde_json::to_vec(claims))?));
        let signature = self
            .pair
            .sign(&self.random, token.as_bytes())
            .map_err(|_unspecified| KeyError::Sign)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature.as_ref(), &mut token);
        Ok(token)
    }

    /// The claims of a token that this key has signed, as JSON.
    pub(crate) fn verify(&self, token: &str) -> Option<Vec<u8>> {
        if token.len() > LONGEST {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let header = URL_SAFE_NO_PAD.decode(header).ok()?;
        let header: Header<'_> = serde_json::from_slice(&header).ok()?;
        if header.alg != ALGORITHM {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let mut keys = self.keys().filter(|(id, _)| header.kid.is_empty() || header.kid == *id);
        keys.find(|(_, point)| {
            let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
            key.verify(message.as_bytes(), &signature).is_ok()
        })?;
        URL_SAFE_NO_PAD.decode(claims).ok()
    }

    /// Public key as a JSON Web Key Set.
    pub(crate) fn published(&self) -> Value {
        let keys = self.keys().map(|(id, point)| {
            // An uncompressed point: a mark and two numbers of 32 bytes.
            let numbers = point.get(1..).and_then(|point| point.split_at_checked(32));
            let (x, y) = numbers.unwrap_or_default();
            json!({
                "use": "sig",
                "kty": "EC",
                "kid": id,
                "crv": "P-256",
                "alg": ALGORITHM,
                "x": URL_SAFE_NO_PAD.encode(x),
                "y": URL_SAFE_NO_PAD.encode(y),
            })
        });
        json!({ "keys": keys.collect::<Vec<Value>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::from_pem(&SigningKey::generate().unwrap()).unwrap()
    }

    #[test]
    fn what_was_signed_is_recognized_and_nothing_else() {
        let (key, other) = (key(), key());
        let token = key.sign(&json!({"sub": "somebody"})).unwrap();
        assert_eq!(key.verify(&token).unwrap(), br#"{"sub":"somebody"}"#);
        assert!(other.verify(&token).is_none(), "another key");
        let [header, claims, signature] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
        let forged = URL_SAFE_NO_PAD.encode(r#"{"sub":"somebody else"}"#);
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let hmac = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
        for bad in [
            format!("{header}.{forged}.{signature}"),
            format!("{none}.{claims}."),
            format!("{none}.{claims}.{signature}"),
            format!("{hmac}.{claims}.{signature}"),
            format!("{header}.{claims}"),
            format!("{header}.{claims}.{signature}A"),
            format!("{header}.{claims}.{}", "A".repeat(LONGEST)),
            String::new(),
            "..".to_owned(),
        ] {
            assert!(key.verify(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_key_keeps_its_name() {
        let pem = SigningKey::generate().unwrap();
        let (first, again) = (SigningKey::from_pem(&pem).unwrap(), SigningKey::from_pem(&pem).unwrap());
        assert_eq!(first.published(), again.published());
        assert!(SigningKey::from_pem("nonsense").is_err());
    }
}
