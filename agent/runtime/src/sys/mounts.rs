//! Detached file systems and mounts.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

use super::{c_string, checked, owned};

const FSCONFIG_SET_STRING: libc::c_long = 1;
const FSCONFIG_CMD_CREATE: libc::c_long = 6;
const FSOPEN_CLOEXEC: libc::c_long = 1;
const FSMOUNT_CLOEXEC: libc::c_long = 1;
const OPEN_TREE_CLONE: libc::c_long = 1;
const OPEN_TREE_CLOEXEC: libc::c_long = 0o2_000_000;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_long = 4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_long = 0x40;

/// File system being configured (`fsopen`).
pub(crate) struct FileSystem(OwnedFd);

impl FileSystem {
    #[expect(unsafe_code, reason = "fsopen has no wrapper")]
    pub(crate) fn open(kind: &str) -> io::Result<Self> {
        let kind = c_string(kind.as_bytes())?;
        // SAFETY: the string outlives the call.
        owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) }).map(Self)
    }

    #[expect(unsafe_code, reason = "fsconfig has no wrapper")]
    fn configure(&self, command: libc::c_long, key: Option<&str>, value: Option<&[u8]>) -> io::Result<()> {
        let key = key.map(|key| c_string(key.as_bytes())).transpose()?;
        let value = value.map(c_string).transpose()?;
        let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let (key, value) = (pointer(&key), pointer(&value));
        // SAFETY: both strings outlive the call; null is allowed where the command takes none.
        checked(unsafe { libc::syscall(libc::SYS_fsconfig, self.0.as_raw_fd(), command, key, value, 0) }).map(drop)
    }

    /// Sets an option; an empty value is a flag.
    pub(crate) fn set(&self, key: &str, value: &[u8]) -> io::Result<()> {
        if value.is_empty() {
            return self.configure(0, Some(key), None);
        }
        self.configure(FSCONFIG_SET_STRING, Some(key), Some(value))
    }

    /// Creates the file system and a detached mount of it.
    #[expect(unsafe_code, reason = "fsmount has no wrapper")]
    pub(crate) fn mount(&self, attributes: u32) -> io::Result<Mount> {
        self.configure(FSCONFIG_CMD_CREATE, None, None)?;
        // SAFETY: integers only.
        let fd = unsafe { libc::syscall(libc::SYS_fsmount, self.0.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) };
        owned(fd).map(Mount)
    }
}

/// Detached mount.
pub(crate) struct Mount(pub(crate) OwnedFd);

impl Mount {
    /// Copies the mount at a path of this process's mount namespace.
    pub(crate) fn copy(path: &Path) -> io::Result<Self> {
        Self::open_tree(path, 0)
    }

    /// Copies a mount with private propagation: mounts below it do not reach the machine.
    pub(crate) fn private(path: &Path) -> io::Result<Self> {
        let copy = Self::copy(path)?;
        copy.propagate(libc::MS_PRIVATE)?;
        Ok(copy)
    }

    /// Copies the mount with all mounts below it.
    pub(crate) fn copy_tree(path: &Path) -> io::Result<Self> {
        Self::open_tree(path, libc::AT_RECURSIVE.into())
    }

    #[expect(unsafe_code, reason = "open_tree has no wrapper")]
    fn open_tree(path: &Path, more: libc::c_long) -> io::Result<Self> {
        let path = c_string(path.as_os_str().as_bytes())?;
        let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | more;
        // SAFETY: the string outlives the call.
        owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) }).map(Self)
    }

    /// Maps the IDs on the disk by a user namespace (`MOUNT_ATTR_IDMAP`). The mount must not have
    /// been attached.
    pub(crate) fn map_ids(&self, users: BorrowedFd<'_>) -> io::Result<()> {
        let users = u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?;
        self.change(
            0,
            &libc::mount_attr {
                attr_set: libc::MOUNT_ATTR_IDMAP,
                attr_clr: 0,
                propagation: 0,
                userns_fd: users,
            },
        )
    }

    /// Sets `MOUNT_ATTR_…` of this mount, without those below it.
    pub(crate) fn protect(&self, attributes: u64) -> io::Result<()> {
        self.change(
            0,
            &libc::mount_attr {
                attr_set: attributes,
                attr_clr: 0,
                propagation: 0,
                userns_fd: 0,
            },
        )
    }

    /// Sets `MOUNT_ATTR_…` of this mount and all below it.
    pub(crate) fn protect_all(&self, attributes: u64) -> io::Result<()> {
        self.change(
            libc::AT_RECURSIVE,
            &libc::mount_attr {
                attr_set: attributes,
                attr_clr: 0,
                propagation: 0,
                userns_fd: 0,
            },
        )
    }

    /// Sets `MS_PRIVATE`, `MS_SLAVE` or `MS_SHARED` of this mount and those below it.
    pub(crate) fn propagate(&self, how: libc::c_ulong) -> io::Result<()> {
        self.change(
            libc::AT_RECURSIVE,
            &libc::mount_attr {
                attr_set: 0,
                attr_clr: 0,
                propagation: how,
                userns_fd: 0,
            },
        )
    }

    /// True if its root is a directory.
    pub(crate) fn is_directory(&self) -> io::Result<bool> {
        let found = nix::sys::stat::fstat(&self.0)?;
        Ok(found.st_mode & libc::S_IFMT == libc::S_IFDIR)
    }

    #[expect(unsafe_code, reason = "mount_setattr has no wrapper")]
    fn change(&self, flags: libc::c_int, attributes: &libc::mount_attr) -> io::Result<()> {
        let (here, size) = (self.0.as_raw_fd(), size_of_val(attributes));
        // SAFETY: the structure and the empty string outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                here,
                c"".as_ptr(),
                libc::AT_EMPTY_PATH | flags,
                std::ptr::from_ref(attributes),
                size,
            )
        };
        checked(result).map(drop)
    }

    /// Attaches it at a path.
    pub(crate) fn attach(&self, target: &Path) -> io::Result<()> {
        let target = c_string(target.as_os_str().as_bytes())?;
        self.attach_to(libc::AT_FDCWD, &target, 0)
    }

    /// Attaches it over an open file or directory.
    pub(crate) fn attach_over(&self, target: &OwnedFd) -> io::Result<()> {
        self.attach_to(target.as_raw_fd(), c"", MOVE_MOUNT_T_EMPTY_PATH)
    }

    #[expect(unsafe_code, reason = "move_mount has no wrapper")]
    fn attach_to(&self, at: libc::c_int, target: &CStr, more: libc::c_long) -> io::Result<()> {
        let here = self.0.as_raw_fd();
        // SAFETY: both strings outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_mount,
                here,
                c"".as_ptr(),
                at,
                target.as_ptr(),
                MOVE_MOUNT_F_EMPTY_PATH | more,
            )
        };
        checked(result).map(drop)
    }
}
