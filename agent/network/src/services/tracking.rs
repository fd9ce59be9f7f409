//! Settings of the kernel's table of connections, which every connection to a Service is in.
//!
//! As by kube-proxy: what is higher already stays, and so does what cannot be written, as where the
//! node is a container.

use std::path::Path;

const FOLDER: &str = "/proc/sys/net/netfilter";
const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Connections that the table has room for, at least, and for each CPU. Packets of new connections
/// are dropped when it is full.
const ROOM: u64 = 131_072;
const ROOM_OF_CPU: u64 = 32_768;
/// Seconds for which connections are known that are open, and that one side has closed: of the
/// latter the kernel forgets after a minute where they lead, though answers may still come.
const TIMES: [(&str, u64); 2] = [
    ("nf_conntrack_tcp_timeout_established", 86_400),
    ("nf_conntrack_tcp_timeout_close_wait", 3_600),
];

/// Older kernels take packets that come late for invalid and do not translate them: the pod that gets
/// one resets the connection to its Service. Then only resets are invalid: the workaround for
/// kube-proxy's nftables mode (`tcpBeLiberal`), which kind sets, too.
const LIBERAL: &str = "nf_conntrack_tcp_be_liberal";
const RELEASE: &str = "/proc/sys/kernel/osrelease";
const MENDED: [u32; 2] = [6, 1];

/// Raises the settings. They exist once there is a rule that translates.
pub(super) fn make_room() {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| u64::try_from(cpus.get()).unwrap_or(1));
    let release = std::fs::read_to_string(RELEASE).unwrap_or_default();
    let room = ROOM.max(ROOM_OF_CPU * cpus);
    raise_all(Path::new(FOLDER), Path::new(BUCKETS), room, is_old(&release));
}

/// True if the kernel with this name has the fault.
fn is_old(release: &str) -> bool {
    let numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let numbers = numbers.map_while(|number| number.parse::<u32>().ok());
    numbers.take(2).lt(MENDED)
}

fn raise_all(folder: &Path, buckets: &Path, room: u64, is_old: bool) {
    raise(&folder.join("nf_conntrack_max"), room);
    raise(buckets, room / 4);
    for (name, seconds) in TIMES {
        raise(&folder.join(name), seconds);
    }
    if is_old {
        raise(&folder.join(LIBERAL), 1);
    }
}

fn raise(setting: &Path, least: u64) {
    let value = std::fs::read_to_string(setting).ok();
    let value = value.and_then(|text| text.trim().parse::<u64>().ok());
    if value.is_some_and(|value| value < least)
        && let Err(error) = std::fs::write(setting, least.to_string())
    {
        tracing::debug!(setting = %setting.display(), %error, "a setting of connections stays low");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_low_is_raised() {
        let kept = tempfile::tempdir().unwrap();
        let folder = kept.path();
        let [established, close_wait] = TIMES.map(|(name, _)| name);
        let settings = [
            ("nf_conntrack_max", "65536\n", "131072"),
            ("hashsize", "65536\n", "65536\n"),
            (established, "432000\n", "432000\n"),
            (close_wait, "60\n", "3600"),
            (LIBERAL, "0\n", "1"),
        ];
        for (name, text, _) in settings {
            std::fs::write(folder.join(name), text).unwrap();
        }
        raise_all(folder, &folder.join("hashsize"), ROOM, true);
        raise_all(Path::new("/nowhere"), Path::new("/nowhere"), ROOM, true);
        for (name, _, then) in settings {
            assert_eq!(std::fs::read_to_string(folder.join(name)).unwrap(), then, "{name}");
        }
        std::fs::write(folder.join(LIBERAL), "0\n").unwrap();
        raise_all(folder, &folder.join("hashsize"), ROOM, false);
        assert_eq!(std::fs::read_to_string(folder.join(LIBERAL)).unwrap(), "0\n");
    }

    #[test]
    fn kernels_are_told_apart_by_their_numbers() {
        for (release, old) in [
            ("5.15.0-102-generic\n", true),
            ("5.14.0-427.13.1.el9_4.x86_64\n", true),
            ("6.0.19\n", true),
            ("6.1.0-18-amd64\n", false),
            ("6.12.5\n", false),
            ("7.0-rc1\n", false),
        ] {
            assert_eq!(is_old(release), old, "{release}");
        }
    }
}
