//! The secret that only the processes of one user know.
//!
//! What belongs here: the secret and its sources. `channel.rs` uses it. Invariants:
//! the secret itself never leaves the process, but for a random one in an invitation (`invitation.rs`); a file that others
//! could have read or written is refused.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The environment variable with a secret that all ranks have been given.
pub const SECRET_VARIABLE: &str = "OVERLAP_GEMM_SECRET";

const REMEDY: &str =
    "set OVERLAP_GEMM_SECRET to the same text on all ranks, and to none that others know";

/// What all ranks of a group know, and nobody else.
///
/// ```
/// use overlap_gemm::group::Secret;
///
/// let text = Secret::random_text()?; // for the environment of all ranks
/// let secret = Secret::of(&text);
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// Says nothing about the secret.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret that all ranks have been given: text, or any bytes.
    pub fn of(text: impl AsRef<[u8]>) -> Secret {
        // With a name, so that no other use of the same text has the same key.
        let key = Sha256::new_with_prefix(b"overlap-gemm group\n").chain_update(text);
        Secret(key.finalize().into())
    }

    /// Text for [`Secret::of`] that nobody else can know, to be handed to other processes.
    pub fn random_text() -> Result<String> {
        Ok(hex(&random_bytes()?))
    }

    /// The secret of the environment; without one, that of this user: a file that only the user can read,
    /// made when it is first needed. `variable` looks an environment variable up, as [`std::env::var_os`]
    /// does: a secret that is not UTF-8 is a secret too.
    pub fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Secret> {
        match variable(SECRET_VARIABLE).map(OsString::into_vec) {
            Some(bytes) if bytes.len() >= 16 => Ok(Secret::of(bytes)),
            Some(bytes) => Err(Error::NoGroup {
                reason: format!("{SECRET_VARIABLE} has {} bytes, fewer than 16", bytes.len()),
                remedy: REMEDY,
            }),
            None => of_user(&state_folder(variable)?),
        }
    }

    pub(super) fn key(&self) -> &[u8; 32] {
        &self.0
    }
}

pub(super) fn random_bytes() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Error::NoGroup {
        reason: format!("the system gives no random numbers: {error}"),
        remedy: "see whether the system's generator has been started, or is forbidden to this process",
    })?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `$XDG_STATE_HOME/overlap-gemm`, or the default place of it.
fn state_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    const PLACES: [(&str, &str); 2] = [("XDG_STATE_HOME", ""), ("HOME", ".local/state")];
    let mut why = Vec::new();
    for (name, below) in PLACES {
        match variable(name).map(PathBuf::from) {
            Some(path) if path.is_absolute() => return Ok(path.join(below).join("overlap-gemm")),
            Some(path) => why.push(format!("{name} is {path:?}, which is not an absolute path")),
            None => why.push(format!("{name} is not set")),
        }
    }
    let reason = format!("there is no place for this user's secret: {}", why.join(", "));
    Err(Error::NoGroup { reason, remedy: REMEDY })
}

/// The secret in this user's folder; makes it if it is not there.
fn of_user(folder: &Path) -> Result<Secret> {
    let path = folder.join("secret");
    let failed = |what: &str, error: io::Error| Error::NoGroup {
        reason: format!("{what} {} failed: {error}", path.display()),
        remedy: REMEDY,
    };
    if !path.exists() {
        make(folder, &path, &Secret::random_text()?).map_err(|error| failed("making", error))?;
    }
    // Not to wait for a pipe's other end.
    let at_once = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened = fs::OpenOptions::new().read(true).custom_flags(at_once).open(&path);
    let mut file = opened.map_err(|error| failed("opening", error))?;
    let facts = file.metadata().map_err(|error| failed("looking at", error))?;
    if !facts.is_file() {
        return Err(Error::NoGroup {
            reason: format!("{} is no file", path.display()),
            remedy: "remove it; a new one is made",
        });
    }
    if facts.uid() != super::identity::this_user() || facts.mode() & 0o077 != 0 {
        return Err(Error::NoGroup {
            reason: format!(
                "{} belongs to user {} and has the mode {:o}: others could know it",
                path.display(),
                facts.uid(),
                facts.mode() & 0o777
            ),
            remedy: "remove the file; a new one is made",
        });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| failed("reading", error))?;
    if text.trim().len() < 16 {
        return Err(Error::NoGroup {
            reason: format!("{} is too short to be a secret", path.display()),
            remedy: "remove the file; a new one is made",
        });
    }
    Ok(Secret::of(text.trim()))
}

/// Creates the file completely or not at all; the first process creates it.
fn make(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // A name that nobody else has, another thread of this process included.
    let unique = random_bytes().map_err(io::Error::other)?;
    let fresh = folder.join(format!("secret.{}", hex(&unique[..8])));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    // A link, not a rename: it does not replace what another process has made meanwhile.
    let linked = written.and_then(|()| match fs::hard_link(&fresh, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    fs::remove_file(&fresh)?;
    linked
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_environment_comes_first_and_must_be_long() {
        let with = |text: &'static [u8]| {
            let secret = OsString::from_vec(text.to_vec());
            Secret::find(move |name| (name == SECRET_VARIABLE).then(|| secret.clone()))
        };
        assert_eq!(format!("{:?}", Secret::of("a text that is long")), "Secret(..)");
        assert_eq!(with(b"0123456789abcdef").unwrap().0, Secret::of("0123456789abcdef").0);
        let error = with(b"short").unwrap_err().to_string();
        assert!(error.contains("5 bytes, fewer than 16"), "{error}");
        let error = Secret::find(|_| None).unwrap_err().to_string();
        assert!(error.contains("XDG_STATE_HOME is not set, HOME is not set"), "{error}");
        let relative = |name: &str| (name == "HOME").then(|| "relative".into());
        let error = Secret::find(relative).unwrap_err().to_string();
        assert!(error.contains("HOME is \"relative\", which is not an absolute path"), "{error}");
    }

    #[test]
    fn a_user_has_one_secret_that_others_cannot_read() {
        let folder =
            std::env::temp_dir().join(format!("overlap-gemm-secret-{}", std::process::id()));
        let find = || {
            let folder = folder.clone().into_os_string();
            Secret::find(move |name| (name == "XDG_STATE_HOME").then(|| folder.clone()))
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(find)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let first = find().unwrap().0;
        assert!(all.into_iter().all(|secret| secret.unwrap().0 == first));

        let path = folder.join("overlap-gemm/secret");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = find().unwrap_err().to_string();
        assert!(error.contains("has the mode 644"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "x").unwrap();
        assert!(find().unwrap_err().to_string().contains("too short"));
        // A pipe that nobody writes to, or a folder.
        fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert!(find().unwrap_err().to_string().contains("is no file"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(find().unwrap_err().to_string().contains("is no file"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
