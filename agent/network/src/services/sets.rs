//! The sets and maps of a table.

use crate::nft::set::{CONCATENATED, Data, EVALUATED, Field, INTERVAL, MAP, Set, TIMEOUT};

/// Clients that are remembered at once; the next one is led by chance.
const CLIENTS: u32 = 65_536;

/// The map that packets fill; it outlives the agent.
pub(super) const AFFINITY: &str = "affinity";

/// The sets and maps of a table.
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
        // The second part is a number; nft has no name for one of the kernel's own order but this.
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
