//! Rules of the packet filter.

pub(super) mod forwarding;
pub(super) mod guard;
pub(super) mod masquerade;
pub(super) mod ports;
