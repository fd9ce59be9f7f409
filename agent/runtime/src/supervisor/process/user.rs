//! Resolves the user of a container's process by the root file system's `/etc/passwd` and
//! `/etc/group`.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};

use crate::sys::open_in_root;
use crate::{Refusal, User};

/// Limit of read files: in longer ones the user is not found.
const FILE_LIMIT: u64 = 1 << 20;

/// Credentials of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) supplementary: Vec<u32>,
    pub(crate) home: Option<String>,
}

/// Resolves the user below `rootfs`; links cannot lead out of it.
pub(in crate::supervisor) fn resolve(rootfs: &Path, user: &User) -> Result<Identity, Refusal> {
    let root = open(
        rootfs,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| Refusal::failed("open the root file system", &error))?;
    resolve_in(&root, user)
}

/// Resolves the user below an open root.
pub(crate) fn resolve_in(root: &OwnedFd, user: &User) -> Result<Identity, Refusal> {
    let identity = decide(user, &read(root, "etc/passwd"), &read(root, "etc/group"))?;
    if user.must_not_be_root && identity.uid == 0 {
        Err(Refusal::RunsAsRoot)
    } else {
        Ok(identity)
    }
}

fn read(root: &OwnedFd, path: &str) -> String {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let Ok(file) = open_in_root(root, Path::new(path), flags) else {
        return String::new();
    };
    let regular = |found: nix::sys::stat::FileStat| found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    if !fstat(&file).is_ok_and(regular) {
        return String::new();
    }
    let mut bytes = Vec::new();
    match File::from(file).take(FILE_LIMIT).read_to_end(&mut bytes) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

fn fields(line: &str) -> Vec<&str> {
    line.trim().split(':').collect()
}

/// Parses an ID; refuses `-1` and numbers outside the kernel's range instead of wrapping them.
fn number(text: &str, whole: &str) -> Result<Option<u32>, Refusal> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let refuse = || Refusal::User {
        user: whole.to_owned(),
        reason: "ids must be within 0 to 2147483647".to_owned(),
    };
    let id = text.parse::<i32>().ok().and_then(|id| u32::try_from(id).ok());
    id.map(Some).ok_or_else(refuse)
}

fn decide(user: &User, passwd: &str, group: &str) -> Result<Identity, Refusal> {
    let whole = user.user.as_str();
    let refuse = |reason: &str| Refusal::User {
        user: whole.to_owned(),
        reason: reason.to_owned(),
    };
    let (name, named_group) = match whole.split_once(':') {
        Some((name, group)) => (name, Some(group).filter(|group| !group.is_empty())),
        None => (whole, None),
    };
    let name = if name.is_empty() { "0" } else { name };
    let id = number(name, whole)?;
    let entry = passwd.lines().map(fields).find(|entry| match id {
        Some(id) => entry.get(2).and_then(|field| field.parse().ok()) == Some(id),
        None => entry.first() == Some(&name),
    });
    let field = |index: usize| entry.as_ref().and_then(|entry| entry.get(index).copied());
    let uid = match id {
        Some(id) => id,
        None => match field(2) {
            Some(field) => number(field, whole)?.ok_or_else(|| refuse("its passwd entry has no uid"))?,
            None => return Err(refuse("unable to find user: no matching entries in passwd file")),
        },
    };
    let find_group = |wanted: &str| -> Result<u32, Refusal> {
        if let Some(gid) = number(wanted, whole)? {
            return Ok(gid);
        }
        let entry = group.lines().map(fields).find(|entry| entry.first() == Some(&wanted));
        let gid = entry
            .and_then(|entry| entry.get(2).map(|gid| number(gid, whole)))
            .transpose()?
            .flatten();
        gid.ok_or_else(|| refuse("unable to find group: no matching entries in group file"))
    };
    let gid = match (user.group, named_group) {
        (Some(gid), _) => gid,
        (None, Some(wanted)) => find_group(wanted)?,
        (None, None) => field(3)
            .map(|gid| number(gid, whole))
            .transpose()?
            .flatten()
            .unwrap_or(0),
    };
    let mut supplementary = user.supplementary.clone();
    if let Some(login) = field(0).filter(|_| !user.strict_groups) {
        supplementary.extend(memberships(group, login));
    }
    // As in other runtimes: a process cannot escape a restriction on its primary group by dropping
    // that group.
    supplementary.push(gid);
    supplementary.sort_unstable();
    supplementary.dedup();
    Ok(Identity {
        uid,
        gid,
        supplementary,
        home: field(5).filter(|home| !home.is_empty()).map(str::to_owned),
    })
}

fn memberships(group: &str, login: &str) -> Vec<u32> {
    let member = |entry: &Vec<&str>| {
        entry
            .get(3)
            .is_some_and(|all| all.split(',').any(|member| member == login))
    };
    group
        .lines()
        .map(fields)
        .filter(member)
        .filter_map(|entry| entry.get(2)?.parse::<u32>().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{decide, resolve};
    use crate::{Refusal, User};

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nnginx:x:101:102:n:/nginx:/bin/false\nevil:x:4294967296:0::/:\n";
    const GROUP: &str = "root:x:0:\nnginx:x:102:\nadm:x:4:nginx,other\nwheel:x:10:root\n";

    fn check(text: &str, expected: &str) {
        let user = User {
            user: text.to_owned(),
            ..User::default()
        };
        let found = match decide(&user, PASSWD, GROUP) {
            Ok(found) => format!(
                "{}:{} {:?} {}",
                found.uid,
                found.gid,
                found.supplementary,
                found.home.unwrap_or_default()
            ),
            Err(_) => "refused".to_owned(),
        };
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        check("", "0:0 [0, 10] /root");
        check("nginx", "101:102 [4, 102] /nginx");
        check("101", "101:102 [4, 102] /nginx");
        check("nginx:root", "101:0 [0, 4] /nginx");
        check("77:88", "77:88 [88] ");
        check("77", "77:0 [0] ");
    }

    #[test]
    fn attack_07_ids_out_of_range_and_unknown_names_are_refused() {
        for text in [
            "4294967297",
            "4294967296",
            "-1",
            "2147483648",
            "nobody-here",
            "0:nobody-here",
            "1:-1",
            "evil",
        ] {
            check(text, "refused");
        }
    }

    #[test]
    fn attack_07_no_link_of_the_image_leads_to_the_hosts_users() {
        let rootfs = tempfile::tempdir().unwrap();
        std::fs::create_dir(rootfs.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", rootfs.path().join("etc/passwd")).unwrap();
        let user = User {
            user: "daemon".to_owned(),
            ..User::default()
        };
        assert!(matches!(resolve(rootfs.path(), &user), Err(Refusal::User { .. })));
        let root = User {
            must_not_be_root: true,
            ..User::default()
        };
        assert_eq!(resolve(rootfs.path(), &root), Err(Refusal::RunsAsRoot));
    }
}
