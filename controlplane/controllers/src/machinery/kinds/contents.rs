//! Contents of ConfigMaps and Secrets: only those that controllers read are kept.

use std::collections::BTreeMap;

use controlplane_plan::node::ranges;
use controlplane_plan::objects::Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::trim_all;
use crate::machinery::cache::Cached;

/// `ConfigMap` of every namespace with the PEM of the CA.
pub(crate) const CERTIFICATE: &str = "kube-root-ca.crt";
/// Namespace and name of the `ConfigMap` that new nodes read.
pub(crate) const KUBE_PUBLIC: &str = "kube-public";
pub(crate) const CLUSTER_INFO: &str = "cluster-info";
/// Annotation of a token Secret with its account.
pub(crate) const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
/// Types of Secrets.
pub(crate) const TOKEN: &str = "kubernetes.io/service-account-token";
pub(crate) const BOOTSTRAP: &str = "bootstrap.kubernetes.io/token";

/// A `ConfigMap` or a Secret; only few have contents that controllers read.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Contents {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    /// Data as in JSON; base64 for a Secret.
    #[serde(default)]
    pub(crate) data: BTreeMap<String, String>,
}

/// Index entry of a service account's token Secrets.
pub(crate) fn of_account(namespace: &str, name: &str) -> String {
    format!("account/{namespace}/{name}")
}

impl Cached for Contents {
    type Pool = ();

    fn trim(&mut self) {
        let is_token = matches!(self.kind.as_str(), TOKEN | BOOTSTRAP);
        let name = self.metadata.name.as_deref();
        let is_signed = name == Some(CLUSTER_INFO) && self.metadata.namespace.as_deref() == Some(KUBE_PUBLIC);
        let is_record = name == Some(ranges::RECORD) && self.metadata.namespace.as_deref() == Some(ranges::NAMESPACE);
        let is_known = self.kind.is_empty() && (name == Some(CERTIFICATE) || is_signed || is_record);
        let annotations = self.metadata.annotations.take().filter(|_| is_token);
        let labels = self.metadata.labels.take().filter(|_| is_token);
        let created = self.metadata.creation_timestamp.take().filter(|_| is_token);
        trim_all(&mut self.metadata);
        self.metadata.annotations = annotations;
        self.metadata.labels = labels;
        self.metadata.creation_timestamp = created;
        if !is_token && !is_known {
            self.data = BTreeMap::new();
        }
    }

    fn index(&self) -> Vec<String> {
        let account = self.metadata.annotations.as_ref().and_then(|all| all.get(ACCOUNT_NAME));
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        account
            .map(|account| of_account(namespace, account))
            .into_iter()
            .collect()
    }
}

impl Object for Contents {
    type Meta = ObjectMeta;

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}
