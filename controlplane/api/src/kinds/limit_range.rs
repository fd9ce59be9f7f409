//! `LimitRange`: limits and defaults for the resources of objects in a namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

mod validation;

use crate::kind::{Kind, Updates};
use crate::table::{Column, created_column};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::amounts;

impl Kind for LimitRange {
    const UPDATES: Updates = Updates::CREATE;
    const SHORT_NAMES: &'static [&'static str] = &["limits"];
    const COLUMNS: &'static [Column<Self>] = &[created_column()];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.limits.iter_mut().for_each(set_item_defaults);
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::validate(self)
    }
}

/// Sets defaults of a container item: the default limit is the maximum, and the default request is
/// the default limit, then the minimum.
fn set_item_defaults(item: &mut LimitRangeItem) {
    let lists = [
        &mut item.default,
        &mut item.default_request,
        &mut item.max,
        &mut item.max_limit_request_ratio,
        &mut item.min,
    ];
    lists.into_iter().flatten().for_each(amounts);
    if item.type_ != "Container" {
        return;
    }
    let limits = item.default.get_or_insert_default();
    complete(limits, item.max.as_ref());
    let requests = item.default_request.get_or_insert_default();
    complete(requests, Some(limits));
    complete(requests, item.min.as_ref());
    for list in [&mut item.default, &mut item.default_request] {
        if list.as_ref().is_some_and(BTreeMap::is_empty) {
            *list = None;
        }
    }
}

fn complete(list: &mut BTreeMap<String, Text>, from: Option<&BTreeMap<String, Text>>) {
    for (name, amount) in from.into_iter().flatten() {
        list.entry(name.clone()).or_insert_with(|| amount.clone());
    }
}
