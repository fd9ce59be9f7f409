//! What the command line says of the Node.

use std::collections::BTreeSet;

use agent_plan::node::registration::Registration;
use k8s_openapi::api::core::v1::Taint;

use super::pair;

/// Effects of taints.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

#[derive(Debug, clap::Args)]
pub(crate) struct RegistrationArguments {
    /// Label of the Node, KEY=VALUE; may be repeated
    #[arg(long, value_parser = pair)]
    node_label: Vec<(String, String)>,
    /// Taint that the Node has when it is created, KEY=VALUE:EFFECT or KEY:EFFECT; may be repeated, or with commas between
    #[arg(long, value_name = "TAINT", value_delimiter = ',', value_parser = taint)]
    register_with_taints: Vec<Taint>,
    /// The machine's identifier at its cloud, which the Node has when it is created
    #[arg(long, value_name = "ID")]
    provider_id: Option<String>,
    /// With `external`, a new Node takes no pods before a cloud controller manager has initialized it, which also says its
    /// addresses
    #[arg(long, value_name = "NAME", value_parser = ["", "external"])]
    cloud_provider: Option<String>,
}

impl RegistrationArguments {
    pub(super) fn registration(&self) -> anyhow::Result<Registration> {
        let mut known = BTreeSet::new();
        for Taint { key, effect, .. } in &self.register_with_taints {
            if !known.insert((key, effect)) {
                anyhow::bail!("--register-with-taints: duplicated taints with the same key and effect: {key}:{effect}");
            }
        }
        Ok(Registration {
            labels: self.node_label.iter().cloned().collect(),
            taints: self.register_with_taints.clone(),
            provider_id: self.provider_id.clone().filter(|id| !id.is_empty()),
            external_cloud: self.cloud_provider.as_deref() == Some("external"),
        })
    }
}

/// Reads a taint (`parseTaint`, `pkg/util/taints/taints.go`); the API validates its parts.
fn taint(text: &str) -> Result<Taint, String> {
    let invalid = || format!("invalid taint spec: {text}");
    let (what, effect) = text.split_once(':').ok_or_else(invalid)?;
    if !EFFECTS.contains(&effect) {
        return Err(format!("invalid taint effect: {effect}, unsupported taint effect"));
    }
    let (key, value) = what
        .split_once('=')
        .map_or((what, None), |(key, value)| (key, Some(value)));
    if key.is_empty() || value.is_some_and(|value| value.contains('=')) {
        return Err(invalid());
    }
    Ok(Taint {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: effect.to_owned(),
        ..Taint::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_have_an_effect() {
        let read = |text: &str| taint(text).map(|taint| (taint.key, taint.value, taint.effect)).ok();
        let expected =
            |value: Option<&str>, effect: &str| Some(("a/b".to_owned(), value.map(str::to_owned), effect.to_owned()));
        assert_eq!(read("a/b=c:NoSchedule"), expected(Some("c"), "NoSchedule"));
        assert_eq!(read("a/b:NoExecute"), expected(None, "NoExecute"));
        for text in [
            "a/b",
            "a/b=c",
            "a=b=c:NoSchedule",
            ":NoSchedule",
            "a:Never",
            "a:NoSchedule:x",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
