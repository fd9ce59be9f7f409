//! Device access of a group: on v1 by the devices controller, on v2 by a BPF program.
//!
//! The program is assembled here, a dozen instructions for a list that never changes, because
//! libcontainer's way to one needs libelf on every machine that builds this.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};

use super::Cgroups;
use crate::sys;

const MAKE: u8 = 1;
const READ: u8 = 2;
const WRITE: u8 = 4;
const USE: u8 = MAKE | READ | WRITE;

/// Device types in BPF programs (`BPF_DEVCG_DEV_BLOCK`, `BPF_DEVCG_DEV_CHAR`).
const BLOCK: u8 = 1;
const CHARACTER: u8 = 2;

/// Devices of one type; `None` matches every major or minor number.
#[derive(Debug)]
pub(crate) struct Rule {
    kind: u8,
    numbers: (Option<i32>, Option<i32>),
    access: u8,
}

const fn of(kind: u8, numbers: (Option<i32>, Option<i32>), access: u8) -> Rule {
    Rule { kind, numbers, access }
}

/// Devices that runc allows every container (`AllowedDevices` in
/// `libcontainer/specconv/spec_linux.go`).
const ALLOWED: [Rule; 12] = [
    // Device nodes can be created, but not opened.
    of(CHARACTER, (None, None), MAKE),
    of(BLOCK, (None, None), MAKE),
    // null, zero, full, random, urandom
    of(CHARACTER, (Some(1), Some(3)), USE),
    of(CHARACTER, (Some(1), Some(5)), USE),
    of(CHARACTER, (Some(1), Some(7)), USE),
    of(CHARACTER, (Some(1), Some(8)), USE),
    of(CHARACTER, (Some(1), Some(9)), USE),
    // tty, console, ptmx and its terminals
    of(CHARACTER, (Some(5), Some(0)), USE),
    of(CHARACTER, (Some(5), Some(1)), USE),
    of(CHARACTER, (Some(5), Some(2)), USE),
    of(CHARACTER, (Some(136), None), USE),
    // net/tun
    of(CHARACTER, (Some(10), Some(200)), USE),
];

impl Cgroups {
    /// Allows the processes of a group, and of the groups below it, only the devices of
    /// [`ALLOWED`] and of the container's own rules.
    pub(crate) fn confine_devices(&self, group: &Path, own: &[Rule]) -> io::Result<()> {
        super::check(group)?;
        match (self.controller("devices"), &self.v2) {
            (Some(mount), _) => confine_v1(&mount.join(group), own),
            (None, Some(mount)) => sys::filter_devices(&mount.join(group), &program(own)),
            (None, None) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "no devices cgroup and no cgroup2 hierarchy is mounted",
            )),
        }
    }
}

fn confine_v1(dir: &Path, own: &[Rule]) -> io::Result<()> {
    super::write(&dir.join("devices.deny"), "a")?;
    let mut allow = OpenOptions::new().write(true).open(dir.join("devices.allow"))?;
    // The controller takes one rule per write.
    ALLOWED
        .iter()
        .chain(own)
        .try_for_each(|rule| allow.write_all(rule.text().as_bytes()))
}

impl Rule {
    /// Rule of a configuration that allows one device; `None` for other rules.
    pub(crate) fn of(rule: &LinuxDeviceCgroup) -> Option<Self> {
        let kind = match rule.typ()? {
            LinuxDeviceType::B => BLOCK,
            LinuxDeviceType::C | LinuxDeviceType::U => CHARACTER,
            LinuxDeviceType::A | LinuxDeviceType::P => return None,
        };
        let number = |number: Option<i64>| i32::try_from(number?).ok();
        let numbers = (Some(number(rule.major())?), Some(number(rule.minor())?));
        let letters = rule.access().as_deref().unwrap_or_default();
        let access = letters.chars().fold(0, |access, letter| match letter {
            'r' => access | READ,
            'w' => access | WRITE,
            'm' => access | MAKE,
            _ => access,
        });
        (rule.allow() && access != 0).then_some(of(kind, numbers, access))
    }

    /// Formats the rule for `devices.allow`, as `c 1:3 rwm`.
    fn text(&self) -> String {
        let kind = if self.kind == BLOCK { 'b' } else { 'c' };
        let number = |number: Option<i32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        let (major, minor) = self.numbers;
        let letters = [(READ, 'r'), (WRITE, 'w'), (MAKE, 'm')];
        let access: String = letters
            .into_iter()
            .filter(|(bit, _)| self.access & bit != 0)
            .map(|(_, letter)| letter)
            .collect();
        format!("{kind} {}:{} {access}", number(major), number(minor))
    }
}

/// Encodes a BPF instruction: opcode, registers (destination, and source in the upper half), offset
/// of a jump or a load, operand.
fn instruction(code: u8, registers: u8, offset: i16, operand: i32) -> u64 {
    let ([low, high], [a, b, c, d]) = (offset.to_ne_bytes(), operand.to_ne_bytes());
    u64::from_ne_bytes([code, registers, low, high, a, b, c, d])
}

/// Loads 32 bits.
const LOAD: u8 = 0x61;
const SHIFT_RIGHT: u8 = 0x74;
const AND: u8 = 0x54;
const COPY: u8 = 0xbc;
const SET: u8 = 0xb7;
const JUMP_UNLESS: u8 = 0x55;
const JUMP_UNLESS_SAME: u8 = 0x5d;
const EXIT: u8 = 0x95;

/// BPF program that returns 1 for devices in [`ALLOWED`] and in the container's own rules. Register
/// 2 holds the device type, 3 the requested access, 4 and 5 its numbers.
fn program(own: &[Rule]) -> Vec<u64> {
    let mut all = vec![
        instruction(LOAD, 0x12, 0, 0),
        instruction(COPY, 0x23, 0, 0),
        instruction(SHIFT_RIGHT, 0x03, 0, 16),
        instruction(AND, 0x02, 0, 0xffff),
        instruction(LOAD, 0x14, 4, 0),
        instruction(LOAD, 0x15, 8, 0),
    ];
    for rule in ALLOWED.iter().chain(own) {
        // Each takes the distance to the next rule, counted from the end.
        let mut tests: Vec<Box<dyn Fn(i16) -> u64>> = Vec::new();
        let kind = i32::from(rule.kind);
        tests.push(Box::new(move |end| instruction(JUMP_UNLESS, 0x02, end, kind)));
        for (register, number) in [(0x04, rule.numbers.0), (0x05, rule.numbers.1)] {
            if let Some(number) = number {
                tests.push(Box::new(move |end| instruction(JUMP_UNLESS, register, end, number)));
            }
        }
        let access = i32::from(rule.access);
        tests.push(Box::new(|_| instruction(COPY, 0x36, 0, 0)));
        tests.push(Box::new(move |_| instruction(AND, 0x06, 0, access)));
        tests.push(Box::new(|end| instruction(JUMP_UNLESS_SAME, 0x36, end, 0)));
        // Over the tests that follow, and over "return 1".
        let distances = (2..).take(tests.len()).collect::<Vec<i16>>();
        let placed = tests.iter().zip(distances.iter().rev());
        all.extend(placed.map(|(test, distance)| test(*distance)));
        all.extend([instruction(SET, 0, 0, 1), instruction(EXIT, 0, 0, 0)]);
    }
    all.extend([instruction(SET, 0, 0, 0), instruction(EXIT, 0, 0, 0)]);
    all
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::path::PathBuf;

    use nix::libc;
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::ForkResult;

    use super::*;

    #[test]
    fn rules_are_written_as_the_controller_reads_them() {
        let texts: Vec<String> = ALLOWED.iter().map(Rule::text).collect();
        assert_eq!(texts[..3], ["c *:* m", "b *:* m", "c 1:3 rwm"]);
        assert_eq!(texts[10], "c 136:* rwm");
        let own = |text: &str| {
            let rule: LinuxDeviceCgroup = serde_json::from_str(text).unwrap();
            Rule::of(&rule).map(|rule| rule.text())
        };
        let gpu = r#"{"allow":true,"type":"c","major":195,"minor":70000,"access":"rw"}"#;
        assert_eq!(own(gpu).as_deref(), Some("c 195:70000 rw"));
        assert_eq!(own(r#"{"allow":false,"access":"rwm"}"#), None);
        assert_eq!(own(r#"{"allow":true,"type":"b","major":8,"access":"r"}"#), None);
    }

    /// Opens a new device node for reading and writing in a process of the group; returns the
    /// errno, or 0.
    fn opens(group: &File, kind: SFlag, numbers: (u64, u64)) -> i32 {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("node");
        let (forked, inside) = sys::fork_into(Some(group.as_fd())).unwrap();
        match forked {
            ForkResult::Child => {
                let made = mknod(&node, kind, Mode::S_IRUSR, makedev(numbers.0, numbers.1));
                let opened = made.map_err(io::Error::from).and_then(|()| {
                    let nonblocking = libc::O_NONBLOCK;
                    OpenOptions::new().read(true).custom_flags(nonblocking).open(&node)
                });
                let number = opened.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
                sys::exit_now(if inside { number } else { 255 })
            }
            ForkResult::Parent { child } => {
                let WaitStatus::Exited(_, code) = waitpid(child, None).unwrap() else {
                    return 255;
                };
                code
            }
        }
    }

    #[test]
    fn attack_devices_that_a_container_makes_cannot_be_opened_on_v2() {
        let cgroups = Cgroups::detect().unwrap();
        let mount = cgroups.v2.clone().expect("a cgroup2 hierarchy is mounted");
        let path: PathBuf = mount.join(format!("skiff-devices-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let group = File::open(&path).unwrap();
        let own = of(BLOCK, (Some(254), Some(1)), READ);
        sys::filter_devices(&path, &program(&[own])).unwrap();
        let character = |major, minor| opens(&group, SFlag::S_IFCHR, (major, minor));
        // null, urandom and full; kmsg, which reveals the whole machine's messages; a disk, and one
        // that the container has, which is not there.
        let seen = [
            character(1, 3),
            character(1, 9),
            character(1, 7),
            character(1, 11),
            opens(&group, SFlag::S_IFBLK, (254, 0)),
            opens(&group, SFlag::S_IFBLK, (254, 1)),
        ];
        fs::remove_dir(&path).unwrap();
        assert_eq!(seen[..5], [0, 0, 0, libc::EPERM, libc::EPERM]);
        assert_ne!(seen[5], libc::EPERM);
    }
}
