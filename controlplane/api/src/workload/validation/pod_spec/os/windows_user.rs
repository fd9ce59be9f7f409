//! Windows user names: `USER`, `DOMAIN\USER`.

/// Maximum length of a domain or a user, plus one for a domain.
const DOMAIN_LIMIT: usize = 256;
const USER_LIMIT: usize = 104;

/// Problems of a user name.
pub(super) fn problems(name: &str) -> Vec<String> {
    let one = |problem: &str| vec![format!("runAsUserName {problem}")];
    if name.is_empty() {
        return one("cannot be an empty string");
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return one("cannot contain control characters");
    }
    let (domain, user) = match name.split_once('\\') {
        Some((_, rest)) if rest.contains('\\') => return one("cannot contain more than one backslash"),
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let user_letters = "\"/\\:;|=,+*?<>@[]";
    let told = [
        (
            domain.is_some_and(|domain| domain.len() >= DOMAIN_LIMIT),
            format!("Domain length must be under {DOMAIN_LIMIT} characters"),
        ),
        (
            domain.is_some_and(|domain| !is_netbios(domain) && !is_dns(domain)),
            "Domain doesn't match the NetBios nor the DNS format".to_owned(),
        ),
        (user.is_empty(), "User cannot be empty".to_owned()),
        (
            user.len() > USER_LIMIT,
            format!("User length must not be longer than {USER_LIMIT} characters"),
        ),
        (
            !user.is_empty() && user.chars().all(|letter| ". ".contains(letter)),
            "User cannot contain only periods or spaces".to_owned(),
        ),
        (
            user.contains(|letter| user_letters.contains(letter)),
            format!("User cannot contain the following characters: {user_letters}"),
        ),
    ];
    let told = told.into_iter().filter(|(is_so, _)| *is_so);
    told.map(|(_, problem)| format!("runAsUserName's {problem}")).collect()
}

/// True for up to fifteen characters that do not start with a period.
fn is_netbios(domain: &str) -> bool {
    let count = domain.chars().count();
    (1..=15).contains(&count) && !domain.starts_with('.') && !domain.contains(|letter| "\\/:*?\"<>|".contains(letter))
}

/// True for labels of up to 63 characters, separated by periods.
fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(plain) && !label.starts_with('-') && !label.ends_with('-')
    })
}
