//! Connections, and bodies in the encodings that clients accept.

pub mod body;
pub(crate) mod compress;
pub(crate) mod connection;
pub(crate) mod dialer;
pub mod negotiation;
pub mod respond;
pub(crate) mod shape;
pub mod tls;
pub(crate) mod tunnel;
