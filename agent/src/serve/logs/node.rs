//! `/logs/`: log files of the machine. A container may have written there: symbolic links cannot
//! lead out, and only regular files are served.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path as FilePath;

use axum::body::Body;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tracing::debug;

use crate::confined::{self, aside};

/// Directory of the node's logs.
const DIRECTORY: &str = "/var/log";
/// Maximum number of listed entries of a directory.
const ENTRIES: usize = 10_000;
const CHUNK: usize = 64 << 10;
/// Number of bytes from which the content type is detected.
const SNIFFED: usize = 512;
/// Characters that are not percent-encoded in a link.
const PLAIN: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// File or directory at a path.
#[derive(Debug)]
enum Found {
    /// With its length and first bytes.
    File(File, u64, Vec<u8>),
    /// Names; those of directories end with a slash.
    Directory(Vec<String>),
}

pub(in crate::serve) async fn root() -> Response {
    answer(String::new()).await
}

pub(in crate::serve) async fn below(Path(path): Path<String>) -> Response {
    answer(path).await
}

async fn answer(path: String) -> Response {
    let asked = path.clone();
    match aside(move || find(FilePath::new(DIRECTORY), &asked)).await {
        Ok(Found::File(file, length, begin)) => {
            let kind = if begin.contains(&0) || begin.starts_with(&[0x1f, 0x8b]) {
                "application/octet-stream"
            } else {
                "text/plain; charset=utf-8"
            };
            let headers = [(header::CONTENT_TYPE, kind)];
            (headers, Body::from_stream(contents(file, length))).into_response()
        }
        Ok(Found::Directory(names)) => {
            let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
            (headers, listing(&names)).into_response()
        }
        Err(error) => {
            debug!(path, %error, "no log of the machine");
            (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
        }
    }
}

/// Opens a path below a directory. Blocks.
fn find(directory: &FilePath, path: &str) -> io::Result<Found> {
    let path = path.trim_matches('/');
    let path = if path.is_empty() { "." } else { path };
    let found = confined::find(directory, path)?;
    if found.metadata()?.is_dir() {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = Dir::openat(&found, ".", flags, Mode::empty())?;
        return Ok(Found::Directory(entries(directory)?));
    }
    let mut file = confined::reopen(&found)?;
    let length = file.metadata()?.len();
    let mut begin = Vec::new();
    Read::by_ref(&mut file).take(SNIFFED as u64).read_to_end(&mut begin)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Found::File(file, length, begin))
}

fn entries(mut directory: Dir) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in directory.iter().take(ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.as_str(), "." | "..") {
            continue;
        }
        let below = entry.file_type() == Some(nix::dir::Type::Directory);
        names.push(if below { format!("{name}/") } else { name });
    }
    names.sort();
    Ok(names)
}

/// Formats a directory as Go's file server does.
fn listing(names: &[String]) -> String {
    let mut page = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        let shown = name
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&#34;")
            .replace('\'', "&#39;");
        let link = utf8_percent_encode(name, &PLAIN);
        page.extend(["<a href=\"", &link.to_string(), "\">", &shown, "</a>\n"]);
    }
    page.push_str("</pre>\n");
    page
}

/// Streams a file up to its initial length.
fn contents(file: File, length: u64) -> impl stream::Stream<Item = io::Result<Vec<u8>>> {
    stream::try_unfold((file, length), |(file, left)| async move {
        let read = aside(move || {
            let mut chunk = Vec::new();
            let most = left.min(CHUNK as u64);
            Read::by_ref(&mut &file).take(most).read_to_end(&mut chunk)?;
            Ok((file, chunk))
        });
        let (file, chunk) = read.await?;
        let left = left.saturating_sub(chunk.len() as u64);
        Ok((!chunk.is_empty()).then_some((chunk, (file, left))))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use futures::TryStreamExt as _;
    use nix::sys::stat::SFlag;

    use super::*;

    #[tokio::test]
    async fn a_file_is_read_whole_and_a_directory_listed() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("pods")).unwrap();
        std::fs::write(home.path().join("sys<log>"), vec![b'x'; CHUNK * 2 + 7]).unwrap();
        symlink("../sys<log>", home.path().join("pods/latest")).unwrap();
        for path in ["sys<log>", "/pods/latest", "pods/../sys<log>/"] {
            let Found::File(file, length, begin) = find(home.path(), path).unwrap() else {
                panic!("{path} is a file");
            };
            assert_eq!((length, begin.len()), (CHUNK as u64 * 2 + 7, SNIFFED));
            let whole: Vec<Vec<u8>> = contents(file, length).try_collect().await.unwrap();
            assert_eq!(whole.concat().len() as u64, length);
        }
        for path in ["", "/", "."] {
            let Found::Directory(names) = find(home.path(), path).unwrap() else {
                panic!("{path} is a directory");
            };
            assert_eq!(names, ["pods/", "sys<log>"]);
            assert!(listing(&names).contains("<a href=\"sys%3Clog%3E\">sys&lt;log&gt;</a>\n"));
        }
    }

    #[test]
    fn attack_21_nothing_outside_the_directory_is_a_log() {
        let home = tempfile::tempdir().unwrap();
        let logs = home.path().join("log");
        std::fs::create_dir_all(logs.join("own")).unwrap();
        std::fs::write(home.path().join("shadow"), "secret").unwrap();
        symlink("../shadow", logs.join("link")).unwrap();
        symlink("/etc/shadow", logs.join("absolute")).unwrap();
        symlink("..", logs.join("own/up")).unwrap();
        symlink("/proc/self/root", logs.join("magic")).unwrap();
        nix::unistd::mkfifo(&logs.join("pipe"), Mode::S_IRWXU).unwrap();
        let device = nix::sys::stat::mknod(&logs.join("device"), SFlag::S_IFCHR, Mode::S_IRWXU, 0x0105);
        device.unwrap();
        for path in [
            "../shadow",
            "/../shadow",
            "own/../../shadow",
            "own/up/../shadow",
            "%2e%2e/shadow",
            "..%2fshadow",
            "link",
            "absolute",
            "magic",
            "magic/etc/shadow",
            "shadow\0",
            "own\0/../../shadow",
            "pipe",
            "device",
            "missing",
            &"x/".repeat(5000),
        ] {
            let found = find(&logs, path);
            assert!(found.is_err(), "{path:?}: {found:?}");
        }
    }
}
