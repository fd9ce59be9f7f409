//! Index of roles and bindings by scope and subject.
//!
//! The index follows the store: a question that comes after a write was acknowledged is answered with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use serde::de::DeserializeOwned;
use store::{Entry, Prefix, Store};
use tokio::sync::watch;

use crate::authn::identity::User;

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// A `RoleBinding`, or with an empty namespace a `ClusterRoleBinding`.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) role: RoleRef,
    subjects: Vec<Subject>,
}

impl Binding {
    fn new(entry: &Entry, role: RoleRef, subjects: Option<Vec<Subject>>) -> Self {
        Self {
            name: entry.key.name().into(),
            namespace: entry.key.namespace().into(),
            role,
            subjects: subjects.unwrap_or_default(),
        }
    }
}

/// Subject of a binding.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) binding: Arc<Binding>,
    subject: usize,
}

impl std::fmt::Display for Grant {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Binding {
            name, namespace, role, ..
        } = &*self.binding;
        let (kind, place) = if namespace.is_empty() {
            ("ClusterRoleBinding", String::new())
        } else {
            ("RoleBinding", format!("/{namespace}"))
        };
        let of = format!("{} {:?}", role.kind, role.name);
        write!(formatter, "{kind} {:?} of {of}", format!("{name}{place}"))?;
        let Some(subject) = self.binding.subjects.get(self.subject) else {
            return Ok(());
        };
        let name = if subject.kind == "ServiceAccount" {
            let own = subject.namespace.as_deref().filter(|own| !own.is_empty());
            format!("{}/{}", subject.name, own.unwrap_or(namespace))
        } else {
            subject.name.clone()
        };
        write!(formatter, " to {} {name:?}", subject.kind)
    }
}

/// Scope of a resource's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Cluster,
    Namespaces,
}

/// Roles and bindings of one namespace, or of the cluster.
#[derive(Debug, Default)]
struct Scope {
    roles: Rows<[PolicyRule]>,
    bindings: Rows<Binding>,
    users: BTreeMap<Box<str>, Vec<Grant>>,
    groups: BTreeMap<Box<str>, Vec<Grant>>,
}

/// Parsed objects by name, with the revisions at which they were read.
type Rows<T> = BTreeMap<Box<str>, (u64, Arc<T>)>;

impl Scope {
    fn rules(&self, name: &str) -> Option<&[PolicyRule]> {
        self.roles.get(name).map(|(_, rules)| &**rules)
    }

    /// Sorts the bindings by their subjects. A service account is a user with a long name.
    fn sort(&mut self) {
        self.users.clear();
        self.groups.clear();
        for (_, binding) in self.bindings.values() {
            for (subject, named) in binding.subjects.iter().enumerate() {
                let grant = Grant {
                    binding: Arc::clone(binding),
                    subject,
                };
                let (of, name) = match named.kind.as_str() {
                    "User" => (&mut self.users, named.name.clone()),
                    "Group" => (&mut self.groups, named.name.clone()),
                    "ServiceAccount" => {
                        let own = named.namespace.as_deref().filter(|own| !own.is_empty());
                        let namespace = own.unwrap_or(&binding.namespace);
                        if namespace.is_empty() {
                            continue;
                        }
                        (
                            &mut self.users,
                            format!("system:serviceaccount:{namespace}:{}", named.name),
                        )
                    }
                    _ => continue,
                };
                of.entry(name.into()).or_default().push(grant);
            }
        }
    }

    /// Grants of the user in this scope, by name and by group.
    fn grants<'a>(&'a self, user: &'a User) -> impl Iterator<Item = &'a Grant> {
        let own = self.users.get(user.name.as_str()).into_iter().flatten();
        let shared = user.groups.iter().filter_map(|group| self.groups.get(group.as_str()));
        own.chain(shared.flatten())
    }
}

/// Roles and bindings by namespace; the cluster's have an empty one.
#[derive(Debug, Default)]
pub(super) struct Index {
    scopes: BTreeMap<Box<str>, Scope>,
}

impl Index {
    /// Rules of the role that a binding references; `None` if it does not exist.
    fn rules(&self, binding: &Binding) -> Option<&[PolicyRule]> {
        self.role(&binding.role, &binding.namespace)
    }

    /// The rules of a role, as named from a namespace.
    pub(super) fn role(&self, role: &RoleRef, namespace: &str) -> Option<&[PolicyRule]> {
        let scope = if role.kind == "Role" { namespace } else { "" };
        self.scopes.get(scope)?.rules(&role.name)
    }

    /// Visits a user's grants: first cluster-wide ones, then those in the namespace. `visit` gets
    /// each grant with its rules (`None` when the role is missing) and ends the walk by returning
    /// `Some`.
    pub(super) fn walk<'a, T>(
        &'a self,
        user: &'a User,
        namespace: &str,
        mut visit: impl FnMut(&'a Grant, Option<&'a [PolicyRule]>) -> Option<T>,
    ) -> Option<T> {
        let namespaced = (!namespace.is_empty()).then(|| self.scopes.get(namespace)).flatten();
        self.scopes
            .get("")
            .into_iter()
            .chain(namespaced)
            .flat_map(|scope| scope.grants(user))
            .find_map(|grant| visit(grant, self.rules(&grant.binding)))
    }

    /// Updates one resource from the store, and returns the scopes that changed.
    fn take<T: ?Sized>(
        &mut self,
        place: Place,
        entries: Vec<Entry>,
        rows: impl Fn(&mut Scope) -> &mut Rows<T>,
        read: impl Fn(&Entry) -> Arc<T>,
    ) -> BTreeSet<Box<str>> {
        let mut old: BTreeMap<Box<str>, Rows<T>> = BTreeMap::new();
        let mut changed = BTreeSet::new();
        for (name, scope) in &mut self.scopes {
            if name.is_empty() == (place == Place::Cluster) {
                old.insert(name.clone(), std::mem::take(rows(scope)));
            }
        }
        for entry in entries {
            let namespace = entry.key.namespace();
            let known = old.get_mut(namespace).and_then(|rows| rows.remove(entry.key.name()));
            let row = match known {
                Some(known) if known.0 == entry.revision => known,
                Some(_) | None => {
                    changed.insert(namespace.into());
                    (entry.revision, read(&entry))
                }
            };
            let scope = self.scopes.entry(namespace.into()).or_default();
            rows(scope).insert(entry.key.name().into(), row);
        }
        let gone = old.into_iter().filter(|(_, rows)| !rows.is_empty());
        changed.extend(gone.map(|(name, _)| name));
        changed
    }

    fn take_roles(&mut self, place: Place, entries: Vec<Entry>, read: fn(&Entry) -> Arc<[PolicyRule]>) {
        self.take(place, entries, |scope| &mut scope.roles, read);
        self.prune();
    }

    fn take_bindings(&mut self, place: Place, entries: Vec<Entry>, read: fn(&Entry) -> Arc<Binding>) {
        for changed in self.take(place, entries, |scope| &mut scope.bindings, read) {
            if let Some(scope) = self.scopes.get_mut(&changed) {
                scope.sort();
            }
        }
        self.prune();
    }

    fn prune(&mut self) {
        self.scopes
            .retain(|_, scope| !scope.roles.is_empty() || !scope.bindings.is_empty());
    }
}

/// Decodes an object of the store; an invalid one grants nothing.
fn read<T: DeserializeOwned + Default>(entry: &Entry) -> T {
    serde_json::from_slice(&entry.bytes).unwrap_or_else(|error| {
        tracing::error!(key = %entry.key, %error, "unreadable, so it grants nothing");
        T::default()
    })
}

/// One of the four RBAC resources: its prefix in the store and how it is indexed.
struct Source {
    prefix: Prefix,
    changed: watch::Receiver<u64>,
    take: Take,
}

type Take = fn(&mut Index, Vec<Entry>);

const SOURCES: [(&str, Take); 4] = [
    ("clusterroles", |index, entries| {
        index.take_roles(Place::Cluster, entries, |entry| {
            read::<ClusterRole>(entry).rules.unwrap_or_default().into()
        });
    }),
    ("roles", |index, entries| {
        index.take_roles(Place::Namespaces, entries, |entry| {
            read::<Role>(entry).rules.unwrap_or_default().into()
        });
    }),
    ("clusterrolebindings", |index, entries| {
        index.take_bindings(Place::Cluster, entries, |entry| {
            let ClusterRoleBinding { role_ref, subjects, .. } = read(entry);
            Arc::new(Binding::new(entry, role_ref, subjects))
        });
    }),
    ("rolebindings", |index, entries| {
        index.take_bindings(Place::Namespaces, entries, |entry| {
            let RoleBinding { role_ref, subjects, .. } = read(entry);
            Arc::new(Binding::new(entry, role_ref, subjects))
        });
    }),
];

struct State {
    sources: Vec<Source>,
    index: Index,
}

impl State {
    fn is_stale(&self) -> bool {
        // The store takes the senders along when it is closed: then nothing changes any more.
        self.sources
            .iter()
            .any(|source| source.changed.has_changed().unwrap_or(false))
    }

    fn refresh(&mut self, store: &Store, all: bool) {
        for source in &mut self.sources {
            if all || source.changed.has_changed().unwrap_or(false) {
                // Marked as seen before reading: changes in between are read again.
                source.changed.mark_unchanged();
                (source.take)(&mut self.index, store.present(&source.prefix));
            }
        }
    }
}

/// Index that is brought up to date with the store on access.
pub(super) struct Current {
    store: Store,
    state: RwLock<State>,
}

impl Current {
    pub(super) fn new(store: Store) -> Self {
        let sources = SOURCES.map(|(plural, take)| {
            let prefix = Prefix::resource(GROUP, plural);
            let changed = store.last_change(&prefix);
            Source { prefix, changed, take }
        });
        let mut state = State {
            sources: sources.into(),
            index: Index::default(),
        };
        state.refresh(&store, true);
        Self {
            store,
            state: RwLock::new(state),
        }
    }

    /// Queries the index. Costs two uncontended locks and four loads while roles and bindings do
    /// not change.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&Index) -> T) -> T {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if !state.is_stale() {
            return question(&state.index);
        }
        drop(state);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.refresh(&self.store, false);
        question(&state.index)
    }
}
