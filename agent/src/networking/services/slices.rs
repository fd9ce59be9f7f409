//! Services, and the EndpointSlices of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_plan::network::proxy::{Name, Service, Slice};

/// Services by namespace and name.
pub(crate) type Services = BTreeMap<Name, Arc<Service>>;

/// EndpointSlices by Service, those of each in the order of their names.
pub(crate) type Slices = BTreeMap<Name, Arc<[Arc<Slice>]>>;

/// Services of the slices whose names do not begin with those of their Services.
pub(super) type Strangers = BTreeMap<Name, Name>;

/// Groups EndpointSlices by Service.
pub(crate) fn by_service(mut listed: Vec<(Name, Arc<Slice>)>) -> Slices {
    listed.sort_by(|(service, own), (other, another)| (service, &own.name).cmp(&(other, &another.name)));
    let each = listed.chunk_by(|(service, _), (other, _)| service == other);
    each.filter_map(|same| {
        let (service, _) = same.first()?;
        let slices = same.iter().map(|(_, slice)| Arc::clone(slice)).collect();
        Some((service.clone(), slices))
    })
    .collect()
}

/// Replaces a slice of a Service; `true` if the new one differs.
fn put(known: &mut Slices, service: &Name, own: &str, slice: Option<Slice>) -> bool {
    let all = slices_of(known, service).iter().cloned();
    let (before, mut all): (Vec<_>, Vec<_>) = all.partition(|slice| *slice.name == *own);
    if before.first().map(|slice| &**slice) == slice.as_ref() {
        return false;
    }
    all.extend(slice.map(Arc::new));
    all.sort_by(|one, other| one.name.cmp(&other.name));
    if all.is_empty() {
        known.remove(service);
    } else {
        known.insert(service.clone(), all.into());
    }
    true
}

/// Replaces a slice, in whatever Service it was; returns the Services that change.
pub(super) fn exchange(
    known: &mut Slices,
    strangers: &mut Strangers,
    own: &Name,
    now: Option<(Name, Slice)>,
) -> Vec<Name> {
    let mut changed = Vec::new();
    if let Some(before) = service_of(known, strangers, own)
        && now.as_ref().is_none_or(|(service, _)| *service != before)
    {
        put(known, &before, own.name(), None);
        changed.push(before);
    }
    strangers.remove(own);
    if let Some((service, slice)) = now {
        if is_stranger(&service, own.name()) {
            strangers.insert(own.clone(), service.clone());
        }
        if put(known, &service, own.name(), Some(slice)) {
            changed.push(service);
        }
    }
    changed
}

/// True if the Service of a slice does not follow from the slice's name.
pub(super) fn is_stranger(service: &Name, own: &str) -> bool {
    let rest = own.strip_prefix(service.name());
    rest.is_none_or(|rest| !rest.is_empty() && !rest.starts_with('-'))
}

/// Returns the Service that a slice belongs to.
fn service_of(known: &Slices, strangers: &Strangers, own: &Name) -> Option<Name> {
    let (namespace, own_name) = own.parts();
    let ends = own_name.match_indices('-').map(|(end, _)| end).chain([own_name.len()]);
    let named = ends.filter_map(|end| Some(Name::new(namespace, own_name.get(..end)?)));
    let has = |service: &Name| slices_of(known, service).iter().any(|slice| *slice.name == *own_name);
    named.chain(strangers.get(own).cloned()).find(has)
}

/// Returns the slices of a Service.
pub(crate) fn slices_of<'a>(known: &'a Slices, service: &Name) -> &'a [Arc<Slice>] {
    known.get(service).map(|slices| &**slices).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(service: &str, own: &str, address: &str) -> (Name, Arc<Slice>) {
        let metadata = json!({"namespace": "team", "name": own, "labels": {"kubernetes.io/service-name": service}});
        let slice = json!({"metadata": metadata, "addressType": "IPv4", "endpoints": [{"addresses": [address]}]});
        let (service, slice) = Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap();
        (service, Arc::new(slice))
    }

    fn shown(known: &Slices) -> String {
        let each = known.iter().map(|(service, slices)| {
            let names: Vec<&str> = slices.iter().map(|slice| &*slice.name).collect();
            format!("{}/{}: {}", service.namespace(), service.name(), names.join(" "))
        });
        each.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_slice_may_move_to_another_service() {
        let mut known = by_service(vec![
            slice("b", "b-2", "10.0.0.2"),
            slice("a", "a-1", "10.0.0.3"),
            slice("b", "b-1", "10.0.0.1"),
        ]);
        let mut strangers = Strangers::new();
        assert_eq!(shown(&known), "team/a: a-1, team/b: b-1 b-2");
        let table = [
            ("b", "b-1", Some("10.0.0.1"), "", "team/a: a-1, team/b: b-1 b-2"),
            ("b", "b-1", Some("10.0.0.9"), "b", "team/a: a-1, team/b: b-1 b-2"),
            ("a", "b-1", Some("10.0.0.9"), "b a", "team/a: a-1 b-1, team/b: b-2"),
            ("a", "b-1", Some("10.0.0.8"), "a", "team/a: a-1 b-1, team/b: b-2"),
            (
                "c-d",
                "b-1",
                Some("10.0.0.8"),
                "a c-d",
                "team/a: a-1, team/b: b-2, team/c-d: b-1",
            ),
            (
                "c-d",
                "c-d",
                Some("10.0.0.8"),
                "c-d",
                "team/a: a-1, team/b: b-2, team/c-d: b-1 c-d",
            ),
            ("c-d", "c-d", None, "c-d", "team/a: a-1, team/b: b-2, team/c-d: b-1"),
            ("c-d", "unknown", None, "", "team/a: a-1, team/b: b-2, team/c-d: b-1"),
            ("b", "b-1", Some("10.0.0.8"), "c-d b", "team/a: a-1, team/b: b-1 b-2"),
            ("b", "b-2", None, "b", "team/a: a-1, team/b: b-1"),
        ];
        for (service, own, address, changed, after) in table {
            let now = address.map(|address| slice(service, own, address));
            let now = now.map(|(service, slice)| (service, Slice::clone(&slice)));
            let told = exchange(&mut known, &mut strangers, &Name::new("team", own), now);
            let told: Vec<&str> = told.iter().map(Name::name).collect();
            assert_eq!(
                (told.join(" ").as_str(), shown(&known).as_str()),
                (changed, after),
                "{own}"
            );
        }
        assert!(strangers.is_empty(), "{strangers:?}");
    }
}
