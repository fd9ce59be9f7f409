//! Messages to a WebSocket client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tests::process;

use super::cluster::Cluster;

/// A container's output, in messages instead of a body.
pub(crate) fn logs_are_told_in_messages(cluster: &Cluster) -> anyhow::Result<()> {
    let newest = process::kubectls()?.pop().context("a kubectl")?;
    let mut command = cluster.machine.kubectl_command(&newest);
    let mut proxy = command.args(["proxy", "--port=0"]).stdout(Stdio::piped()).spawn()?;
    let said = told(&mut proxy);
    proxy.kill()?;
    proxy.wait()?;
    let (head, output) = said?;
    let head = head.to_ascii_lowercase();
    for line in [
        "http/1.1 101 ",
        "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=",
        "sec-websocket-protocol: binary.k8s.io",
    ] {
        ensure!(head.contains(line), "{line}: {head}");
    }
    ensure!(output.contains("second\n") && output.contains("oops\n"), "{output:?}");
    Ok(())
}

/// The answer's head, and the messages one after the other.
fn told(proxy: &mut std::process::Child) -> anyhow::Result<(String, String)> {
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().context("its output")?).read_line(&mut line)?;
    let address = line.trim().rsplit(' ').next().context("an address")?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20)))?;
    let path = "/api/v1/namespaces/default/pods/speaker/log?container=main";
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: binary.k8s.io\r\n\r\n"
    )?;
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(stream.read_line(&mut head)? > 0, "no answer: {head}");
    }
    let mut output = Vec::new();
    loop {
        let mut begin = [0; 2];
        stream.read_exact(&mut begin)?;
        let [kind, length] = begin;
        let length = if length == 126 {
            let mut long = [0; 2];
            stream.read_exact(&mut long)?;
            u64::from(u16::from_be_bytes(long))
        } else {
            u64::from(length)
        };
        let mut payload = Vec::new();
        stream.by_ref().take(length).read_to_end(&mut payload)?;
        match kind {
            0x82 => output.append(&mut payload),
            0x88 => return Ok((head, String::from_utf8(output)?)),
            other => anyhow::bail!("a message of kind {other:#x}"),
        }
    }
}
