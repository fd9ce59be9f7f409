//! The table of mounts, `/proc/self/mountinfo`, as `proc_pid_mountinfo(5)` tells it.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What a line of the table says.
pub struct Mount<'a> {
    /// The number of the mount.
    pub id: &'a str,
    /// `MAJOR:MINOR` of the file system.
    pub device: &'a str,
    /// The directory of the file system that is shown, and where.
    pub root: Cow<'a, Path>,
    /// Where it is.
    pub point: Cow<'a, Path>,
    /// Whether what is mounted below it comes to others.
    pub shared: bool,
    /// The type of the file system.
    pub kind: &'a str,
    /// What it was made of.
    pub source: &'a str,
    /// The options of the file system.
    pub options: &'a str,
}

/// Reads the table. Names of others that are no UTF-8 are in it with other letters.
pub fn read() -> io::Result<String> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(String::from_utf8(table).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The mounts of a table, the later ones on top of the earlier ones.
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

/// The kernel writes spaces, tabs, newlines and backslashes as `\` and three octal digits.
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
