//! Sandbox of a pod: network, supervisor, volumes and files that all of its containers share.
//!
//! 1. [`demands`] checks what only the node can know, [`claims`] reads the claims' volumes
//! 2. [`earlier`] removes previous sandboxes
//! 3. [`prepare`] creates network, supervisor and volumes, or says why not ([`failure`]); [`etc`] the
//!    files in `/etc`
//! 4. [`update`] updates volumes while the pod runs
//! 5. [`removal`] removes everything

mod claims;
mod demands;
mod earlier;
pub(super) mod etc;
pub(super) mod failure;
pub(super) mod prepare;
pub(super) mod removal;
mod update;
