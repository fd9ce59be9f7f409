//! Mount table, `/proc/self/mountinfo`, as in `proc_pid_mountinfo(5)`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Line of the mount table.
pub struct Mount<'a> {
    /// Mount ID.
    pub id: &'a str,
    /// `MAJOR:MINOR` of the file system.
    pub device: &'a str,
    /// Directory of the file system that forms the root of the mount.
    pub root: Cow<'a, Path>,
    /// Mount point.
    pub point: Cow<'a, Path>,
    /// True for a shared mount: mounts below it propagate to its peers.
    pub shared: bool,
    /// File system type.
    pub kind: &'a str,
    /// Mount source, such as a device.
    pub source: &'a str,
    /// Options of the superblock.
    pub options: &'a str,
}

/// Reads the mount table. Invalid UTF-8 in names is replaced.
pub fn read() -> io::Result<String> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(String::from_utf8(table).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Parses a mount table; later mounts lie on top of earlier ones.
pub fn parse(table: &str) -> impl Iterator<Item = Mount<'_>> {
    table.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let (mut mount, mut file_system) = (mount.split(' '), file_system.split(' '));
        Some(Mount {
            id: mount.next()?,
            device: mount.nth(1)?,
            root: unescaped(mount.next()?),
            point: unescaped(mount.next()?),
            shared: mount.any(|field| field.starts_with("shared:")),
            kind: file_system.next()?,
            source: file_system.next()?,
            options: file_system.next().unwrap_or_default(),
        })
    })
}

/// Decodes the kernel's octal escapes of spaces, tabs, newlines and backslashes.
fn unescaped(field: &str) -> Cow<'_, Path> {
    if !field.contains('\\') {
        return Path::new(field).into();
    }
    let (mut rest, mut path) = (field.as_bytes(), Vec::with_capacity(field.len()));
    while let Some((first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let octal = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(octal.unwrap_or(*first));
        rest = after.get(if octal.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    PathBuf::from(OsString::from_vec(path)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_the_kernel_writes_them() {
        let table = "36 35 98:0 /a\\040b /c\\134d\\012e rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue\n\
                     37 35 0:5 / /f\\ rw - tmpfs tmpfs rw\nhalf a line\n";
        let all: Vec<Mount<'_>> = parse(table).collect();
        let told = |mount: &Mount<'_>| format!("{} {:?} {:?} {}", mount.id, mount.root, mount.point, mount.shared);
        let all: Vec<String> = all.iter().map(told).collect();
        assert_eq!(all, [r#"36 "/a b" "/c\\d\ne" true"#, r#"37 "/" "/f\\" false"#]);
        assert!(parse(&read().unwrap()).any(|mount| mount.point == Path::new("/")));
    }
}
