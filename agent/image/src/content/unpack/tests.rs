use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::*;

/// Member of an archive: type flag, name, link target, mode, content.
pub(super) struct Member<'a> {
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
    pub(super) link: &'a [u8],
    pub(super) mode: u32,
    pub(super) data: &'a [u8],
}

pub(super) fn file<'a>(name: &'a str, data: &'a str) -> Member<'a> {
    Member {
        kind: b'0',
        name: name.as_bytes(),
        link: b"",
        mode: 0o644,
        data: data.as_bytes(),
    }
}

pub(super) fn directory(name: &str) -> Member<'_> {
    Member {
        kind: b'5',
        name: name.as_bytes(),
        link: b"",
        mode: 0o755,
        data: b"",
    }
}

pub(super) fn symlink<'a>(name: &'a str, target: &'a str) -> Member<'a> {
    Member {
        kind: b'2',
        name: name.as_bytes(),
        link: target.as_bytes(),
        mode: 0o777,
        data: b"",
    }
}

pub(super) fn hard_link<'a>(name: &'a str, target: &'a str) -> Member<'a> {
    Member {
        kind: b'1',
        name: name.as_bytes(),
        link: target.as_bytes(),
        mode: 0o644,
        data: b"",
    }
}

/// Tar stream; names that are too long for the header go into PAX records.
pub(super) fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for member in members {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::new(member.kind));
        header.set_mode(member.mode);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1_000_000);
        header.set_size(member.data.len() as u64);
        let mut records: Vec<(&str, &[u8])> = Vec::new();
        if member.name.len() > 100 || member.name.contains(&0) {
            records.push(("path", member.name));
        } else {
            header.as_mut_bytes()[..member.name.len()].copy_from_slice(member.name);
        }
        header.as_mut_bytes()[157..157 + member.link.len()].copy_from_slice(member.link);
        header.set_cksum();
        if !records.is_empty() {
            builder.append_pax_extensions(records.iter().copied()).unwrap();
        }
        builder.append(&header, member.data).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Unpacks into `layer` in a new directory that has a canary file outside of the layer.
pub(super) fn try_unpack(stream: &[u8], limits: &Limits) -> (tempfile::TempDir, Result<Unpacked, UnpackError>) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("layer")).unwrap();
    std::fs::write(directory.path().join("witness"), "untouched").unwrap();
    let result = unpack(stream, &directory.path().join("layer"), limits);
    (directory, result)
}

pub(super) fn unpacked(members: &[Member<'_>]) -> tempfile::TempDir {
    let (directory, result) = try_unpack(&archive(members), &Limits::default());
    result.unwrap();
    directory
}

/// Asserts that the layer is refused with this message and nothing outside of it has changed.
#[track_caller]
pub(super) fn refused(members: &[Member<'_>], text: &str) {
    let (directory, result) = try_unpack(&archive(members), &Limits::default());
    let error = crate::chain(&result.unwrap_err());
    assert!(error.contains(text), "{error}");
    untouched(directory.path());
}

#[track_caller]
pub(super) fn untouched(directory: &Path) {
    let witness = directory.join("witness");
    assert_eq!(std::fs::read_to_string(&witness).unwrap(), "untouched");
    assert_eq!(witness.metadata().unwrap().nlink(), 1);
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["layer", "witness"]);
}

#[test]
fn keeps_what_a_member_says() {
    let directory = unpacked(&[
        directory("bin/"),
        Member {
            kind: b'0',
            name: b"bin/su",
            link: b"",
            mode: 0o4755,
            data: b"#!",
        },
        hard_link("bin/also", "bin/su"),
        symlink("sh", "bin/su"),
        Member {
            kind: b'6',
            name: b"pipe",
            link: b"",
            mode: 0o600,
            data: b"",
        },
        file("made/by/need", "x"),
    ]);
    let layer = directory.path().join("layer");
    let su = layer.join("bin/su").symlink_metadata().unwrap();
    assert_eq!(
        (su.mode() & 0o7777, su.uid(), su.gid(), su.mtime(), su.nlink()),
        (0o4755, 7, 8, 1_000_000, 2)
    );
    assert_eq!(layer.join("bin/also").metadata().unwrap().ino(), su.ino());
    let link = layer.join("sh").symlink_metadata().unwrap();
    assert_eq!((link.uid(), link.mtime()), (7, 1_000_000));
    assert_eq!(layer.join("sh").read_link().unwrap(), Path::new("bin/su"));
    assert_eq!(layer.join("bin").metadata().unwrap().mtime(), 1_000_000);
    assert!(layer.join("pipe").metadata().unwrap().file_type().is_fifo());
}

#[test]
fn members_below_a_link_land_where_it_leads() {
    let (directory, result) = try_unpack(
        &archive(&[
            symlink("lib", "usr/lib"),
            // Before the directory.
            file("lib/a", "1"),
            directory("usr/lib"),
            hard_link("usr/b", "lib/a"),
            symlink("usr/lib/there", "/usr/share/../share/x"),
            file("lib/there/c", "2"),
            directory("lib/there/d"),
            file("lib/.wh.old", ""),
        ]),
        &Limits::default(),
    );
    let implicit = result.unwrap().implicit;
    assert_eq!(implicit, ["usr", "usr/share", "usr/share/x"].map(Path::new));
    let layer = directory.path().join("layer");
    assert_eq!(layer.join("lib").read_link().unwrap(), Path::new("usr/lib"));
    for (path, expected) in [("usr/lib/a", "1"), ("usr/b", "1"), ("usr/share/x/c", "2")] {
        assert_eq!(std::fs::read_to_string(layer.join(path)).unwrap(), expected, "{path}");
    }
    assert_eq!(layer.join("usr/lib/a").metadata().unwrap().nlink(), 2);
    assert_eq!(layer.join("usr/share/x/d").metadata().unwrap().mtime(), 1_000_000);
    assert!(
        layer
            .join("usr/lib/old")
            .symlink_metadata()
            .unwrap()
            .file_type()
            .is_char_device()
    );
}

#[test]
fn takes_gzip_and_zstd_and_finds_the_same_content() {
    let plain = archive(&[file("a", "1")]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(plain.as_slice(), 1).unwrap();
    let wanted = Digest::of(&plain);
    for stream in [&plain, &gzip, &zstd] {
        let (_directory, result) = try_unpack(stream, &Limits::default());
        let result = result.unwrap();
        assert_eq!(
            (result.diff_id, result.digest, result.size),
            (wanted.clone(), Digest::of(stream), stream.len() as u64)
        );
    }
}

#[test]
fn whiteouts_become_overlay_ones() {
    let directory = unpacked(&[
        directory("etc"),
        file("etc/.wh.passwd", ""),
        directory("var"),
        file("var/.wh..wh..opq", ""),
        file("var/new", "1"),
        file(".wh..wh.plnk", ""),
        file(".wh.again", ""),
        directory("again"),
    ]);
    let layer = directory.path().join("layer");
    let whiteout = layer.join("etc/passwd").symlink_metadata().unwrap();
    assert!(whiteout.file_type().is_char_device());
    assert_eq!(whiteout.rdev(), 0);
    let opaque = |path: &str| {
        let mut value = [0_u8; 4];
        rustix::fs::getxattr(layer.join(path), "trusted.overlay.opaque", &mut value)
            .map(|length| value[..length].to_vec())
    };
    assert_eq!(opaque("var").unwrap(), b"y");
    assert_eq!(opaque("again").unwrap(), b"y");
    opaque("etc").unwrap_err();
    assert!(layer.join("var/new").exists());
    assert!(!layer.join(".wh..wh.plnk").exists());
}

/// The result is independent of the umask.
#[test]
fn implied_directories_take_over_from_below() {
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let (lower, result) = try_unpack(
        &archive(&[Member {
            kind: b'5',
            name: b"tmp",
            link: b"",
            mode: 0o1777,
            data: b"",
        }]),
        &Limits::default(),
    );
    result.unwrap();
    let pipe = Member {
        kind: b'6',
        name: b"pipe",
        link: b"",
        mode: 0o666,
        data: b"",
    };
    let (upper, result) = try_unpack(&archive(&[file("tmp/a/b", "1"), pipe]), &Limits::default());
    let implicit = result.unwrap().implicit;
    assert_eq!(implicit, [Path::new("tmp"), Path::new("tmp/a")]);
    inherit(&upper.path().join("layer"), &implicit, &[lower.path().join("layer")]).unwrap();
    let found = upper.path().join("layer/tmp").metadata().unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid()), (0o1777, 7));
    assert_eq!(
        upper.path().join("layer/tmp/a").metadata().unwrap().mode() & 0o7777,
        0o755
    );
    let root = upper.path().join("layer").metadata().unwrap();
    assert_eq!(root.mode() & 0o7777, 0o755, "the layer's own");
    let pipe = upper.path().join("layer/pipe").metadata().unwrap();
    assert_eq!(pipe.mode() & 0o7777, 0o666, "a pipe");
    nix::sys::stat::umask(before);
}

#[test]
fn attributes_that_steer_the_host_are_left_out() {
    let mut builder = tar::Builder::new(Vec::new());
    let records: [(&str, &[u8]); 4] = [
        ("SCHILY.xattr.user.note", b"line\nline"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.security.selinux", b"x"),
    ];
    builder.append_pax_extensions(records).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("a").unwrap();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    builder.append(&header, [].as_slice()).unwrap();
    let (directory, result) = try_unpack(&builder.into_inner().unwrap(), &Limits::default());
    result.unwrap();
    let path = directory.path().join("layer/a");
    let mut buffer = [0_u8; 64];
    let mut get = |name: &str| rustix::fs::getxattr(&path, name, &mut buffer);
    get("trusted.overlay.redirect").unwrap_err();
    get("user.overlay.redirect").unwrap_err();
    let length = get("user.note").unwrap();
    assert_eq!(&buffer[..length], b"line\nline");
}

/// File whose size is only in the PAX header, as Go writes files of 8 GiB and more, followed by
/// another file.
fn huge(told: u64, data: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let told = told.to_string();
    builder.append_pax_extensions([("size", told.as_bytes())]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("huge").unwrap();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header.set_cksum();
    let mut stream = builder.get_ref().clone();
    stream.extend_from_slice(header.as_bytes());
    stream.extend_from_slice(data);
    stream.resize(stream.len().next_multiple_of(512), 0);
    stream.extend(archive(&[file("next", "after")]));
    stream
}

#[test]
fn a_file_may_have_its_size_in_the_extended_header_alone() {
    let data = "x".repeat(1300);
    let (directory, result) = try_unpack(&huge(1300, data.as_bytes()), &Limits::default());
    result.unwrap();
    let layer = directory.path().join("layer");
    assert_eq!(std::fs::read_to_string(layer.join("huge")).unwrap(), data);
    assert_eq!(std::fs::read_to_string(layer.join("next")).unwrap(), "after");
    // Binary size in the header itself.
    let mut stream = archive(&[file("a", "abc")]);
    let mut header = tar::Header::from_byte_slice(&stream[..512]).clone();
    header.as_mut_bytes()[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    header.set_cksum();
    stream[..512].copy_from_slice(header.as_bytes());
    let (directory, result) = try_unpack(&stream, &Limits::default());
    result.unwrap();
    assert_eq!(
        std::fs::read_to_string(directory.path().join("layer/a")).unwrap(),
        "abc"
    );
}

#[test]
fn a_size_that_is_not_there_is_an_error() {
    for told in [u64::MAX, u64::MAX - 600, 1 << 40, 1 << 33] {
        let (_directory, result) = try_unpack(&huge(told, b"short"), &Limits::default());
        result.unwrap_err();
        examine(huge(told, b"short").as_slice(), &Limits::default()).unwrap_err();
    }
}

#[test]
fn truncated_and_garbled_streams_are_errors() {
    let whole = archive(&[file("a", &"x".repeat(2000))]);
    let (_directory, result) = try_unpack(&whole[..1500], &Limits::default());
    result.unwrap_err();
    let (_directory, result) = try_unpack(&[0x1f, 0x8b, 1, 2, 3], &Limits::default());
    result.unwrap_err();
    let mut garbled = whole;
    garbled[3] ^= 1;
    let (_directory, result) = try_unpack(&garbled, &Limits::default());
    result.unwrap_err();
}
