//! Names of interfaces and files, and which sandbox ids may become part of them.

use std::path::{Path, PathBuf};

use crate::Error;

/// The longest name of an interface, in bytes.
const LONGEST_LINK: usize = 15;

/// Refuses a sandbox id that could leave the folder of the records.
pub(crate) fn sandbox(id: &str) -> Result<(), Error> {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if id.is_empty() || id.len() > 64 || id.starts_with('.') || !id.chars().all(safe) {
        return Err(Error::InvalidId(id.to_owned()));
    }
    Ok(())
}

/// Refuses a name that no interface can have, or that could mean something else to nft.
pub(super) fn bridge(name: &str) -> Result<(), Error> {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let starts = name.chars().next().is_some_and(|letter| letter.is_ascii_alphabetic());
    if !starts || name.len() > LONGEST_LINK || !name.chars().all(safe) {
        return Err(Error::InvalidId(name.to_owned()));
    }
    Ok(())
}

/// Where the namespaces of slots are held.
pub(super) fn slots(state: &Path) -> PathBuf {
    state.join("slots")
}

/// The machine's end of a sandbox's veth pair: the same for the same sandbox, so that any process can remove it.
pub(crate) fn host_link(sandbox: &str) -> String {
    // FNV-1a: spreads well enough over the 44 bits that fit into a name, and is the same in every build.
    let hash = sandbox.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("veth{:011x}", hash >> 20)
}

#[cfg(test)]
mod tests {
    use super::{bridge, host_link, sandbox};

    #[test]
    fn names_fit_and_differ() {
        assert_eq!(host_link("a").len(), 15);
        assert_ne!(host_link("pod-1"), host_link("pod-2"));
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
