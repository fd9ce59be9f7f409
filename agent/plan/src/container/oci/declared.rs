//! Volumes that an image declares.

use std::path::PathBuf;

use super::SpecError;

/// Maximum number of volumes that an image may declare, with a bound on the total length of their
/// paths.
pub(super) const MOST_VOLUMES: usize = 128;
pub(super) const MOST_PATHS: usize = 16 << 10;

/// Returns the volumes that an image declares (`Volumes`).
pub fn volumes<'a>(declared: impl Iterator<Item = &'a String>) -> Result<Vec<PathBuf>, SpecError> {
    let declared: Vec<&String> = declared.collect();
    let bytes = declared.iter().map(|path| path.len()).sum();
    if declared.len() > MOST_VOLUMES || bytes > MOST_PATHS {
        return Err(SpecError::Volumes(declared.len(), bytes));
    }
    Ok(declared.into_iter().map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_05_the_volumes_of_an_image_are_bounded() {
        let few: Vec<String> = vec!["/data".to_owned(); MOST_VOLUMES];
        assert_eq!(volumes(few.iter()).unwrap().len(), MOST_VOLUMES);
        let many = vec!["/data".to_owned(); MOST_VOLUMES + 1];
        assert_eq!(volumes(many.iter()), Err(SpecError::Volumes(MOST_VOLUMES + 1, 5 * 129)));
        let long = ["/a".repeat(1 << 19)];
        assert_eq!(volumes(long.iter()), Err(SpecError::Volumes(1, 1 << 20)));
    }
}
