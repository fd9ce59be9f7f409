//! `RoleBinding` and `ClusterRoleBinding`: grant a role to subjects.

use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject};

use crate::kind::{Kind, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::Rule;
use crate::workload::pod::defaults::text;
use crate::workload::validation::rbac;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Binding of either scope.
trait Binding: Kind {
    /// Descriptions of the columns: role, users, groups and service accounts.
    const DESCRIPTIONS: [&'static str; 4];

    fn role(&self) -> &RoleRef;
    fn subjects(&self) -> &[Subject];
}

impl Binding for RoleBinding {
    const DESCRIPTIONS: [&'static str; 4] = [
        "rbac.v1.RoleBinding.roleRef",
        "Users in the roleBinding",
        "Groups in the roleBinding",
        "ServiceAccounts in the roleBinding",
    ];

    fn role(&self) -> &RoleRef {
        &self.role_ref
    }

    fn subjects(&self) -> &[Subject] {
        self.subjects.as_deref().unwrap_or_default()
    }
}

impl Binding for ClusterRoleBinding {
    const DESCRIPTIONS: [&'static str; 4] = [
        "rbac.v1.ClusterRoleBinding.roleRef",
        "Users in the clusterRoleBinding",
        "Groups in the clusterRoleBinding",
        "ServiceAccounts in the clusterRoleBinding",
    ];

    fn role(&self) -> &RoleRef {
        &self.role_ref
    }

    fn subjects(&self) -> &[Subject] {
        self.subjects.as_deref().unwrap_or_default()
    }
}

const fn columns<B: Binding>() -> [Column<B>; 5] {
    let [role, users, groups, accounts] = B::DESCRIPTIONS;
    [
        Column::text("Role", role, |binding, _| {
            format!("{}/{}", binding.role().kind, binding.role().name).into()
        }),
        age_column(),
        Column::wide("Users", users, |binding, _| named(binding.subjects(), "User").into()),
        Column::wide("Groups", groups, |binding, _| named(binding.subjects(), "Group").into()),
        Column::wide("ServiceAccounts", accounts, |binding, _| {
            named(binding.subjects(), "ServiceAccount").into()
        }),
    ]
}

/// The subjects of a kind; service accounts with their namespace.
fn named(subjects: &[Subject], kind: &str) -> String {
    let own = subjects.iter().filter(|subject| subject.kind == kind);
    let names = own.map(|subject| match &subject.namespace {
        Some(namespace) if kind == "ServiceAccount" => format!("{namespace}/{}", subject.name),
        Some(_) | None => subject.name.clone(),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn set_defaults(role: &mut RoleRef, subjects: &mut [Subject]) {
    text(&mut role.api_group, GROUP);
    for subject in subjects {
        let group = match subject.kind.as_str() {
            "User" | "Group" => GROUP,
            _ => continue,
        };
        text(&mut subject.api_group, group);
    }
}

macro_rules! binding {
    ($binding:ty, namespaced: $namespaced:literal) => {
        impl Kind for $binding {
            const UPDATES: Updates = Updates::CREATE;
            const NAME: Rule = Rule::PathSegment;
            const COLUMNS: &'static [Column<Self>] = &columns();

            fn set_defaults(&mut self) {
                set_defaults(
                    &mut self.role_ref,
                    self.subjects.as_deref_mut().unwrap_or_default(),
                );
            }

            fn validate(&self) -> Vec<Invalid> {
                let mut errors = Vec::new();
                rbac::binding(&mut errors, self.role(), self.subjects(), $namespaced);
                errors
            }

            fn validate_update(&self, old: &Self) -> Vec<Invalid> {
                let mut errors = self.validate();
                rbac::same_role(&mut errors, &self.role_ref, &old.role_ref);
                errors
            }
        }
    };
}

binding!(RoleBinding, namespaced: true);
binding!(ClusterRoleBinding, namespaced: false);
