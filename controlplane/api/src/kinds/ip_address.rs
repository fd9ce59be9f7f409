//! `IPAddress`: an allocated Service IP and its owner. The name is the address.

use k8s_openapi::api::networking::v1::IPAddress;

use crate::kind::Kind;
use crate::table::Column;
use crate::value::invalid::Invalid;
use crate::value::names::{self, Rule};
use crate::workload::validation::{each, immutable_shown, internal, required};

impl Kind for IPAddress {
    const NAME: Rule = Rule::Address;
    const SHORT_NAMES: &'static [&'static str] = &["ip"];
    const COLUMNS: &'static [Column<Self>] = &[Column::text(
        "ParentRef",
        "networking.v1.IPAddressSpec.parentRef",
        |address, _| {
            let parent = &address.spec.parent_ref;
            let filled = |text: &&String| !text.is_empty();
            let group = parent.group.as_ref().filter(filled);
            let resource = group.map_or_else(
                || parent.resource.clone(),
                |group| format!("{}.{group}", parent.resource),
            );
            let namespace = parent.namespace.as_ref().filter(filled);
            let namespace = namespace.map_or_else(String::new, |namespace| format!("/{namespace}"));
            format!("{}{namespace}/{}", resource.to_lowercase(), parent.name).into()
        },
    )];

    fn validate(&self) -> Vec<Invalid> {
        const PATH: &str = "spec.parentRef";
        let mut errors = Vec::new();
        let parent = &self.spec.parent_ref;
        if let Some(group) = parent.group.as_deref().filter(|group| !group.is_empty()) {
            each(
                &mut errors,
                &format!("{PATH}.group"),
                group,
                names::dns1123_subdomain(group),
            );
        }
        for (field, text) in [("resource", &parent.resource), ("name", &parent.name)] {
            let field = format!("{PATH}.{field}");
            if required(&mut errors, &field, Some(text)) {
                each(&mut errors, &field, text, Rule::PathSegment.check(text, false));
            }
        }
        if let Some(namespace) = parent.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
            let messages = Rule::PathSegment.check(namespace, false);
            each(&mut errors, &format!("{PATH}.namespace"), namespace, messages);
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let pair = (&self.spec.parent_ref, &old.spec.parent_ref);
        immutable_shown(&mut errors, "spec.parentRef", pair, internal::parent);
        errors
    }
}
