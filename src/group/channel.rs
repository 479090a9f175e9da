//! An authenticated connection between a rank and the store: handshake, seal, open.
//!
//! What belongs here: Noise (`NNpsk0`, 25519, ChaChaPoly, BLAKE2s) over any stream of bytes; no socket, no
//! thread. Both sides say in clear text who they are, so that a rank of another version learns ours. Then
//! they agree on keys that only processes with the same [`Secret`] can compute, and that hold for this one
//! connection:
//!
//! ```text
//!   rank                                            store
//!   Hello: version, rank, nonce     ─────────────►
//!                                   ◄─────────────  Hello: version, 0, nonce
//!        both hellos are the prologue: if one was changed on its way, the next message is refused
//!                                   ◄─────────────  psk, e
//!   e, ee                           ─────────────►
//!        records from here on: their length in two bytes, then what is encrypted and authenticated
//! ```
//!
//! Record n of a direction is sealed with nonce n of the direction's own key. Invariant: what an [`Opener`]
//! gives is what the other side's [`Sealer`] took, in the same order; the first record that was changed,
//! repeated, left out, moved or made up is an error of kind `InvalidData`, and nothing after it is opened.

use std::io::{self, Read, Write};
use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};

use super::message::{HANDSHAKE, Hello, MAX_UNPROVED, PROTOCOL_VERSION, frame, receive, send};
use super::secret::{Secret, random_bytes};

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// The bytes that authenticate a message.
const TAG: usize = 16;
/// What one record holds at most; Noise has no longer messages.
const MAX_PLAIN: usize = 65_535 - TAG;

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Broken(#[from] io::Error),
    #[error("it speaks version {0} of the protocol, not {PROTOCOL_VERSION}")]
    Version(u32),
    #[error("it does not know the secret, or somebody changed what it sent")]
    Stranger,
}

/// Both directions of a channel.
pub type Channel = (Sealer, Opener);

/// A rank's side of the handshake.
pub fn to_store(
    stream: &mut (impl Read + Write),
    rank: u32,
    secret: &Secret,
) -> Result<Channel, Fault> {
    let own = hello(rank)?;
    send(stream, &own)?;
    let store: Hello = receive(stream, MAX_UNPROVED)?;
    same_version(&store)?;
    let mut noise = noise(secret, [&own, &store], false)?;
    let first: [u8; HANDSHAKE] = receive(stream, MAX_UNPROVED)?;
    noise.read_message(&first, &mut []).map_err(|_| Fault::Stranger)?;
    send(stream, &next_message(&mut noise)?)?;
    channel(noise)
}

/// The store's side of the handshake; with the number that the rank goes by.
pub fn to_rank(stream: &mut (impl Read + Write), secret: &Secret) -> Result<(u32, Channel), Fault> {
    let rank: Hello = receive(stream, MAX_UNPROVED)?;
    let own = hello(0)?;
    send(stream, &own)?;
    same_version(&rank)?;
    let mut noise = noise(secret, [&rank, &own], true)?;
    send(stream, &next_message(&mut noise)?)?;
    let second: [u8; HANDSHAKE] = receive(stream, MAX_UNPROVED)?;
    noise.read_message(&second, &mut []).map_err(|_| Fault::Stranger)?;
    Ok((rank.rank, channel(noise)?))
}

fn hello(rank: u32) -> io::Result<Hello> {
    let nonce = random_bytes().map_err(io::Error::other)?;
    Ok(Hello { version: PROTOCOL_VERSION, rank, nonce })
}

fn same_version(other: &Hello) -> Result<(), Fault> {
    if other.version == PROTOCOL_VERSION { Ok(()) } else { Err(Fault::Version(other.version)) }
}

/// A handshake of these two, a rank and the store.
fn noise(secret: &Secret, between: [&Hello; 2], initiator: bool) -> io::Result<HandshakeState> {
    let prologue = [frame(between[0])?, frame(between[1])?].concat();
    let build = || -> Result<HandshakeState, snow::Error> {
        let builder = Builder::new(NOISE.parse()?).psk(0, secret.key())?.prologue(&prologue)?;
        if initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    build().map_err(io::Error::other)
}

fn next_message(noise: &mut HandshakeState) -> io::Result<[u8; HANDSHAKE]> {
    let mut message = [0; HANDSHAKE];
    noise.write_message(&[], &mut message).map_err(io::Error::other)?;
    Ok(message)
}

fn channel(noise: HandshakeState) -> Result<Channel, Fault> {
    let session = Arc::new(noise.into_stateless_transport_mode().map_err(io::Error::other)?);
    let sealer = Sealer { session: Arc::clone(&session), count: 0, record: Vec::new() };
    Ok((sealer, Opener { session, count: 0, plain: Vec::new(), read: 0 }))
}

/// One direction of a channel: seals what this side says.
pub struct Sealer {
    session: Arc<StatelessTransportState>,
    /// The next record's number.
    count: u64,
    /// Space for a record.
    record: Vec<u8>,
}

/// The other direction: opens what the other side says.
pub struct Opener {
    session: Arc<StatelessTransportState>,
    /// The next record's number.
    count: u64,
    /// The last record's content, and how much of it has been read.
    plain: Vec<u8>,
    read: usize,
}

impl Sealer {
    /// Writes to `to`, sealed. After an error nothing more may follow.
    pub fn onto<W: Write>(&mut self, to: W) -> Sealed<'_, W> {
        Sealed { sealer: self, to }
    }
}

impl Opener {
    /// Reads from `from`, opened. After an error nothing more may follow.
    pub fn from<R: Read>(&mut self, from: R) -> Opened<'_, R> {
        Opened { opener: self, from }
    }
}

/// A [`Sealer`] with the stream that it writes to.
pub struct Sealed<'a, W> {
    sealer: &'a mut Sealer,
    to: W,
}

/// An [`Opener`] with the stream that it reads from.
pub struct Opened<'a, R> {
    opener: &'a mut Opener,
    from: R,
}

impl<W: Write> Write for Sealed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(MAX_PLAIN)];
        if bytes.is_empty() {
            return Ok(0); // no record: the other side would take it for the end
        }
        let Sealer { session, count, record } = &mut *self.sealer;
        record.resize(2 + bytes.len() + TAG, 0);
        let sealed = session.write_message(*count, bytes, &mut record[2..]);
        let length = sealed.map_err(io::Error::other)? as u16;
        record[..2].copy_from_slice(&length.to_le_bytes());
        *count += 1;
        self.to.write_all(record)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<R: Read> Read for Opened<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.opener.read == self.opener.plain.len() {
            self.open()?;
        }
        let Opener { plain, read, .. } = &mut *self.opener;
        let taken = (&plain[*read..]).read(bytes)?;
        *read += taken;
        Ok(taken)
    }
}

impl<R: Read> Opened<'_, R> {
    /// Reads and opens the next record.
    fn open(&mut self) -> io::Result<()> {
        let Opener { session, count, plain, read } = &mut *self.opener;
        let mut length = [0; 2];
        self.from.read_exact(&mut length)?;
        let mut record = vec![0; u16::from_le_bytes(length).into()];
        self.from.read_exact(&mut record)?;
        let changed = || {
            let text = format!("record {count} was changed on its way, or is not from there");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        // A record of a tag alone is nothing that the other side seals.
        let content = record.len().checked_sub(TAG).filter(|content| *content > 0);
        plain.resize(content.ok_or_else(changed)?, 0);
        *read = plain.len(); // nothing to be read, should it not open
        session.read_message(*count, &record, plain).map_err(|_| changed())?;
        (*count, *read) = (*count + 1, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// Both ends of a connection, each with its channel.
    fn connected(rank_knows: &str, store_knows: &str) -> [Result<Channel, Fault>; 2] {
        let (mut rank, mut store) = UnixStream::pair().unwrap();
        let [rank_knows, store_knows] = [rank_knows, store_knows].map(Secret::of);
        thread::scope(|scope| {
            let rank = scope.spawn(move || to_store(&mut rank, 7, &rank_knows));
            let store = to_rank(&mut store, &store_knows).map(|(number, channel)| {
                assert_eq!(number, 7);
                channel
            });
            [rank.join().unwrap(), store]
        })
    }

    fn channels() -> [Channel; 2] {
        connected("a secret", "a secret").map(Result::unwrap)
    }

    fn bytes(count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        getrandom::fill(&mut bytes).unwrap();
        bytes
    }

    fn opened(opener: &mut Opener, sealed: &[u8], count: usize) -> io::Result<Vec<u8>> {
        let mut content = vec![0; count];
        opener.from(sealed).read_exact(&mut content).map(|()| content)
    }

    #[test]
    fn what_is_sealed_is_opened_on_the_other_side_in_both_directions() {
        let [rank, store] = channels();
        let pairs = [(rank.0, store.1), (store.0, rank.1)];
        for (mut sealer, mut opener) in pairs {
            for count in [1, 100, MAX_PLAIN - 1, MAX_PLAIN, MAX_PLAIN + 1, 1 << 20] {
                let content = bytes(count);
                let mut sealed = Vec::new();
                sealer.onto(&mut sealed).write_all(&content).unwrap();
                assert_eq!(sealed.len(), count + count.div_ceil(MAX_PLAIN) * (2 + TAG));
                assert!(opened(&mut opener, &sealed, count).unwrap() == content, "{count} bytes");
            }
        }
    }

    #[test]
    fn another_secret_gets_no_channel() {
        let [rank, store] = connected("a secret", "another");
        assert!(matches!(rank, Err(Fault::Stranger)));
        assert!(matches!(store, Err(Fault::Broken(_)))); // the rank has gone
    }

    #[test]
    fn a_record_that_is_not_the_next_one_is_not_opened() {
        let [(mut sealer, _), (mut back, mut opener)] = channels();
        let content = bytes(50);
        let seal = |sealer: &mut Sealer| {
            let mut sealed = Vec::new();
            sealer.onto(&mut sealed).write_all(&content).unwrap();
            sealed
        };
        let (first, second) = (seal(&mut sealer), seal(&mut sealer));
        let mut wrong = vec![second.clone(), seal(&mut channels()[0].0), seal(&mut back)];
        wrong.extend((0..8 * first.len()).map(|bit| {
            let mut changed = first.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            changed
        }));
        wrong.extend((0..first.len()).map(|length| first[..length].to_vec()));
        wrong.push([&[TAG as u8, 0][..], &[0; TAG]].concat());
        for sealed in wrong {
            opened(&mut opener, &sealed, 50).unwrap_err();
            assert_eq!(opener.count, 0);
        }
        // It opens in its place, and once.
        assert_eq!(opened(&mut opener, &first, 50).unwrap(), content);
        let error = opened(&mut opener, &first, 50).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("record 1 was changed on its way"), "{error}");
        assert_eq!(opened(&mut opener, &second, 50).unwrap(), content);
    }
}
