//! The node: admitted pods, allocatable resources, evictions, and shutdown.
//!
//! * [`admission`]: pods that the node rejects, or preempts others for
//! * [`registration`]: what the operator says of a new Node
//! * [`reserve`]: allocatable resources
//! * [`devices`]: devices of plugins for a container
//! * [`storage`], [`eviction`]: usage of local storage, and reactions to a shortage
//! * [`collection`]: images to remove
//! * [`shutdown`]: graceful node shutdown

pub mod admission;
pub mod collection;
pub mod devices;
pub mod eviction;
pub mod registration;
pub mod reserve;
pub mod shutdown;
pub mod storage;
