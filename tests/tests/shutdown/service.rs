//! A fake login manager: it owns logind's name on a bus, hands out inhibitor locks and announces
//! shutdowns.

use std::io::{self, IoSlice, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

use tests::machine::TIMEOUT;

use crate::bus::{BUS, Bus, Kind, Message, Writer, encode};

const MANAGER: &str = "org.freedesktop.login1.Manager";

/// Owner of the name on one bus, with the lock that it gave last.
pub(crate) struct Logind {
    bus: Bus,
    serial: u32,
    lock: Option<io::PipeReader>,
}

impl Logind {
    pub(crate) fn own(socket: &Path) -> anyhow::Result<Self> {
        let mut bus = Bus::connect(socket)?;
        bus.stream.set_read_timeout(Some(TIMEOUT))?;
        let mut body = Writer::default();
        body.string("org.freedesktop.login1");
        body.number(0);
        let fields = [
            (1, "o", BUS.path),
            (2, "s", BUS.interface),
            (3, "s", "RequestName"),
            (6, "s", BUS.service),
        ];
        let call = encode(1, 1000, &fields, &[], "su", &body.0)?;
        let (serial, lock) = (1000, None);
        io::Write::write_all(&mut bus.stream, &call)?;
        Ok(Self { bus, serial, lock })
    }

    fn send(
        &mut self,
        kind: u8,
        texts: &[(u8, &str, &str)],
        reply_to: Option<u32>,
        body: (&str, &[u8]),
        fd: Option<&io::PipeWriter>,
    ) -> anyhow::Result<()> {
        self.serial += 1;
        let mut numbers: Vec<(u8, u32)> = reply_to.map(|serial| (5, serial)).into_iter().collect();
        numbers.extend(fd.map(|_| (9, 1)));
        let bytes = encode(kind, self.serial, texts, &numbers, body.0, body.1)?;
        let fds: Vec<i32> = fd.map(io::PipeWriter::as_raw_fd).into_iter().collect();
        let control = [ControlMessage::ScmRights(&fds)];
        let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &control };
        let parts = [IoSlice::new(&bytes)];
        sendmsg::<UnixAddr>(self.bus.stream.as_raw_fd(), &parts, control, MsgFlags::empty(), None)?;
        Ok(())
    }

    fn answer(&mut self, call: &Message) -> anyhow::Result<()> {
        let to = [(6, "s", call.sender.as_str())];
        if call.member == "Inhibit" {
            let (reader, writer) = io::pipe()?;
            // The descriptor's place among those of the message.
            self.send(2, &to, Some(call.serial), ("h", &[0; 4]), Some(&writer))?;
            self.lock = Some(reader);
            return Ok(());
        }
        anyhow::ensure!(call.member == "Get", "{call:?}");
        let mut body = Writer::default();
        body.signature("t");
        body.align(8);
        body.0.extend(20_000_000_u64.to_le_bytes());
        self.send(2, &to, Some(call.serial), ("v", &body.0), None)
    }

    /// Answers until the agent holds a lock.
    pub(crate) fn wait_for_lock(&mut self) -> anyhow::Result<()> {
        let mut told = false;
        while self.lock.is_none() || !told {
            let message = self.bus.receive()?;
            if message.kind == Kind::Call {
                told |= message.member == "Get";
                self.answer(&message)?;
            }
        }
        Ok(())
    }

    /// Announces a shutdown, or its cancellation.
    pub(crate) fn prepare(&mut self, begins: bool) -> anyhow::Result<()> {
        let texts = [
            (1, "o", "/org/freedesktop/login1"),
            (2, "s", MANAGER),
            (3, "s", "PrepareForShutdown"),
        ];
        self.send(4, &texts, None, ("b", &u32::from(begins).to_le_bytes()), None)
    }

    /// Waits until the agent releases the lock.
    pub(crate) fn wait_for_release(&mut self) -> anyhow::Result<()> {
        let mut lock = self.lock.take().ok_or_else(|| anyhow::anyhow!("no lock was given"))?;
        let mut ends = [PollFd::new(lock.as_fd(), PollFlags::POLLIN)];
        let ended = poll(&mut ends, PollTimeout::try_from(TIMEOUT)?)?;
        anyhow::ensure!(ended == 1, "the agent keeps its lock");
        anyhow::ensure!(lock.read(&mut [0])? == 0, "somebody wrote into a lock");
        Ok(())
    }
}
