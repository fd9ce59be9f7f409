//! `VolumeAttachment`: the intent to attach a volume to a node.

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeError};

use crate::kind::{Kind, Subresource, Updates};
use crate::table::{CellType, Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::dns1123_subdomain;
use crate::workload::validation::{each, immutable_shown, internal, required};

impl Kind for VolumeAttachment {
    const ANSWERS_DELETED: bool = true;
    const STATUS_WITH_METADATA: bool = false;
    const UPDATES: Updates = Updates::CONDITIONAL;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            name: "Attacher",
            cell_type: CellType::Name,
            priority: 0,
            description: "storage.v1.VolumeAttachmentSpec.attacher",
            cell: |attachment, _| attachment.spec.attacher.as_str().into(),
        },
        Column::text(
            "PV",
            "storage.v1.VolumeAttachmentSource.persistentVolumeName",
            |attachment, _| {
                let volume = attachment.spec.source.persistent_volume_name.as_deref();
                volume.unwrap_or_default().into()
            },
        ),
        Column::text("Node", "storage.v1.VolumeAttachmentSpec.nodeName", |attachment, _| {
            attachment.spec.node_name.as_str().into()
        }),
        Column::boolean(
            "Attached",
            "storage.v1.VolumeAttachmentStatus.attached",
            |attachment, _| attachment.status.as_ref().is_some_and(|status| status.attached).into(),
        ),
        age_column(),
    ];

    crate::spec_and_status!();

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let spec = &self.spec;
        required(&mut errors, "spec.attacher", Some(&spec.attacher));
        validate_source(&mut errors, &spec.source, "spec.source");
        each(
            &mut errors,
            "spec.nodeName",
            &spec.node_name,
            dns1123_subdomain(&spec.node_name),
        );
        each(
            &mut errors,
            "spec.attacher",
            &spec.attacher,
            dns1123_subdomain(&spec.attacher),
        );
        if let Some(volume) = &spec.source.persistent_volume_name {
            each(
                &mut errors,
                "spec.source.persistentVolumeName",
                volume,
                dns1123_subdomain(volume),
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        immutable_shown(&mut errors, "spec", (&self.spec, &old.spec), internal::attachment);
        errors
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let Some(status) = &self.status else { return errors };
        let metadata = status.attachment_metadata.iter().flatten();
        if metadata.map(|(key, value)| key.len() + value.len()).sum::<usize>() > METADATA {
            errors.push(Invalid::too_long("status.attachmentMetadata", METADATA));
        }
        for (error, field) in [
            (&status.attach_error, "attachError"),
            (&status.detach_error, "detachError"),
        ] {
            if let Some(error) = error {
                validate_error(&mut errors, error, &format!("status.{field}"));
            }
        }
        errors
    }
}

/// Maximum size of the attachment metadata from a driver, in bytes.
const METADATA: usize = 256 << 10;
/// Maximum length of an error message, in bytes.
const MESSAGE: usize = 1024;

fn validate_source(errors: &mut Vec<Invalid>, source: &VolumeAttachmentSource, path: &str) {
    let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (&source.inline_volume_spec, &source.persistent_volume_name) {
        (None, None) => errors.push(Invalid::required(path, detail)),
        (Some(_), Some(_)) => errors.push(Invalid::forbidden(path, detail)),
        (None, Some(name)) if name.is_empty() => {
            let field = format!("{path}.persistentVolumeName");
            errors.push(Invalid::required(field, "must specify non empty persistentVolumeName"));
        }
        (None, Some(_)) | (Some(_), None) => {}
    }
}

fn validate_error(errors: &mut Vec<Invalid>, error: &VolumeError, path: &str) {
    if error.message.as_ref().is_some_and(|message| message.len() > MESSAGE) {
        // Upstream reports the other limit here.
        errors.push(Invalid::too_long(format!("{path}.message"), METADATA));
    }
    if let Some(code) = error.error_code.filter(|code| *code < 0) {
        let detail = "must be between 0 and 2147483647, inclusive";
        errors.push(Invalid::value(format!("{path}.errorCode"), code, detail));
    }
}
