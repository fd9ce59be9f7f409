//! Root file system of a container: its mounts, and what has to exist for them.
//!
//! * [`namespace`]: the mount namespace in which containers are created
//! * [`mounts`], [`late`]: mounts, and those that are attached after the container's creation
//! * [`mount_points`], [`links`], [`cwd`]: paths inside
//! * [`declared`], [`devices`], [`shm`]: volumes of the image, `/dev` and `/dev/shm`
//! * [`id_mapped`]: ID-mapped mounts

pub(super) mod cwd;
pub(crate) mod declared;
pub(super) mod devices;
pub(super) mod id_mapped;
pub(super) mod late;
mod links;
mod mount_points;
pub(super) mod mounts;
pub(super) mod namespace;
pub(crate) mod shm;
