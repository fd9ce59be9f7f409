//! Signed tokens of issuers, and the public keys that verify them (RFC 7515, 7517 and 7518).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, EcdsaVerificationAlgorithm, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

/// Maximum length of a token in bytes.
const LONGEST: usize = 64 << 10;

/// Algorithms of signatures (`allowedSigningAlgs` of upstream's `oidc.go`, in its order).
pub(super) const ALGORITHMS: [&str; 9] = [
    "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
];

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    alg: String,
    #[serde(default)]
    kid: String,
    /// Extensions that must be understood; none is.
    #[serde(default)]
    crit: Vec<Value>,
}

/// A token that was parsed, but not verified.
pub(super) struct Token<'a> {
    header: Header,
    message: &'a [u8],
    signature: Vec<u8>,
    /// The claims as JSON.
    pub(super) payload: Vec<u8>,
    /// The issuer.
    pub(super) issuer: String,
}

#[derive(Deserialize)]
struct Issued {
    #[serde(default)]
    iss: String,
}

impl<'a> Token<'a> {
    /// Parses a token in its compact form; `None` for other texts.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let (message, signature) = text.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let payload = decode(claims)?;
        let Issued { iss } = serde_json::from_slice(&payload).ok()?;
        Some(Self {
            header: serde_json::from_slice(&decode(header)?).ok()?,
            message: message.as_bytes(),
            signature: decode(signature)?,
            payload,
            // Google's issuer has two names (`untrustedIssuer`).
            issuer: if iss == "accounts.google.com" {
                format!("https://{iss}")
            } else {
                iss
            },
        })
    }

    /// Name of the algorithm.
    pub(super) fn algorithm(&self) -> &str {
        &self.header.alg
    }

    /// True if one of the keys has signed the token: the one that its header names, if it does.
    pub(super) fn is_signed_by(&self, keys: &[Key]) -> bool {
        let kid = &self.header.kid;
        self.header.crit.is_empty()
            && keys
                .iter()
                .any(|key| (kid.is_empty() || *kid == key.id) && self.is_by(key))
    }

    fn is_by(&self, key: &Key) -> bool {
        let (message, signature) = (self.message, self.signature.as_slice());
        match (&key.form, self.algorithm()) {
            (Form::P521(point), "ES512") => common_tls::verifies_es512(point, message, signature),
            (Form::Curve(name, algorithm, point), alg) => {
                let key = UnparsedPublicKey::new(*algorithm, point);
                *name == alg && key.verify(message, signature).is_ok()
            }
            (Form::Rsa(key), alg) => rsa(alg).is_some_and(|rsa| key.verify(rsa, message, signature).is_ok()),
            (Form::P521(_), _) => false,
        }
    }
}

fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// A public key of an issuer.
pub(super) struct Key {
    id: String,
    form: Form,
}

enum Form {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// With the name of the algorithm, and an uncompressed point.
    Curve(&'static str, &'static EcdsaVerificationAlgorithm, Vec<u8>),
    P521(Vec<u8>),
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Published {
    kid: String,
    kty: String,
    crv: String,
    n: String,
    e: String,
    x: String,
    y: String,
}

/// Keys of a JSON Web Key Set that can verify tokens; others are left out.
pub(super) fn published(set: &[u8]) -> Result<Vec<Key>, serde_json::Error> {
    let set: Set = serde_json::from_slice(set)?;
    let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
    Ok(keys.filter_map(key).collect())
}

fn key(key: Published) -> Option<Key> {
    let number = |text: &str| {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes.get(zeros..).map(<[u8]>::to_vec)
    };
    let point = |length: usize| {
        let mut point = vec![4];
        for part in [&key.x, &key.y] {
            let part = number(part)?;
            point.resize(point.len() + length.checked_sub(part.len())?, 0);
            point.extend(part);
        }
        Some(point)
    };
    let form = match (key.kty.as_str(), key.crv.as_str()) {
        ("RSA", _) => Form::Rsa(RsaPublicKeyComponents {
            n: number(&key.n)?,
            e: number(&key.e)?,
        }),
        ("EC", "P-256") => Form::Curve("ES256", &signature::ECDSA_P256_SHA256_FIXED, point(32)?),
        ("EC", "P-384") => Form::Curve("ES384", &signature::ECDSA_P384_SHA384_FIXED, point(48)?),
        ("EC", "P-521") => Form::P521(point(66)?),
        _ => return None,
    };
    Some(Key { id: key.kid, form })
}
