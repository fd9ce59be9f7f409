//! Malicious layers.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use super::tests::{Member, archive, directory, file, hard_link, refused, symlink, try_unpack, unpacked, untouched};
use super::*;

#[test]
fn attack_03_names_that_leave_the_layer() {
    refused(&[file("../witness", "x")], "\"..\" component");
    refused(&[file("a/../../witness", "x")], "\"..\" component");
    refused(
        &[Member {
            kind: b'0',
            name: b"a\0b",
            link: b"",
            mode: 0o644,
            data: b"",
        }],
        "NUL",
    );
    refused(&[file(&"n".repeat(5000), "x")], "longer than 4096 bytes");
    refused(&[file(&"n".repeat(300), "x")], "longer than 255 bytes");
    refused(&[file("..", "x")], "\"..\" component");
    refused(&[file("./", "x"), file(".", "x")], "root of a layer");
}

#[test]
fn attack_03_absolute_names_stay_below() {
    let name = format!("/skiff-{}/witness", std::process::id());
    let directory = unpacked(&[file(&name, "inside")]);
    assert_eq!(
        std::fs::read_to_string(directory.path().join("layer").join(name.trim_start_matches('/'))).unwrap(),
        "inside"
    );
    assert!(!Path::new(&name).exists());
    untouched(directory.path());
}

#[test]
fn attack_04_links_never_lead_out_of_the_layer() {
    let name = format!("skiff-{}", std::process::id());
    for (target, expected) in [
        ("..", ""),
        ("../../../../..", ""),
        ("/", ""),
        ("/..", ""),
        ("/etc", "etc/"),
        ("none/../../../etc", "etc/"),
        ("/proc/self/root/etc", "proc/self/root/etc/"),
    ] {
        let paths = ["", ".wh.x", "new/"].map(|prefix| format!("a/{prefix}{name}"));
        let [new, hidden, below] = paths.each_ref().map(|path| file(path, "inside"));
        let members = [
            symlink("a", target),
            directory("b"),
            new,
            hidden,
            below,
            directory("a/witness"),
        ];
        let made = unpacked(&members);
        untouched(made.path());
        let layer = made.path().join("layer").join(expected);
        for path in [&name, &format!("new/{name}")] {
            assert_eq!(std::fs::read_to_string(layer.join(path)).unwrap(), "inside", "{target}");
        }
        assert!(layer.join("witness").is_dir() && layer.join(format!("x{name}")).symlink_metadata().is_ok());
        assert!(!Path::new("/etc").join(&name).exists() && !Path::new("/").join(&name).exists());
    }
    // Through several links, each of which is harmless.
    let made = unpacked(&[
        symlink("a", "b/.."),
        symlink("b", "c/.."),
        symlink("c", ".."),
        file("a/witness", "x"),
    ]);
    untouched(made.path());
    assert!(made.path().join("layer/witness").is_file());
    let made = unpacked(&[symlink("a", ".."), file("a/.wh..wh..opq", "")]);
    rustix::fs::getxattr(made.path(), "trusted.overlay.opaque", &mut [0_u8; 4]).unwrap_err();
    let round = "too many symbolic links";
    refused(&[symlink("a", "a"), file("a/x", "")], round);
    refused(&[symlink("a", "/b/c"), symlink("b", "a"), file("b/x", "")], round);
    refused(&[symlink("a", ".."), hard_link("b", "a/witness")], "not in the layer");
    refused(&[symlink("a", "/etc"), hard_link("b", "a/passwd")], "not in the layer");
    refused(&[symlink("a", "f"), file("f", ""), file("a/x", "")], "no directory");
    refused(&[hard_link("b", "../witness")], "\"..\" component");
    refused(&[hard_link("b", "/etc/passwd")], "not in the layer");
    refused(&[file("x/.wh...", "")], "must name a file");
    refused(&[file("x", ""), file("x/y", "")], "no directory");
}

#[test]
fn attack_04_a_link_in_the_way_is_replaced_not_followed() {
    let directory = unpacked(&[
        symlink("file", "../witness"),
        Member {
            kind: b'0',
            name: b"file",
            link: b"",
            mode: 0o777,
            data: b"inside",
        },
        symlink("directory", ".."),
        Member {
            kind: b'5',
            name: b"directory",
            link: b"",
            mode: 0o777,
            data: b"",
        },
        symlink("hard", "../witness"),
        hard_link("alias", "hard"),
        file("alias", "inside"),
        directory("full/of/things"),
        file("full", "inside"),
    ]);
    untouched(directory.path());
    assert_eq!(
        directory.path().join("witness").metadata().unwrap().mode() & 0o777,
        0o644
    );
    let layer = directory.path().join("layer");
    assert_eq!(std::fs::read_to_string(layer.join("file")).unwrap(), "inside");
    assert!(layer.join("directory").symlink_metadata().unwrap().is_dir());
    assert!(layer.join("full").is_file());
}

#[test]
fn attack_04_devices_are_left_out() {
    let directory = unpacked(&[Member {
        kind: b'3',
        name: b"kmem",
        link: b"",
        mode: 0o666,
        data: b"",
    }]);
    assert!(directory.path().join("layer").read_dir().unwrap().next().is_none());
}

#[test]
fn attack_05_bombs_end_at_a_bound() {
    let small = Limits {
        layer_bytes: 1 << 20,
        entries: 100,
        depth: 50,
        ..Limits::default()
    };
    let bomb = |stream: &[u8], text: &str| {
        let (_directory, result) = try_unpack(stream, &small);
        let error = crate::chain(&result.unwrap_err());
        assert!(error.contains(text), "{error}");
    };
    let zeroes = vec![0_u8; 64 << 20];
    let big = archive(&[Member {
        kind: b'0',
        name: b"big",
        link: b"",
        mode: 0o644,
        data: &zeroes,
    }]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&big).unwrap();
    bomb(&gzip.finish().unwrap(), "1048576 bytes");
    bomb(&zstd::encode_all(big.as_slice(), 1).unwrap(), "1048576 bytes");
    // Padding after the end of the archive is read for the digest, so it counts, too.
    bomb(&zstd::encode_all(zeroes.as_slice(), 1).unwrap(), "1048576 bytes");
    let names: Vec<String> = (0..101).map(|number| format!("f{number}")).collect();
    bomb(
        &archive(&names.iter().map(|name| file(name, "")).collect::<Vec<_>>()),
        "100 entries",
    );
    bomb(&archive(&[file(&"d/".repeat(60), "")]), "50 directories");
    let deep = "d/".repeat(40);
    bomb(
        &archive(&[symlink("a", &deep), file(&format!("a/{deep}"), "")]),
        "50 directories",
    );
    // Paths of directories are remembered: a repeated path counts once, different ones count up to
    // the limit.
    let small = Limits {
        directory_bytes: 1 << 10,
        ..Limits::default()
    };
    let long = "n".repeat(200);
    let again: Vec<Member<'_>> = (0..50).map(|_| directory(&long)).collect();
    try_unpack(&archive(&again), &small).1.unwrap();
    let paths: Vec<String> = (0..6).map(|number| format!("{long}{number}")).collect();
    let others: Vec<Member<'_>> = paths.iter().map(|path| directory(path)).collect();
    let told = try_unpack(&archive(&others), &small).1.unwrap_err();
    assert!(crate::chain(&told).contains("1024 bytes in the paths"), "{told}");
    let parents: Vec<String> = paths.iter().map(|path| format!("{path}/x")).collect();
    let parents: Vec<Member<'_>> = parents.iter().map(|path| file(path, "")).collect();
    let told = try_unpack(&archive(&parents), &small).1.unwrap_err();
    assert!(crate::chain(&told).contains("1024 bytes in the paths"), "{told}");
    // A long name with a declared size of 8 GiB is not read into memory.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_path("././@LongLink").unwrap();
    header.set_size(8 << 30);
    header.set_cksum();
    let mut stream = header.as_bytes().to_vec();
    stream.extend(std::iter::repeat_n(b'a', 1 << 16));
    bomb(&stream, "4096 bytes in a name");
}

#[test]
fn attack_05_headers_that_extend_a_member_do_not_pile_up() {
    // A record begins with its own length, which has six digits here.
    let rest = format!(" SCHILY.xattr.user.note={}\n", "v".repeat(400 << 10));
    let record = format!("{}{rest}", rest.len() + 6);
    let name = [b'n'; 4096];
    let header = |kind: u8| Member {
        kind,
        name: b"extends",
        link: b"",
        mode: 0o644,
        data: if b"LK".contains(&kind) {
            name.as_slice()
        } else {
            record.as_bytes()
        },
    };
    let text = "1048576 bytes in extended headers of one member";
    let (names, links) = ("L".repeat(257), "KL".repeat(129));
    for kinds in ["xxx", "ggg", "xgx", names.as_str(), links.as_str()] {
        let mut members: Vec<Member<'_>> = kinds.bytes().map(header).collect();
        refused(&members, text);
        members.push(file("a", ""));
        refused(&members, text);
    }
    // Each member has as many attributes as the others.
    let mut members = Vec::new();
    for number in ["1", "2", "3"] {
        members.extend("xg".bytes().map(header));
        members.push(file(number, ""));
    }
    examine(archive(&members).as_slice(), &Limits::default()).unwrap();
    // A header whose declared size exceeds the limit is not read.
    for kind in ["x", "g"] {
        let mut stream = archive(&kind.bytes().map(header).collect::<Vec<_>>());
        let mut claims = tar::Header::from_byte_slice(&stream[..512]).clone();
        claims.set_size(8 << 30);
        claims.set_cksum();
        stream[..512].copy_from_slice(claims.as_bytes());
        let told = crate::chain(&examine(stream.as_slice(), &Limits::default()).unwrap_err());
        assert!(told.contains(text), "{kind}: {told}");
    }
}

#[test]
fn attack_05_time_is_bounded() {
    let limits = Limits {
        unpack_time: Duration::ZERO,
        ..Limits::default()
    };
    let (_directory, result) = try_unpack(&archive(&[file("a", "x")]), &limits);
    assert!(matches!(
        result.unwrap_err(),
        UnpackError::Limit {
            unit: "seconds of unpacking",
            ..
        }
    ));
}
