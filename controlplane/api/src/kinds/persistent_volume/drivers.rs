//! Validation of volumes of the in-tree drivers from before CSI.

use k8s_openapi::api::core::v1::{FCVolumeSource, ISCSIPersistentVolumeSource, PersistentVolumeSpec};

use crate::value::invalid::Invalid;
use crate::workload::validation::required;

/// Validates the volume sources of `spec`.
pub(super) fn validate(errors: &mut Vec<Invalid>, spec: &PersistentVolumeSpec) {
    if let Some(disk) = &spec.gce_persistent_disk {
        required(errors, "spec.gcePersistentDisk.pdName", Some(&disk.pd_name));
        partition(errors, "spec.gcePersistentDisk.partition", disk.partition);
    }
    if let Some(disk) = &spec.aws_elastic_block_store {
        required(errors, "spec.awsElasticBlockStore.volumeID", Some(&disk.volume_id));
        partition(errors, "spec.awsElasticBlockStore.partition", disk.partition);
    }
    if let Some(rbd) = &spec.rbd {
        if rbd.monitors.is_empty() {
            errors.push(Invalid::required("spec.rbd.monitors", ""));
        }
        required(errors, "spec.rbd.image", Some(&rbd.image));
    }
    if spec.cephfs.as_ref().is_some_and(|ceph| ceph.monitors.is_empty()) {
        errors.push(Invalid::required("spec.cephfs.monitors", ""));
    }
    if let Some(iscsi) = &spec.iscsi {
        self::iscsi(errors, iscsi);
    }
    if let Some(channel) = &spec.fc {
        fibre_channel(errors, channel);
    }
    if let Some(file) = &spec.azure_file {
        required(errors, "spec.azureFile.secretName", Some(&file.secret_name));
        required(errors, "spec.azureFile.shareName", Some(&file.share_name));
        if let Some(namespace) = &file.secret_namespace {
            required(errors, "spec.azureFile.secretNamespace", Some(namespace));
        }
    }
}

fn partition(errors: &mut Vec<Invalid>, field: &str, number: Option<i32>) {
    if let Some(number) = number.filter(|number| !(0..=255).contains(number)) {
        errors.push(Invalid::value(field, number, "must be between 1 and 255, inclusive"));
    }
}

fn unit(errors: &mut Vec<Invalid>, field: &str, number: i32) {
    if !(0..=255).contains(&number) {
        errors.push(Invalid::value(field, number, "must be between 0 and 255, inclusive"));
    }
}

fn iscsi(errors: &mut Vec<Invalid>, iscsi: &ISCSIPersistentVolumeSource) {
    const NAME: &str = "spec.iscsi.iqn";
    required(errors, "spec.iscsi.targetPortal", Some(&iscsi.target_portal));
    if required(errors, NAME, Some(&iscsi.iqn)) && !is_name(&iscsi.iqn) {
        errors.push(Invalid::value(NAME, &iscsi.iqn, "must be valid format"));
    }
    unit(errors, "spec.iscsi.lun", iscsi.lun);
    let checks = iscsi.chap_auth_discovery == Some(true) || iscsi.chap_auth_session == Some(true);
    if checks && iscsi.secret_ref.is_none() {
        errors.push(Invalid::required("spec.iscsi.secretRef", ""));
    }
}

/// True if a text is an iSCSI name: `iqn.2015-02.example.com:storage`, or a number after `eui.` or
/// `naa.`.
fn is_name(text: &str) -> bool {
    let is_number =
        |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if let Some(rest) = text.strip_prefix("eui.") {
        return is_number(rest, 16);
    }
    if let Some(rest) = text.strip_prefix("naa.") {
        return is_number(rest, 32);
    }
    let Some((date, rest)) = text.strip_prefix("iqn.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let Some(((year, month), (owner, own))) = date.split_once('-').zip(rest.split_once(':')) else {
        return false;
    };
    let digits = |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_owner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let is_own = |char: char| !",;*&$|".contains(char) && !char.is_ascii_whitespace();
    digits(year, 4)
        && digits(month, 2)
        && !owner.is_empty()
        && owner.bytes().all(is_owner)
        && !own.is_empty()
        && own.chars().all(is_own)
}

fn fibre_channel(errors: &mut Vec<Invalid>, channel: &FCVolumeSource) {
    const NAMES: &str = "spec.fc.targetWWNs";
    let names = channel.target_wwns.as_deref().unwrap_or_default();
    let others = channel.wwids.as_deref().unwrap_or_default();
    if names.is_empty() && others.is_empty() {
        let detail = "must specify either targetWWNs or wwids, but not both";
        errors.push(Invalid::required(NAMES, detail));
    }
    if !names.is_empty() && !others.is_empty() {
        let shown = serde_json::to_string(names).unwrap_or_default();
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(Invalid::rendered(NAMES, shown, detail));
    }
    match channel.lun {
        _ if names.is_empty() => {}
        None => errors.push(Invalid::required(
            "spec.fc.lun",
            "lun is required if targetWWNs is specified",
        )),
        Some(number) => unit(errors, "spec.fc.lun", number),
    }
}
