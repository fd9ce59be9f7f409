//! Minimal D-Bus client for systemd and logind: method calls, their replies, and signals.
//!
//! Blocking, on a thread of the caller. The crates for it bring an executor and an interface
//! compiler for four calls.

mod wire;

use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};

pub(crate) use wire::{Kind, Message, Writer, encode};
use wire::{invalid, parse};

/// Default address of the D-Bus system bus.
const SYSTEM: &str = "/run/dbus/system_bus_socket";
/// Maximum number of other messages before a reply.
const MAX_OTHERS: usize = 1024;

/// Destination of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) service: &'a str,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
}

/// Connection to a bus.
pub(crate) struct Bus {
    pub(crate) stream: UnixStream,
    received: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    serial: u32,
    /// Signals received while waiting for a reply.
    waiting: Vec<Message>,
}

/// Returns the path of the system bus.
pub(crate) fn system() -> PathBuf {
    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
    let path = address.split(';').find_map(|one| {
        let options = one.strip_prefix("unix:")?;
        options.split(',').find_map(|option| option.strip_prefix("path="))
    });
    PathBuf::from(path.unwrap_or(SYSTEM))
}

impl Bus {
    /// Connects as the user of this process.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        let user = nix::unistd::geteuid().to_string();
        // In hexadecimal, each digit of the user ID is 3 and the digit.
        let user: String = user.chars().flat_map(|digit| ['3', digit]).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes())?;
        if !line(&mut stream)?.starts_with("OK ") {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.write_all(b"NEGOTIATE_UNIX_FD\r\n")?;
        if line(&mut stream)? != "AGREE_UNIX_FD" {
            return Err(invalid("the bus passes no descriptors"));
        }
        stream.write_all(b"BEGIN\r\n")?;
        let mut bus = Self {
            stream,
            received: Vec::new(),
            descriptors: Vec::new(),
            serial: 0,
            waiting: Vec::new(),
        };
        bus.call(BUS, "Hello", &[])?;
        Ok(bus)
    }

    /// Subscribes to signals that match a rule.
    pub(crate) fn listen(&mut self, rule: &str) -> io::Result<()> {
        self.call(BUS, "AddMatch", &[rule]).map(drop)
    }

    /// Calls a method with string arguments, and waits for its reply.
    pub(crate) fn call(&mut self, target: Target<'_>, member: &str, arguments: &[&str]) -> io::Result<Message> {
        let mut body = Writer::default();
        for argument in arguments {
            body.string(argument);
        }
        let fields = [
            (1, "o", target.path),
            (2, "s", target.interface),
            (3, "s", member),
            (6, "s", target.service),
        ];
        self.serial += 1;
        let serial = self.serial;
        let signature = "s".repeat(arguments.len());
        self.stream
            .write_all(&encode(1, serial, &fields, &[], &signature, &body.0)?)?;
        for _ in 0..MAX_OTHERS {
            let message = self.next()?;
            match message.kind {
                Kind::Return if message.reply_to == Some(serial) => return Ok(message),
                Kind::Error if message.reply_to == Some(serial) => return Err(io::Error::other(message.error)),
                Kind::Signal => self.waiting.push(message),
                Kind::Call | Kind::Return | Kind::Error => {}
            }
        }
        Err(invalid("no answer among many messages"))
    }

    /// Waits for the next message that is not a reply.
    pub(crate) fn receive(&mut self) -> io::Result<Message> {
        if self.waiting.is_empty() {
            self.next()
        } else {
            Ok(self.waiting.remove(0))
        }
    }

    fn next(&mut self) -> io::Result<Message> {
        loop {
            if let Some((message, used, count)) = parse(&self.received)? {
                self.received.drain(..used);
                let count = count.min(self.descriptors.len());
                let descriptors = self.descriptors.drain(..count).collect();
                return Ok(Message { descriptors, ..message });
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let mut space = nix::cmsg_space!([RawFd; 8]);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<UnixAddr>(self.stream.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                self.descriptors.extend(fds.into_iter().map(received));
            }
        }
        let length = message.bytes;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received.extend(buffer.get(..length).unwrap_or_default());
        Ok(())
    }
}

/// The bus itself as a destination.
pub(crate) const BUS: Target<'_> = Target {
    service: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};

#[expect(unsafe_code, reason = "the kernel just made the descriptor for this process")]
fn received(fd: RawFd) -> OwnedFd {
    // SAFETY: see the reason above.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn line(stream: &mut UnixStream) -> io::Result<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        text.extend(byte);
        if text.len() > 4096 {
            return Err(invalid("a line without an end"));
        }
    }
    text.truncate(text.len() - 2);
    String::from_utf8(text).map_err(|_bytes| invalid("a line that is no text"))
}
