//! `VolumeAttachment`: a volume that is to be attached to a node.

use k8s_openapi::api::storage::v1::VolumeAttachment;

use crate::kind::{Column, Kind, Subresource, Updates};
use crate::table::age_column;

impl Kind for VolumeAttachment {
    const ANSWERS_DELETED: bool = true;
    const UPDATES: Updates = Updates::CONDITIONAL;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Attacher", "Who attaches it.", |attachment, _| {
            attachment.spec.attacher.as_str().into()
        }),
        Column::text("PV", "The volume.", |attachment, _| {
            let volume = attachment.spec.source.persistent_volume_name.as_deref();
            volume.unwrap_or_default().into()
        }),
        Column::text("Node", "The node.", |attachment, _| {
            attachment.spec.node_name.as_str().into()
        }),
        Column::boolean("Attached", "Whether it is attached.", |attachment, _| {
            attachment.status.as_ref().is_some_and(|status| status.attached).into()
        }),
        age_column(),
    ];

    crate::spec_and_status!();
}
