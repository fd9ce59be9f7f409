//! The key that signs tokens: ES256, with JSON Web Signatures in their compact form.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::KeyPair;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What stands before the point in the DER form of a public key on P-256.
const PUBLIC_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const ALGORITHM: &str = "ES256";
/// Bytes of the longest token that is looked at.
const LONGEST: usize = 16 << 10;

/// Why there is no key, or no signature.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is no private key.
    #[error("read the key that signs tokens")]
    Unreadable(#[source] rcgen::Error),
    /// It is one on another curve.
    #[error("the key that signs tokens is none on the curve P-256: {0}")]
    Unfit(ring::error::KeyRejected),
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
        let mut public = PUBLIC_PREFIX.to_vec();
        public.extend_from_slice(pair.public_key().as_ref());
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(&public));
        Ok(Self { pair, random, id })
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
        if header.alg != ALGORITHM || !(header.kid.is_empty() || header.kid == self.id) {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref())
            .verify(message.as_bytes(), &signature)
            .ok()?;
        URL_SAFE_NO_PAD.decode(claims).ok()
    }

    /// The public key for others, as a set of JSON Web Keys.
    pub(crate) fn published(&self) -> Value {
        // An uncompressed point: a mark and two numbers of 32 bytes.
        let point = self.pair.public_key().as_ref();
        let (x, y) = point
            .get(1..)
            .and_then(|point| point.split_at_checked(32))
            .unwrap_or_default();
        json!({"keys": [{
            "use": "sig",
            "kty": "EC",
            "kid": self.id,
            "crv": "P-256",
            "alg": ALGORITHM,
            "x": URL_SAFE_NO_PAD.encode(x),
            "y": URL_SAFE_NO_PAD.encode(y),
        }]})
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
