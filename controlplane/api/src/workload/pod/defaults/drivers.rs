//! Defaults of volumes of third-party in-tree drivers.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, ISCSIPersistentVolumeSource, ISCSIVolumeSource, PersistentVolumeSpec,
    RBDPersistentVolumeSource, RBDVolumeSource, ScaleIOPersistentVolumeSource, ScaleIOVolumeSource, Volume,
};

use super::text;

pub(super) fn of_pod(volume: &mut Volume) {
    if let Some(ISCSIVolumeSource { iscsi_interface, .. }) = &mut volume.iscsi {
        text(iscsi_interface, "default");
    }
    if let Some(RBDVolumeSource {
        pool, user, keyring, ..
    }) = &mut volume.rbd
    {
        rbd(pool, user, keyring);
    }
    if let Some(ScaleIOVolumeSource {
        storage_mode, fs_type, ..
    }) = &mut volume.scale_io
    {
        scale_io(storage_mode, fs_type);
    }
    volume.azure_disk.iter_mut().for_each(azure_disk);
}

pub(crate) fn of_volume(spec: &mut PersistentVolumeSpec) {
    if let Some(ISCSIPersistentVolumeSource { iscsi_interface, .. }) = &mut spec.iscsi {
        text(iscsi_interface, "default");
    }
    if let Some(RBDPersistentVolumeSource {
        pool, user, keyring, ..
    }) = &mut spec.rbd
    {
        rbd(pool, user, keyring);
    }
    if let Some(ScaleIOPersistentVolumeSource {
        storage_mode, fs_type, ..
    }) = &mut spec.scale_io
    {
        scale_io(storage_mode, fs_type);
    }
    spec.azure_disk.iter_mut().for_each(azure_disk);
}

fn rbd(pool: &mut Option<String>, user: &mut Option<String>, keyring: &mut Option<String>) {
    text(pool, "rbd");
    text(user, "admin");
    text(keyring, "/etc/ceph/keyring");
}

fn scale_io(storage_mode: &mut Option<String>, fs_type: &mut Option<String>) {
    text(storage_mode, "ThinProvisioned");
    text(fs_type, "xfs");
}

fn azure_disk(disk: &mut AzureDiskVolumeSource) {
    disk.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
    disk.kind.get_or_insert_with(|| "Shared".to_owned());
    disk.fs_type.get_or_insert_with(|| "ext4".to_owned());
    disk.read_only.get_or_insert(false);
}
