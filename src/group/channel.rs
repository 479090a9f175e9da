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

use super::message::{
    Hello, MAX_FRAME, Message, PROTOCOL_VERSION, frame, length_of, parse, receive, send,
};
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
    let store: Hello = receive(stream)?;
    same_version(&store)?;
    let mut noise = noise(secret, [&own, &store], false)?;
    let first: Vec<u8> = receive(stream)?;
    noise.read_message(&first, &mut []).map_err(|_| Fault::Stranger)?;
    send(stream, &next_message(&mut noise)?)?;
    channel(noise)
}

/// The store's side of the handshake; with the number that the rank goes by.
pub fn to_rank(stream: &mut (impl Read + Write), secret: &Secret) -> Result<(u32, Channel), Fault> {
    let rank: Hello = receive(stream)?;
    let own = hello(0)?;
    send(stream, &own)?;
    same_version(&rank)?;
    let mut noise = noise(secret, [&rank, &own], true)?;
    send(stream, &next_message(&mut noise)?)?;
    let second: Vec<u8> = receive(stream)?;
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

/// A public key of 32 bytes and a tag, without a payload.
fn next_message(noise: &mut HandshakeState) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 32 + TAG];
    noise.write_message(&[], &mut message).map_err(io::Error::other)?;
    Ok(message)
}

fn channel(noise: HandshakeState) -> Result<Channel, Fault> {
    let session = Arc::new(noise.into_stateless_transport_mode().map_err(io::Error::other)?);
    Ok((Sealer { session: Arc::clone(&session), count: 0 }, Opener { session, count: 0 }))
}

/// One direction of a channel: seals what this side says. After an error nothing more may follow.
pub struct Sealer {
    session: Arc<StatelessTransportState>,
    /// The next record's number.
    count: u64,
}

/// The other direction: opens what the other side says. After an error nothing more may follow.
pub struct Opener {
    session: Arc<StatelessTransportState>,
    /// The next record's number.
    count: u64,
}

impl Sealer {
    /// Writes a message to `to`, in as many records as it takes.
    pub fn send(&mut self, mut to: impl Write, message: &impl Message) -> io::Result<()> {
        for plain in frame(message)?.chunks(MAX_PLAIN) {
            let mut record = vec![0; 2 + plain.len() + TAG];
            let sealed = self.session.write_message(self.count, plain, &mut record[2..]);
            let length = sealed.map_err(io::Error::other)? as u16;
            record[..2].copy_from_slice(&length.to_le_bytes());
            self.count += 1;
            to.write_all(&record)?;
        }
        to.flush()
    }
}

impl Opener {
    /// Reads the next message from `from`.
    pub fn receive<T: Message>(&mut self, mut from: impl Read) -> io::Result<T> {
        let mut frame = self.open(&mut from)?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a record that is no message's");
        let start = *frame.first_chunk().ok_or_else(wrong)?;
        let end = 4 + length_of(start, MAX_FRAME)?;
        // Grows with what really comes: a length alone costs nothing.
        while frame.len() < end {
            frame.extend(self.open(&mut from)?);
        }
        if frame.len() > end { Err(wrong()) } else { parse(&frame[4..]) }
    }

    /// Reads and opens the next record.
    fn open(&mut self, from: &mut impl Read) -> io::Result<Vec<u8>> {
        let mut length = [0; 2];
        from.read_exact(&mut length)?;
        let mut record = vec![0; u16::from_le_bytes(length).into()];
        from.read_exact(&mut record)?;
        let changed = || {
            let text =
                format!("record {} was changed on its way, or is not from there", self.count);
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        // A record of a tag alone is nothing that the other side seals.
        let content = record.len().checked_sub(TAG).filter(|content| *content > 0);
        let mut plain = vec![0; content.ok_or_else(changed)?];
        self.session.read_message(self.count, &record, &mut plain).map_err(|_| changed())?;
        self.count += 1;
        Ok(plain)
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

    impl Message for String {}

    /// A message whose frame has that number of bytes: two lengths, `["` and `",0]`.
    fn message(bytes: usize) -> String {
        "x".repeat(bytes - 14)
    }

    fn sealed(sealer: &mut Sealer, message: &str) -> Vec<u8> {
        let mut sealed = Vec::new();
        sealer.send(&mut sealed, &message.to_owned()).unwrap();
        sealed
    }

    #[test]
    fn what_is_sealed_is_opened_on_the_other_side_in_both_directions() {
        let [rank, store] = channels();
        let pairs = [(rank.0, store.1), (store.0, rank.1)];
        for (mut sealer, mut opener) in pairs {
            for count in [15, 100, MAX_PLAIN - 1, MAX_PLAIN, MAX_PLAIN + 1, 1 << 20] {
                let content = message(count);
                let sealed = sealed(&mut sealer, &content);
                assert_eq!(sealed.len(), count + count.div_ceil(MAX_PLAIN) * (2 + TAG));
                let opened: String = opener.receive(&sealed[..]).unwrap();
                assert!(opened == content, "{count} bytes");
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
        let content = message(50);
        let (first, second) = (sealed(&mut sealer, &content), sealed(&mut sealer, &content));
        let mut wrong = vec![
            second.clone(),
            sealed(&mut channels()[0].0, &content),
            sealed(&mut back, &content),
        ];
        wrong.extend((0..8 * first.len()).map(|bit| {
            let mut changed = first.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            changed
        }));
        wrong.extend((0..first.len()).map(|length| first[..length].to_vec()));
        wrong.push([&[TAG as u8, 0][..], &[0; TAG]].concat());
        for sealed in wrong {
            opener.receive::<String>(&sealed[..]).unwrap_err();
            assert_eq!(opener.count, 0);
        }
        // It opens in its place, and once.
        assert_eq!(opener.receive::<String>(&first[..]).unwrap(), content);
        let error = opener.receive::<String>(&first[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("record 1 was changed on its way"), "{error}");
        assert_eq!(opener.receive::<String>(&second[..]).unwrap(), content);
    }

    #[test]
    fn records_that_are_no_message_are_refused() {
        let [(sealer, _), (_, mut opener)] = channels();
        // Shorter than a length, longer than the length says, an empty message, and one that nobody may send.
        let plain: [&[u8]; 4] = [&[0; 3], &[1, 0, 0, 0, b'0', b'0'], &[0; 4], &[0, 0, 0, 255]];
        for (count, plain) in (0..).zip(plain) {
            let mut record = vec![0; plain.len() + TAG];
            sealer.session.write_message(count, plain, &mut record).unwrap();
            let sealed = [&(record.len() as u16).to_le_bytes()[..], &record].concat();
            let error = opener.receive::<String>(&sealed[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
    }
}
