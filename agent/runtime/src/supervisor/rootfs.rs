//! Root file system of a container: its mounts, and what has to exist for them.
//!
//! * [`namespace`]: the mount namespace in which containers are created
//! * [`mounts`], [`delayed`]: mounts, and those that are attached after the container's creation
//! * [`mount_points`], [`symlinks`], [`cwd`]: paths inside
//! * [`declared`], [`devices`], [`shm`]: volumes of the image, `/dev` and `/dev/shm`
//! * [`id_mapped`]: ID-mapped mounts

pub(super) mod cwd;
pub(crate) mod declared;
pub(super) mod delayed;
pub(super) mod devices;
pub(super) mod id_mapped;
mod mount_points;
pub(super) mod mounts;
pub(super) mod namespace;
pub(crate) mod shm;
mod symlinks;
