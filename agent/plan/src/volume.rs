//! Volumes: claims, service account tokens, and huge pages.
//!
//! * [`claims`]: volumes behind `PersistentVolumeClaims`
//! * [`tokens`]: service account tokens of projected volumes
//! * [`hugepages`]: page sizes of `emptyDir` volumes

pub mod claims;
pub mod hugepages;
pub mod tokens;
