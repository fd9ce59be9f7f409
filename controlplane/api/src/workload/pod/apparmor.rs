//! `AppArmor` profiles from annotations, which predate the fields.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};

use crate::workload::validation::apparmor;

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Sets the field of each container that has none, unless the pod has the same profile or the
/// annotation is invalid.
pub(crate) fn read_annotations(pod: &mut Pod) {
    let Some(annotations) = pod.metadata.annotations.as_ref() else {
        return;
    };
    let Some(spec) = &mut pod.spec else { return };
    if spec.os.as_ref().is_some_and(|system| system.name == "windows") {
        return;
    }
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.app_armor_profile.as_ref());
    let initial = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(initial) {
        let named = annotations.get(&format!("{ANNOTATION}{}", container.name));
        let profile = named.filter(|_| !has_own(container)).and_then(|text| field(text));
        if profile.is_some() && profile.as_ref() != of_pod {
            container.security_context.get_or_insert_default().app_armor_profile = profile;
        }
    }
}

fn has_own(container: &Container) -> bool {
    let own = container.security_context.as_ref();
    own.is_some_and(|own| own.app_armor_profile.is_some())
}

fn field(text: &str) -> Option<AppArmorProfile> {
    let (type_, localhost_profile) = match text {
        "unconfined" => ("Unconfined", None),
        "runtime/default" => ("RuntimeDefault", None),
        _ => ("Localhost", Some(text.strip_prefix("localhost/")?.to_owned())),
    };
    let profile = AppArmorProfile {
        localhost_profile,
        type_: type_.to_owned(),
    };
    let mut errors = Vec::new();
    apparmor::profile(&mut errors, Some(&profile), "");
    errors.is_empty().then_some(profile)
}
