//! Names of interfaces and files, and validation of sandbox ids that become part of them.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::Error;

/// Maximum length of an interface's name, in bytes.
const LONGEST_LINK: usize = 15;
/// Maximum length of an interface's alias, in bytes (`IFALIASZ`).
const LONGEST_ALIAS: usize = 255;
/// Suffix of the name of a bridge's VXLAN interface.
const TUNNEL: &str = "-vx";
/// Prefix of the names of veth pairs' host ends.
const VETH: &str = "veth";

/// Refuses a sandbox id that could escape the directory of the records.
pub(crate) fn sandbox(id: &str) -> Result<(), Error> {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if id.is_empty() || id.len() > 64 || id.starts_with('.') || !id.chars().all(safe) {
        return Err(Error::InvalidId(id.to_owned()));
    }
    Ok(())
}

/// Refuses a name that is invalid for an interface or has a meaning in nft's syntax.
pub(super) fn bridge(name: &str) -> Result<(), Error> {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let starts = name.chars().next().is_some_and(|letter| letter.is_ascii_alphabetic());
    if !starts || name.len() > LONGEST_LINK || !name.chars().all(safe) {
        return Err(Error::InvalidId(name.to_owned()));
    }
    Ok(())
}

/// Directory in which the namespaces of slots are mounted.
pub(super) fn slots(state: &Path) -> PathBuf {
    state.join("slots")
}

/// Owner's mark for the objects of a state folder, at most as long as an interface's alias may be.
pub(super) fn owner(state: &Path) -> String {
    let path = state.display().to_string();
    if path.len() <= LONGEST_ALIAS {
        return path;
    }
    format!("skiff {:016x}", hash(path.as_bytes()))
}

/// Host end of a sandbox's veth pair: deterministic for a sandbox and a state folder, so that any
/// process can delete it, and distinct for different state folders.
pub(crate) fn host_link(state: &Path, sandbox: &str) -> String {
    format!("{VETH}{:011x}", hash(state.join(sandbox).as_os_str().as_bytes()) >> 20)
}

/// True if an interface's name is that of a veth pair's host end.
pub(super) fn is_host_link(name: &str) -> bool {
    let digits = name.strip_prefix(VETH).unwrap_or_default();
    digits.len() == LONGEST_LINK - VETH.len() && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// VXLAN interface of the cluster with this bridge.
pub(super) fn tunnel(bridge: &str) -> String {
    if bridge.len() + TUNNEL.len() <= LONGEST_LINK {
        return format!("{bridge}{TUNNEL}");
    }
    format!("vx{:011x}", hash(bridge.as_bytes()) >> 20)
}

/// Metric of routes to other nodes' pods, which distinguishes them from those of another cluster on
/// the machine. An operator's own routes without a metric take precedence.
pub(super) fn metric(owner: &str) -> u32 {
    let own = hash(owner.as_bytes()) >> 40;
    u32::try_from(own).unwrap_or_default() | 1 << 24
}

/// FNV-1a: sufficiently uniform over the 44 bits that fit into a name, and the same in every build.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{bridge, host_link, is_host_link, metric, owner, sandbox, tunnel};

    #[test]
    fn names_fit_and_differ() {
        let (one, two) = (Path::new("/one"), Path::new("/two"));
        assert_eq!(host_link(one, "a").len(), 15);
        assert!(is_host_link(&host_link(one, "a")) && !is_host_link("vethernet") && !is_host_link("up0"));
        assert_eq!(tunnel("skiff-ab12cd"), "skiff-ab12cd-vx");
        assert!(tunnel("thirteen-byte").len() <= 15 && tunnel("thirteen-byte") != tunnel("thirteen-bytf"));
        assert_ne!(metric("/one"), metric("/two"));
        assert_ne!(host_link(one, "pod-1"), host_link(one, "pod-2"));
        assert_ne!(host_link(one, ".slot-0"), host_link(two, ".slot-0"), "of two clusters");
        assert_eq!(
            host_link(Path::new(""), "a"),
            "vethaf63dc4c860",
            "as they were before the folder counted"
        );
    }

    #[test]
    fn the_mark_of_an_owner_fits_into_an_alias() {
        assert_eq!(owner(Path::new("/var/lib/skiff")), "/var/lib/skiff");
        let long = |last: char| owner(Path::new(&format!("/{}{last}", "x".repeat(300))));
        assert!(long('a').len() <= 255 && long('a') != long('b'));
    }

    #[test]
    fn names_that_could_be_paths_are_refused() {
        for id in ["", ".", "..", "a/b", "../a", "a\0b", &"a".repeat(65), "ä"] {
            assert!(sandbox(id).is_err(), "{id:?}");
        }
        for name in ["", "1a", "a/b", "a;b", "a b", "sixteen-letters-"] {
            assert!(bridge(name).is_err(), "{name:?}");
        }
        assert!(sandbox("0f3c-web_1.2").is_ok() && bridge("skiff0").is_ok());
    }
}
