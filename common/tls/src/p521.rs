//! P-521 for rustls: key exchange, and signatures of certificates and handshakes.

use p521::PublicKey;
use p521::ecdh::EphemeralSecret;
use p521::ecdsa::signature::hazmat::PrehashVerifier as _;
use p521::ecdsa::{Signature, VerifyingKey};
use p521::elliptic_curve::rand_core::OsRng;
use p521::elliptic_curve::sec1::ToEncodedPoint as _;
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved};
use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// Length of a field element in bytes.
const NUMBER: usize = 66;
/// First byte of an uncompressed point, the only format in TLS.
const UNCOMPRESSED: u8 = 4;

/// Key exchange group.
#[derive(Debug)]
pub(crate) struct Secp521r1;

struct Exchange {
    secret: EphemeralSecret,
    public: Vec<u8>,
}

impl SupportedKxGroup for Secp521r1 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let secret = EphemeralSecret::random(&mut OsRng);
        let public = secret.public_key().to_encoded_point(false).as_bytes().to_vec();
        Ok(Box::new(Exchange { secret, public }))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let point = Some(peer).filter(|peer| peer.first() == Some(&UNCOMPRESSED));
        // Also checks that the point is on the curve.
        let key = point.and_then(|point| PublicKey::from_sec1_bytes(point).ok());
        let key = key.ok_or(PeerMisbehaved::InvalidKeyShare)?;
        let shared = self.secret.diffie_hellman(&key);
        Ok(SharedSecret::from(shared.raw_secret_bytes().as_slice()))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

/// Signature algorithms of P-521 keys, by hash.
#[derive(Debug)]
pub(crate) struct Ecdsa {
    identifier: AlgorithmIdentifier,
    hash: fn(&[u8]) -> Vec<u8>,
}

pub(crate) const ECDSA_SHA256: &Ecdsa = &Ecdsa {
    identifier: alg_id::ECDSA_SHA256,
    hash: |message| Sha256::digest(message).to_vec(),
};
pub(crate) const ECDSA_SHA384: &Ecdsa = &Ecdsa {
    identifier: alg_id::ECDSA_SHA384,
    hash: |message| Sha384::digest(message).to_vec(),
};
pub(crate) const ECDSA_SHA512: &Ecdsa = &Ecdsa {
    identifier: alg_id::ECDSA_SHA512,
    hash: |message| Sha512::digest(message).to_vec(),
};

/// A hash, padded to the length of a field element: the library refuses hashes of less than half of
/// it.
fn padded(hash: Vec<u8>) -> Vec<u8> {
    let mut number = vec![0; NUMBER.saturating_sub(hash.len())];
    number.extend(hash);
    number
}

/// True if a signature of ES512 (RFC 7518: two numbers, one after the other) is that of the key
/// with this uncompressed point.
pub fn verifies_es512(point: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let key = VerifyingKey::from_sec1_bytes(point);
    let (Ok(key), Ok(signature)) = (key, Signature::from_slice(signature)) else {
        return false;
    };
    let hash = padded(Sha512::digest(message).to_vec());
    key.verify_prehash(&hash, &signature).is_ok()
}

impl SignatureVerificationAlgorithm for Ecdsa {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(key).map_err(|_invalid| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_invalid| InvalidSignature)?;
        let verified = key.verify_prehash(&padded((self.hash)(message)), &signature);
        verified.map_err(|_invalid| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.identifier
    }
}

#[cfg(test)]
mod tests {
    use p521::ecdsa::SigningKey;
    use p521::ecdsa::signature::hazmat::RandomizedPrehashSigner as _;

    use super::*;

    #[test]
    fn signatures_of_tokens_are_verified() {
        let key = SigningKey::random(&mut OsRng);
        let point = VerifyingKey::from(&key).to_encoded_point(false);
        let hash = padded(Sha512::digest(b"message").to_vec());
        let signature: Signature = key.sign_prehash_with_rng(&mut OsRng, &hash).unwrap();
        let signature = signature.to_bytes();
        assert!(verifies_es512(point.as_bytes(), b"message", &signature));
        assert!(!verifies_es512(point.as_bytes(), b"another", &signature));
        assert!(!verifies_es512(point.as_bytes(), b"message", &signature[1..]));
        assert!(!verifies_es512(&point.as_bytes()[1..], b"message", &signature));
    }
}
