//! Rules of the packet filter, and the conntrack entries of flows that they translate.

pub(crate) mod flows;
pub(super) mod forwarding;
pub(super) mod guard;
pub(crate) mod masquerade;
pub(super) mod ports;
