//! User that a container runs as.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// User of a container's process. Names are resolved with the image's `/etc/passwd` and
/// `/etc/group`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// `""` (root), `name`, `uid`, `name:group`, `uid:gid`.
    pub user: String,
    /// Overrides the primary group of `user`.
    pub group: Option<u32>,
    /// Groups besides the primary one.
    pub supplementary: Vec<u32>,
    /// Refuse to run as root.
    pub must_not_be_root: bool,
    /// Ignore the user's groups in the image.
    pub strict_groups: bool,
}

/// An invalid user or group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// The id is out of range.
    #[error("{field} {value} is not between 0 and 2147483647")]
    OutOfRange {
        /// The field, or `image user`.
        field: &'static str,
        /// The user as given.
        value: String,
    },
    /// The user is root, and must not be.
    #[error("container's runAsUser breaks non-root policy")]
    BreaksNonRoot,
    /// The image's user is a name that only the image can resolve, and it must not be root.
    #[error("container has runAsNonRoot and image has non-numeric user ({0}), cannot verify user is non-root")]
    NotNumeric(String),
}

/// Returns the user of a container: its own settings take precedence over the pod's, and those over
/// the image's.
pub fn build(spec: &PodSpec, container: &Container, image_user: Option<&str>) -> Result<User, UserError> {
    let pod = spec.security_context.as_ref();
    let own = container.security_context.as_ref();
    let uid = own
        .and_then(|own| own.run_as_user)
        .or_else(|| pod.and_then(|pod| pod.run_as_user));
    let gid = own
        .and_then(|own| own.run_as_group)
        .or_else(|| pod.and_then(|pod| pod.run_as_group));
    let must_not_be_root = own
        .and_then(|own| own.run_as_non_root)
        .or_else(|| pod.and_then(|pod| pod.run_as_non_root))
        .unwrap_or(false);
    if must_not_be_root && uid == Some(0) {
        return Err(UserError::BreaksNonRoot);
    }
    let user = match uid {
        Some(uid) => identifier("runAsUser", uid)?.to_string(),
        None => image(image_user.unwrap_or_default())?,
    };
    let name = user.split(':').next().unwrap_or_default();
    if must_not_be_root && name.parse::<i64>().is_err() && !name.is_empty() {
        return Err(UserError::NotNumeric(name.to_owned()));
    }
    let mut supplementary = Vec::new();
    let groups = pod.and_then(|pod| pod.supplemental_groups.as_deref()).unwrap_or(&[]);
    for group in groups.iter().copied().chain(pod.and_then(|pod| pod.fs_group)) {
        supplementary.push(identifier("supplementalGroups", group)?);
    }
    let group = gid.map(|gid| identifier("runAsGroup", gid)).transpose()?;
    Ok(User {
        user,
        group,
        supplementary,
        must_not_be_root,
        strict_groups: pod.and_then(|pod| pod.supplemental_groups_policy.as_deref()) == Some("Strict"),
    })
}

fn identifier(field: &'static str, value: i64) -> Result<u32, UserError> {
    u32::try_from(value)
        .ok()
        .filter(|value| i32::try_from(*value).is_ok())
        .ok_or_else(|| UserError::OutOfRange {
            field,
            value: value.to_string(),
        })
}

/// Checks numeric ids in an image's user; names are resolved later.
fn image(user: &str) -> Result<String, UserError> {
    for part in user.split(':') {
        let numeric = part.strip_prefix('-').unwrap_or(part);
        if !numeric.is_empty() && numeric.bytes().all(|byte| byte.is_ascii_digit()) {
            let refused = || UserError::OutOfRange {
                field: "image user",
                value: part.to_owned(),
            };
            let Ok(number) = part.parse::<i64>() else {
                return Err(refused());
            };
            identifier("image user", number)?;
        }
    }
    Ok(user.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_must_not_be_root_is_known_by_a_number() {
        let spec = PodSpec::default();
        let told = |image: &str, own: serde_json::Value| {
            let container = serde_json::json!({"name": "c", "securityContext": own});
            let container: Container = serde_json::from_value(container).unwrap();
            match build(&spec, &container, Some(image)) {
                Ok(user) => user.user,
                Err(error) => error.to_string(),
            }
        };
        let must = || serde_json::json!({"runAsNonRoot": true});
        let refused = |name: &str| {
            format!(
                "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
            )
        };
        assert_eq!(told("www", must()), refused("www"));
        assert_eq!(told("root:0", must()), refused("root"));
        assert_eq!(told("33:www", must()), "33:www");
        // The check for root follows when the container is created.
        assert_eq!(told("", must()), "");
        assert_eq!(
            told("www", serde_json::json!({"runAsNonRoot": true, "runAsUser": 7})),
            "7"
        );
        assert_eq!(told("www", serde_json::json!({"runAsNonRoot": false})), "www");
    }

    #[test]
    fn users_that_overflow_are_refused() {
        let (spec, container) = (PodSpec::default(), Container::default());
        for user in ["4294967297", "-1", "0:4294967296", "2147483648", "99999999999999999999"] {
            assert!(build(&spec, &container, Some(user)).is_err(), "{user}");
        }
        for user in ["", "nginx", "1000", "1000:1000", "www-data:www-data"] {
            assert_eq!(build(&spec, &container, Some(user)).unwrap().user, user);
        }
    }
}
