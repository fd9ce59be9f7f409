//! CSI drivers of the node, and the volumes that they mount for pods. The client of drivers is the
//! crate `csi`.
//!
//! 1. [`plugins`]: a driver's socket appears, and it registers; [`nodes`] tells the API of it
//! 2. [`mount`]: a volume is attached, staged on the node and published for a pod; [`spec`] is what the API says of it
//! 3. [`expand`]: it becomes larger while pods use it
//! 4. [`teardown`]: it is unpublished when the pod ends, and unstaged when no pod uses it
//!
//! What must outlive the agent is in [`files`], as a kubelet keeps it; [`registered`] is the rest.

pub mod directory;
pub(crate) mod expand;
pub(crate) mod files;
pub(crate) mod mount;
pub(crate) mod nodes;
pub(crate) mod plugins;
pub(crate) mod registered;
pub(crate) mod spec;
pub(crate) mod teardown;
