//! `EndpointSlice`: addresses behind a Service.

use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::kind::Kind;

impl Kind for EndpointSlice {
    const GENERATION: bool = true;
}
