//! Pool of directories made ahead. Creating a directory can wait for the disk several times, even
//! more if each goes into another block group; renaming one does not.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::spread::spread;

/// Idle time after which the pool is filled: starting pods have the disk for themselves.
const QUIET: Duration = Duration::from_millis(500);
/// Idle periods after which the filling thread ends: at one pod per second, the thread should not
/// be started each time.
const LINGER: u32 = 10;

/// Pool of directories, on the disk where they will be needed. They contain the given
/// subdirectories, and nothing else.
#[derive(Clone, Debug)]
pub struct Spares {
    home: Arc<Path>,
    /// Paths of the subdirectories, parents first.
    folders: &'static [&'static str],
    most: usize,
    stock: Arc<Mutex<Stock>>,
}

#[derive(Debug, Default)]
struct Stock {
    names: Vec<PathBuf>,
    /// Number of the next directory.
    number: u64,
    /// Total number taken.
    taken: u64,
    /// True while a thread makes more.
    filling: bool,
}

impl Spares {
    /// Keeps at most `most` directories in `home`, which it creates; those left by an earlier
    /// process count, whatever they contain.
    pub fn open(home: &Path, most: usize, folders: &'static [&'static str]) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(home)?;
        spread(home);
        let mut stock = Stock::default();
        for entry in fs::read_dir(home)? {
            let name = PathBuf::from(entry?.file_name());
            let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
            stock.number = stock.number.max(number.map_or(0, |number| number.saturating_add(1)));
            stock.names.push(name);
        }
        let spares = Self {
            home: home.into(),
            folders,
            most,
            stock: Arc::new(Mutex::new(stock)),
        };
        spares.fill();
        Ok(spares)
    }

    /// Makes a directory from the pool, or an empty one if the pool is empty. Fails if it exists
    /// already.
    pub fn make(&self, path: &Path, mode: u32) -> io::Result<()> {
        let spare = {
            let mut stock = self.stock();
            stock.taken += 1;
            stock.names.pop()
        };
        self.fill();
        if let Some(name) = spare {
            let spare = self.home.join(&name);
            let placed = fs::set_permissions(&spare, fs::Permissions::from_mode(mode))
                .and_then(|()| Ok(renameat_with(CWD, &spare, CWD, path, RenameFlags::NOREPLACE)?));
            match placed {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.stock().names.push(name);
                    return Err(error);
                }
                // `home` is on another file system, or the spare was removed by another process.
                Err(_) => drop(fs::remove_dir_all(&spare)),
            }
        }
        fs::DirBuilder::new().mode(mode).create(path)
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts filling the pool in idle time.
    fn fill(&self) {
        {
            let mut stock = self.stock();
            if stock.filling || stock.names.len() >= self.most {
                return;
            }
            stock.filling = true;
        }
        let spares = self.clone();
        let thread = std::thread::Builder::new().name("spares".to_owned()).spawn(move || {
            if let Err(error) = spares.make_ahead() {
                tracing::warn!(directory = %spares.home.display(), %error, "a directory could not be made ahead");
                spares.stock().filling = false;
            }
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "directories could not be made ahead");
            self.stock().filling = false;
        }
    }

    fn make_ahead(&self) -> io::Result<()> {
        let (mut known, mut lingered) = (None, 0);
        loop {
            let (taken, number) = {
                let mut stock = self.stock();
                // The owner is gone.
                if Arc::strong_count(&self.stock) == 1 {
                    return Ok(());
                }
                let enough = stock.names.len() >= self.most;
                lingered = if enough { lingered + 1 } else { 0 };
                if lingered > LINGER {
                    // The next taker starts another thread.
                    stock.filling = false;
                    return Ok(());
                }
                stock.number += u64::from(!enough);
                (stock.taken, (!enough).then_some(stock.number))
            };
            let Some(number) = number.filter(|_| known.replace(taken) == Some(taken)) else {
                std::thread::park_timeout(QUIET);
                continue;
            };
            let name = PathBuf::from(number.to_string());
            match self.make_one(&self.home.join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => {}
                Ok(()) => self.stock().names.push(name),
            }
        }
    }

    fn make_one(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(path)?;
        // An incomplete one is not counted.
        self.furnish(path)
            .inspect_err(|_| drop(fs::remove_dir_all(path)))
            .map_err(|error| io::Error::other(format!("furnish {}: {error}", path.display())))
    }

    fn furnish(&self, path: &Path) -> io::Result<()> {
        for folder in self.folders {
            let folder = path.join(folder);
            fs::create_dir(&folder)?;
            // Independent of the process's umask.
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    fn filled(spares: &Spares) {
        let deadline = monotonic() + Duration::from_secs(20);
        while spares.stock().names.len() < spares.most {
            assert!(monotonic() < deadline, "{:?}", spares.stock());
            std::thread::yield_now();
        }
    }

    fn entries(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn directories_are_there_before_they_are_needed_and_are_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("spare");
        let spares = Spares::open(&home, 3, &[]).unwrap();
        filled(&spares);
        assert_eq!(entries(&home), 3);
        for name in ["a", "b", "c", "d", "e"] {
            let path = folder.path().join(name);
            spares.make(&path, 0o750).unwrap();
            assert_eq!(entries(&path), 0);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
        }
        filled(&spares);
        assert_eq!(entries(&home), 3);
        drop(spares);
        let spares = Spares::open(&home, 3, &[]).unwrap();
        spares.make(&folder.path().join("f"), 0o700).unwrap();
        filled(&spares);
        assert_eq!(entries(&home), 3, "what an earlier process left is used");
    }

    #[test]
    fn what_exists_is_not_replaced_and_what_was_tidied_up_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("spare");
        let spares = Spares::open(&home, 2, &["in", "in/deeper"]).unwrap();
        filled(&spares);
        let path = folder.path().join("a");
        fs::create_dir(&path).unwrap();
        let error = spares.make(&path, 0o700).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        for entry in fs::read_dir(&home).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        spares.make(&folder.path().join("b"), 0o700).unwrap();
        assert_eq!(entries(&folder.path().join("b")), 0, "made when it was asked for");
        filled(&spares);
        spares.make(&folder.path().join("d"), 0o700).unwrap();
        assert!(folder.path().join("d").join("in").join("deeper").is_dir());
        let error = spares.make(&folder.path().join("none").join("c"), 0o700).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
