//! Sets and maps of a table.

use crate::nft::set::{CONCATENATED, Data, EVALUATED, Field, INTERVAL, MAP, Set, TIMEOUT};

/// Maximum number of clients with session affinity; further ones are balanced randomly.
const CLIENTS: u32 = 65_536;

/// Map filled by packets (session affinity); it persists while the agent restarts.
pub(super) const AFFINITY: &str = "affinity";

/// Sets and maps of a table.
pub(super) const SETS: &[Set<'static>] = {
    use Field::{Address, Mark, Port, Protocol};
    const MARKED: Data = Data::Fields(&[Mark]);
    const ENDPOINT: Data = Data::Fields(&[Address, Port]);
    &[
        Set::new("front", &[Address, Protocol, Port], MARKED),
        Set::new("outer", &[Address, Protocol, Port], MARKED),
        Set::new("outer_local", &[Address, Protocol, Port], MARKED),
        Set::new("node_ports", &[Protocol, Port], MARKED),
        Set::new("node_ports_local", &[Protocol, Port], MARKED),
        Set::new("cluster_ips", &[Address], Data::None),
        // The second part is a number; nft has no other type for a number in host byte order.
        Set::new("slots", &[Mark, Mark], ENDPOINT),
        Set::new("hairpins", &[Mark, Address, Address], Data::None),
        Set::new("members", &[Mark, Address, Port], Data::None),
        Set {
            flags: INTERVAL | CONCATENATED,
            ..Set::new("sources", &[Mark, Address], Data::None)
        },
        Set::new("classes", &[Mark], Data::Verdict),
        Set::new("timeouts", &[Mark], Data::Verdict),
        Set {
            flags: MAP | TIMEOUT | EVALUATED,
            size: CLIENTS,
            ..Set::new(AFFINITY, &[Mark, Address], ENDPOINT)
        },
    ]
};
