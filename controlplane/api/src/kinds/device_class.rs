//! `DeviceClass`: a sort of devices that can be claimed.

use k8s_openapi::api::resource::v1::DeviceClass;

use crate::kind::Kind;

impl Kind for DeviceClass {
    const ANSWERS_DELETED: bool = true;
    const GENERATION: bool = true;

    crate::spec_alone!();
}
