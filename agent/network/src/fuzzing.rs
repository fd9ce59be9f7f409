//! Puts arbitrary bytes where plugins' answers come in, for tests that look for input that is not survived.

/// Reads the bytes as a plugin's result, as its failure, and as a network's configuration.
pub fn plugin(bytes: &[u8]) {
    crate::cni::fuzzing::read(bytes);
    drop(std::str::from_utf8(bytes).unwrap_or_default().parse::<crate::Cidr>());
}
