//! The configuration that the stored objects make, ready for requests
//! (`staging/src/k8s.io/apiserver/pkg/util/flowcontrol/apf_controller.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Kind as _;
use http::HeaderValue;
use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, FlowSchemaSpec, PolicyRulesWithSubjects, PriorityLevelConfiguration, PriorityLevelConfigurationSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use store::{Prefix, Store};

use super::defaults::{self, CATCH_ALL, EXEMPT};
use super::matching::matches;
use super::numbers::{Limits, Numbers, OfSchema};
use super::seats::{Seats, Wanted};
use super::{GROUP, LEVELS, SCHEMAS, SEATS};
use crate::authn::identity::User;
use crate::request::info::RequestInfo;

/// Flow distinguisher of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distinguisher {
    User,
    Namespace,
}

/// Schema with an existing level.
#[derive(Debug)]
pub(super) struct Schema {
    rules: Vec<PolicyRulesWithSubjects>,
    precedence: i32,
    pub(super) distinguisher: Option<Distinguisher>,
    /// Index of the level; `None` for the exempt one.
    pub(super) level: Option<usize>,
    /// UIDs of the schema and of its level.
    pub(super) uids: [HeaderValue; 2],
    pub(super) numbers: Arc<OfSchema>,
}

/// Flow schemas in the order of their precedence; the last one matches everything.
#[derive(Debug)]
pub(super) struct Config {
    schemas: Vec<Arc<Schema>>,
    rest: Arc<Schema>,
}

/// Priority level before its seats are assigned.
struct Level {
    uid: HeaderValue,
    /// Index of the level; `None` for the exempt one.
    place: Option<usize>,
}

impl Config {
    /// Reads the stored configuration and divides the seats. Skips invalid objects; missing
    /// mandatory objects are replaced by defaults.
    pub(super) fn read(store: &Store, seats: &Arc<Seats>, numbers: &Numbers) -> Self {
        let mut levels: Vec<PriorityLevelConfiguration> = stored(store, LEVELS);
        levels.retain(|level| {
            level
                .spec
                .as_ref()
                .is_some_and(|spec| is_whole(name(&level.metadata), spec))
        });
        let mut schemas: Vec<FlowSchema> = stored(store, SCHEMAS);
        for mandatory in [EXEMPT, CATCH_ALL] {
            if !levels.iter().any(|level| name(&level.metadata) == mandatory) {
                levels.extend(
                    defaults::levels()
                        .into_iter()
                        .filter(|level| name(&level.metadata) == mandatory),
                );
            }
        }
        let levels = divide(levels, seats, numbers);
        schemas.retain(|schema| {
            schema
                .spec
                .as_ref()
                .is_some_and(|spec| levels.contains_key(level_of(spec)))
        });
        for mandatory in [EXEMPT, CATCH_ALL] {
            if !schemas.iter().any(|schema| name(&schema.metadata) == mandatory) {
                let own = defaults::schemas().into_iter();
                schemas.extend(own.filter(|schema| name(&schema.metadata) == mandatory));
            }
        }
        let made = schemas.into_iter().filter_map(|schema| read(schema, &levels, numbers));
        let mut schemas: Vec<Arc<Schema>> = made.collect();
        schemas.sort_by(|one, other| {
            let order = |schema: &Schema| (schema.precedence, Arc::clone(&schema.numbers.schema));
            order(one).cmp(&order(other))
        });
        numbers.keep(schemas.iter().map(|schema| Arc::clone(&schema.numbers)).collect());
        let rest = schemas.iter().find(|schema| &*schema.numbers.schema == CATCH_ALL);
        let rest = rest.map_or_else(|| Arc::new(Schema::of_rest(numbers)), Arc::clone);
        Self { schemas, rest }
    }

    /// The schema of a request.
    pub(super) fn find(&self, user: &User, info: &RequestInfo, path: &str) -> &Arc<Schema> {
        let mut schemas = self.schemas.iter();
        schemas
            .find(|schema| matches(&schema.rules, user, info, path))
            .unwrap_or(&self.rest)
    }
}

impl Schema {
    /// Matches no requests itself. There is always another one of the name.
    fn of_rest(numbers: &Numbers) -> Self {
        Self {
            rules: Vec::new(),
            precedence: i32::MAX,
            distinguisher: None,
            level: None,
            uids: [HeaderValue::from_static(""), HeaderValue::from_static("")],
            numbers: numbers.of(CATCH_ALL, CATCH_ALL),
        }
    }
}

fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

fn level_of(spec: &FlowSchemaSpec) -> &str {
    &spec.priority_level_configuration.name
}

fn uid(metadata: &ObjectMeta) -> HeaderValue {
    let uid = metadata.uid.as_deref().unwrap_or_default();
    HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static(""))
}

fn stored<T: DeserializeOwned>(store: &Store, plural: &'static str) -> Vec<T> {
    let entries = store.present(&Prefix::resource(GROUP, plural)).into_iter();
    let read = entries.filter_map(|entry| {
        let read = serde_json::from_slice(&entry.bytes);
        read.inspect_err(|error| tracing::error!(key = %entry.key, %error, "unreadable, so it controls nothing"))
            .ok()
    });
    read.collect()
}

/// True if a level is valid (`queueSetCompleterForPL`).
pub(super) fn is_whole(name: &str, spec: &PriorityLevelConfigurationSpec) -> bool {
    let is_exempt = spec.type_ == "Exempt";
    if is_exempt != spec.exempt.is_some() || is_exempt != (name == EXEMPT) {
        return false;
    }
    let Some(limited) = &spec.limited else {
        return is_exempt;
    };
    let response = limited.limit_response.as_ref();
    !is_exempt && response.is_some_and(|response| (response.type_ == "Queue") == response.queuing.is_some())
}

fn read(schema: FlowSchema, levels: &BTreeMap<String, Level>, numbers: &Numbers) -> Option<Arc<Schema>> {
    let spec = schema.spec?;
    let level = levels.get(level_of(&spec))?;
    let method = spec.distinguisher_method.as_ref().map(|method| method.type_.as_str());
    Some(Arc::new(Schema {
        precedence: spec.matching_precedence.unwrap_or(0),
        distinguisher: match method {
            Some("ByUser") => Some(Distinguisher::User),
            Some("ByNamespace") => Some(Distinguisher::Namespace),
            Some(_) | None => None,
        },
        level: level.place,
        uids: [uid(&schema.metadata), level.uid.clone()],
        numbers: numbers.of(level_of(&spec), name(&schema.metadata)),
        rules: spec.rules.unwrap_or_default(),
    }))
}

/// Divides the server's seats among the levels by their shares.
fn divide(levels: Vec<PriorityLevelConfiguration>, seats: &Arc<Seats>, numbers: &Numbers) -> BTreeMap<String, Level> {
    let mut levels = levels;
    levels.iter_mut().for_each(PriorityLevelConfiguration::set_defaults);
    let all: usize = levels.iter().map(shares).sum();
    let mut found = BTreeMap::new();
    let (mut limits, mut wanted) = (Vec::new(), Vec::new());
    for level in &levels {
        let own = Limits::of(level, all);
        let name = name(&level.metadata).to_owned();
        limits.push((name.clone(), own));
        let limited = level.spec.as_ref().and_then(|spec| spec.limited.as_ref());
        let place = limited.is_some().then_some(wanted.len());
        if let Some(limited) = limited {
            let queuing = limited
                .limit_response
                .as_ref()
                .and_then(|response| response.queuing.as_ref());
            wanted.push(Wanted {
                name: name.clone(),
                limits: own,
                queues: queuing.map_or(0, |queuing| number(queuing.queues)),
                hand: queuing.map_or(0, |queuing| number(queuing.hand_size)),
                longest: queuing.map_or(0, |queuing| number(queuing.queue_length_limit)),
            });
        }
        found.insert(
            name,
            Level {
                uid: uid(&level.metadata),
                place,
            },
        );
    }
    let places = seats.divide(wanted);
    for level in found.values_mut() {
        level.place = level.place.and_then(|index| places.get(index).copied());
    }
    numbers.limit(limits);
    found
}

fn number(value: Option<i32>) -> usize {
    usize::try_from(value.unwrap_or(0)).unwrap_or(0)
}

/// Shares, and the percentages that a level lends and may borrow.
fn terms(level: &PriorityLevelConfiguration) -> (usize, usize, Option<usize>) {
    let Some(spec) = &level.spec else { return (0, 0, None) };
    match (&spec.limited, &spec.exempt) {
        (Some(limited), _) => (
            number(limited.nominal_concurrency_shares),
            number(limited.lendable_percent),
            limited.borrowing_limit_percent.map(|percent| number(Some(percent))),
        ),
        (None, Some(exempt)) => (
            number(exempt.nominal_concurrency_shares),
            number(exempt.lendable_percent),
            None,
        ),
        (None, None) => (0, 0, None),
    }
}

fn shares(level: &PriorityLevelConfiguration) -> usize {
    terms(level).0
}

impl Limits {
    /// Limits of a level, given the sum of all levels' shares.
    fn of(level: &PriorityLevelConfiguration, all: usize) -> Self {
        let (shares, lends, borrows) = terms(level);
        let nominal = (SEATS * shares).div_ceil(all.max(1));
        // Rounded to the nearest number.
        let part = |percent: usize| (nominal * percent + 50) / 100;
        Self {
            nominal,
            lower: nominal.saturating_sub(part(lends)),
            upper: nominal + borrows.map_or(SEATS, part),
        }
    }
}
