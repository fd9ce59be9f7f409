//! The `SELinux` labels of a container: the policy's defaults for containers, overridden by the
//! pod's options.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, SELinuxOptions};

/// Number of categories.
const CATEGORIES: u128 = 1024;
/// Number of pairs of categories.
const PAIRS: u128 = CATEGORIES * (CATEGORIES - 1) / 2;

/// A label of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    user: String,
    role: String,
    kind: String,
    /// None where the policy has no levels.
    level: Option<String>,
}

impl Label {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        let level = parts.next().filter(|level| !level.is_empty());
        Some(Self {
            user,
            role,
            kind,
            level,
        })
    }

    fn text(&self) -> String {
        let Self {
            user,
            role,
            kind,
            level,
        } = self;
        let plain = format!("{user}:{role}:{kind}");
        level.as_ref().map_or(plain.clone(), |level| format!("{plain}:{level}"))
    }
}

/// Defaults for containers in the machine's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    process: Label,
    file: Label,
}

/// Returns the policy in the machine's configuration.
pub fn policy(configuration: &str) -> Option<&str> {
    configuration
        .lines()
        .find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))
        .map(|name| name.trim().trim_matches('"'))
        .filter(|name| !name.is_empty())
}

fn setting(contexts: &str, wanted: &str) -> Option<Label> {
    let lines = contexts.lines().map(str::trim);
    let settings = lines.filter(|line| !line.starts_with(['#', ';']));
    let mut all = settings.filter_map(|line| line.split_once('='));
    let (_, value) = all.find(|(key, _)| key.trim() == wanted)?;
    Label::parse(value.trim().trim_matches('"'))
}

/// Returns the label of read-only files that all containers may execute, `ro_file = "…"`, for
/// images. Without it in the policy, the containers' own file label.
pub fn of_images(contexts: &str) -> Option<String> {
    setting(contexts, "ro_file")
        .or_else(|| setting(contexts, "file"))
        .map(|label| label.text())
}

/// Parses `process = "…"` and `file = "…"` of a policy's contexts for containers; `None` where one
/// of them is missing.
pub fn defaults(contexts: &str) -> Option<Defaults> {
    Some(Defaults {
        process: setting(contexts, "process")?,
        file: setting(contexts, "file")?,
    })
}

/// Returns an MCS level of two categories that no other pod has; the search starts at `near`, so
/// that levels are not predictable.
pub fn level(taken: &BTreeSet<String>, near: u128) -> Option<String> {
    let start = near % PAIRS;
    // The last two are for files that belong to no pod.
    (start..PAIRS - 1)
        .chain(0..start)
        .map(pair)
        .find(|level| !taken.contains(level))
}

/// Enumerates the pairs: those with the higher category 1 first, then 2, …
fn pair(number: u128) -> String {
    let (mut high, mut left) = (1, number);
    while left >= high {
        left -= high;
        high += 1;
    }
    format!("s0:c{left},c{high}")
}

/// `SELinux` labels of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Label of its processes; `None` leaves it to the policy's transition from the agent's label.
    pub process: Option<String>,
    /// Label of its own files.
    pub mount: String,
}

fn options<'a>(pod: &'a Pod, container: &'a Container) -> Option<&'a SELinuxOptions> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    own.and_then(|own| own.se_linux_options.as_ref())
        .filter(|own| says(own))
        .or_else(|| of_pod.and_then(|of_pod| of_pod.se_linux_options.as_ref()))
        .filter(|options| says(options))
}

fn says(options: &SELinuxOptions) -> bool {
    let all = [&options.user, &options.role, &options.type_, &options.level];
    all.into_iter().flatten().any(|value| !value.is_empty())
}

/// True if the pod or the container has `seLinuxOptions`.
pub fn asks(pod: &Pod, container: &Container) -> bool {
    options(pod, container).is_some()
}

/// Returns the labels of a container. A container's options, if it has any, replace all of its
/// pod's; without a level in them, `level` applies. A privileged container's processes have no
/// label.
pub fn labels(pod: &Pod, container: &Container, defaults: &Defaults, level: &str) -> Result<Labels, String> {
    let Defaults { process, file } = defaults;
    let (mut process, mut file) = (process.clone(), file.clone());
    for label in [&mut process, &mut file] {
        label.level = label.level.as_ref().map(|_| level.to_owned());
    }
    if let Some(own) = options(pod, container) {
        let said = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        if let Some(level) = said(&own.level) {
            check_level(&level)?;
            (process.level, file.level) = (Some(level.clone()), Some(level));
        }
        if let Some(user) = said(&own.user) {
            check("user", &user)?;
            (process.user, file.user) = (user.clone(), user);
        }
        if let Some(role) = said(&own.role) {
            check("role", &role)?;
            process.role = role;
        }
        if let Some(kind) = said(&own.type_) {
            check("type", &kind)?;
            process.kind = kind;
        }
    }
    let context = container.security_context.as_ref();
    let privileged = context.and_then(|own| own.privileged) == Some(true);
    Ok(Labels {
        process: (!privileged).then(|| process.text()),
        mount: file.text(),
    })
}

/// Checks a part of a label. Labels are used in mount options: no character may end an option.
fn check(what: &str, value: &str) -> Result<(), String> {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.');
    if value.chars().all(plain) {
        Ok(())
    } else {
        Err(incorrect(what, value))
    }
}

fn incorrect(what: &str, value: &str) -> String {
    format!("the format of '{what}' {value:?} is not correct")
}

/// `s0`, `s0-s3`, `s0:c1`, `s0:c1.c5,c7` and the like.
fn check_level(level: &str) -> Result<(), String> {
    let number = |text: &str, prefix: char, digits: usize| {
        let number = text.strip_prefix(prefix).unwrap_or_default();
        (1..=digits).contains(&number.len()) && number.bytes().all(|digit| digit.is_ascii_digit())
    };
    let category = |text: &str| number(text, 'c', 4);
    let range = |text: &str| match text.split_once('.') {
        Some((from, to)) => category(from) && category(to),
        None => category(text),
    };
    let (sensitivity, categories) = match level.split_once(':') {
        Some((sensitivity, categories)) => (sensitivity, Some(categories)),
        None => (level, None),
    };
    let sensitive = match sensitivity.split_once('-') {
        Some((from, to)) => number(from, 's', 1) && number(to, 's', 1),
        None => number(sensitivity, 's', 1),
    };
    if sensitive && categories.is_none_or(|categories| categories.split(',').all(range)) {
        Ok(())
    } else {
        Err(incorrect("level", level))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CONTEXTS: &str = "# those of containers\nprocess = \"system_u:system_r:container_t:s0\"\n\
                            content = \"system_u:object_r:virt_var_lib_t:s0\"\n file=\"system_u:object_r:container_file_t:s0\"\n";

    fn decided(of_pod: &Value, own: &Value, contexts: &str) -> String {
        let container = json!({"name": "a", "securityContext": own});
        let spec = json!({"containers": [container], "securityContext": {"seLinuxOptions": of_pod}});
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        match labels(&pod, container, &defaults(contexts).unwrap(), "s0:c1,c2") {
            Ok(Labels { process, mount }) => format!("{} {mount}", process.as_deref().unwrap_or("-")),
            Err(why) => why,
        }
    }

    #[test]
    fn what_is_asked_for_is_laid_over_the_machines_labels() {
        let none = json!(null);
        let own = |options: Value| json!({"seLinuxOptions": options});
        let level = json!({"level": "s0:c7,c9"});
        for (of_pod, own, expected) in [
            (
                &none,
                none.clone(),
                "system_u:system_r:container_t:s0:c1,c2 system_u:object_r:container_file_t:s0:c1,c2",
            ),
            (
                &level,
                none.clone(),
                "system_u:system_r:container_t:s0:c7,c9 system_u:object_r:container_file_t:s0:c7,c9",
            ),
            (
                &level,
                own(json!({"user": "u", "role": "r", "type": "t", "level": ""})),
                "u:r:t:s0:c1,c2 u:object_r:container_file_t:s0:c1,c2",
            ),
            (
                &level,
                own(json!({"type": ""})),
                "system_u:system_r:container_t:s0:c7,c9 system_u:object_r:container_file_t:s0:c7,c9",
            ),
            (
                &none,
                own(json!({"type": "spc_t", "level": "s0-s1:c0.c1023,c3"})),
                "system_u:system_r:spc_t:s0-s1:c0.c1023,c3 system_u:object_r:container_file_t:s0-s1:c0.c1023,c3",
            ),
            (
                &level,
                json!({"privileged": true}),
                "- system_u:object_r:container_file_t:s0:c7,c9",
            ),
            (
                &none,
                own(json!({"level": "s0:c1,context=x"})),
                "the format of 'level' \"s0:c1,context=x\" is not correct",
            ),
            (
                &json!({"user": "u\",lowerdir=/etc"}),
                none.clone(),
                r#"the format of 'user' "u\",lowerdir=/etc" is not correct"#,
            ),
            (
                &none,
                own(json!({"type": "a:b"})),
                "the format of 'type' \"a:b\" is not correct",
            ),
        ] {
            assert_eq!(decided(of_pod, &own, CONTEXTS), expected, "{of_pod} {own}");
        }
        let flat = "process = \"u:r:t\"\nfile = \"u:o:f\"";
        assert_eq!(decided(&none, &none, flat), "u:r:t u:o:f", "a policy without levels");
    }

    #[test]
    fn levels_are_of_the_form_that_policies_know() {
        for good in ["s0", "s0-s9", "s0:c0", "s1:c1.c20,c1023", "s0-s1:c1,c2"] {
            assert_eq!(check_level(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "s",
            "s10",
            "x0",
            "s0:",
            "s0:c",
            "s0:c12345",
            "s0:c1.",
            "s0:c1,",
            "s0:c1,c2\n",
            "s0 ",
        ] {
            assert!(check_level(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_policys_files_are_read() {
        assert_eq!(
            policy("# SELINUXTYPE=no\nSELINUX=enforcing\n SELINUXTYPE=targeted \n"),
            Some("targeted")
        );
        assert_eq!(policy("SELINUX=enforcing\nSELINUXTYPE=\n"), None);
        assert_eq!(
            of_images("#ro_file = \"a:b:c\"\nro_file = \"u:o:r:s0\"\n").as_deref(),
            Some("u:o:r:s0")
        );
        assert_eq!(of_images("file = \"u:o:f:s0\"").as_deref(), Some("u:o:f:s0"));
        assert_eq!(defaults(""), None);
        assert_eq!(defaults("process = \"a:b:c:s0\"\n"), None, "files are not labelled");
        assert_eq!(defaults("process = \"a:b\"\nfile = \"a:b:c\"\n"), None);
    }

    #[test]
    fn no_two_pods_have_the_same_two_categories() {
        assert_eq!(level(&BTreeSet::new(), 0).unwrap(), "s0:c0,c1");
        let near = PAIRS - 2;
        let mut taken = BTreeSet::new();
        for expected in ["s0:c1021,c1023", "s0:c0,c1", "s0:c0,c2", "s0:c1,c2", "s0:c0,c3"] {
            let next = level(&taken, near).unwrap();
            assert_eq!(next, expected);
            taken.insert(next);
        }
        assert!(level(&BTreeSet::new(), PAIRS - 1).unwrap() != "s0:c1022,c1023");
        let all: BTreeSet<String> = (0..PAIRS).map(pair).collect();
        assert_eq!(all.len(), usize::try_from(PAIRS).unwrap());
        assert_eq!(level(&all, 5), None);
    }
}
