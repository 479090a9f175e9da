//! The messages between ranks and the store, as bytes.
//!
//! What belongs here: the messages, their frames, and their limits. A frame is a length of four bytes, and then pieces, each
//! behind its own length: the message as JSON, with the number of other pieces, and what ranks bring, as it is. No
//! socket is opened here, and nothing is encrypted: that is `channel.rs`. Invariant: reading any bytes allocates a small
//! multiple of the limit that the reader sets at most, and ends in a message or in an error; it never panics.

use std::io::{self, Read, Write};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::identity::Member;

/// What both sides have to speak. A change of any message, or of what follows on memory, raises it.
pub const PROTOCOL_VERSION: u32 = 3;

/// The longest frame before both sides have shown that they know the secret.
pub const MAX_UNPROVED: usize = 512;

/// The most bytes that all ranks together may bring to an exchange.
pub const MAX_BROUGHT: usize = 16 << 20;

/// The longest frame afterwards.
pub const MAX_FRAME: usize = MAX_BROUGHT + (64 << 10);

/// What a rank tells the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Who comes, of which job, and how many it expects.
    Join { job: String, ranks: u32, member: Member },
    /// This rank's part of an exchange. Exchanges are numbered; `what` names it for people.
    Bring {
        exchange: u64,
        what: String,
        #[serde(skip)]
        part: Vec<u8>,
    },
    /// Who has not come to the exchange? Without one: to the group?
    Ask { exchange: Option<u64> },
    /// Ends the group on all ranks.
    Abort { reason: String },
    /// This rank goes, and owes nothing.
    Leave,
}

/// What the store tells a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// All are here, in the order of their ranks.
    Complete { members: Vec<Member> },
    /// Everybody's part, in the order of the ranks.
    Gathered {
        exchange: u64,
        #[serde(skip)]
        parts: Arc<Vec<Vec<u8>>>,
    },
    /// These ranks have not come.
    Missing { ranks: Vec<u32> },
    /// A rank has left properly.
    Left { rank: u32 },
    /// The store's own rank has left properly, and the store with it.
    Closed,
    /// The group is over.
    Ended(Ending),
}

/// Why a group is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ending {
    /// The ranks do not fit together; the group was never formed, or an exchange was refused.
    Refused { reason: String },
    /// A rank's process ended, or its connection broke.
    Lost { rank: u32 },
    /// A rank asked for it.
    Aborted { by: u32, reason: String },
}

/// The first frame of either side, in clear text: who speaks, and a number for this connection alone. It is the
/// same in all versions of the protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    pub rank: u32,
    pub nonce: [u8; 32],
}

/// What is wrong with what `rank` sent, for people.
pub fn nonsense(rank: u32, error: &io::Error) -> String {
    format!("rank {rank} sent what cannot be understood: {error}")
}

/// What can be in a frame.
pub trait Message: Serialize + DeserializeOwned {
    /// What travels as it is.
    fn parts(&self) -> &[Vec<u8>] {
        &[]
    }
    /// Puts that back; whether it fits the message.
    fn put(&mut self, parts: Vec<Vec<u8>>) -> bool {
        parts.is_empty()
    }
}

impl Message for Hello {}

/// A message of the handshake.
impl Message for Vec<u8> {}

impl Message for Request {
    fn parts(&self) -> &[Vec<u8>] {
        match self {
            Request::Bring { part, .. } => std::slice::from_ref(part),
            _ => &[],
        }
    }
    fn put(&mut self, mut parts: Vec<Vec<u8>>) -> bool {
        match (self, parts.pop()) {
            (Request::Bring { part, .. }, Some(brought)) => *part = brought,
            (Request::Bring { .. }, None) | (_, Some(_)) => return false,
            (_, None) => {}
        }
        parts.is_empty()
    }
}

impl Message for Notice {
    fn parts(&self) -> &[Vec<u8>] {
        match self {
            Notice::Gathered { parts, .. } => parts,
            _ => &[],
        }
    }
    fn put(&mut self, brought: Vec<Vec<u8>>) -> bool {
        match self {
            Notice::Gathered { parts, .. } => *parts = Arc::new(brought),
            _ => return brought.is_empty(),
        }
        true
    }
}

/// A message as a frame.
pub fn frame(message: &impl Message) -> io::Result<Vec<u8>> {
    let parts = message.parts();
    let json = serde_json::to_vec(&(message, parts.len()))?;
    let pieces = || std::iter::once(&json).chain(parts);
    let length: usize = pieces().map(|piece| 4 + piece.len()).sum();
    if length > MAX_FRAME {
        let text = format!("a message of {length} bytes is longer than {MAX_FRAME}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend((length as u32).to_le_bytes());
    for piece in pieces() {
        bytes.extend((piece.len() as u32).to_le_bytes());
        bytes.extend(piece);
    }
    Ok(bytes)
}

fn malformed(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The length of what follows the first four bytes of a frame, of at most `limit` bytes.
pub fn length_of(start: [u8; 4], limit: usize) -> io::Result<usize> {
    let length = u32::from_le_bytes(start) as usize;
    match length {
        0 => Err(malformed("a message of 0 bytes".into())),
        _ if length > limit => {
            Err(malformed(format!("a message of {length} bytes, where 1 to {limit} may come")))
        }
        _ => Ok(length),
    }
}

/// The message in a frame, without its length.
pub fn parse<T: Message>(mut body: &[u8]) -> io::Result<T> {
    let mut piece = || {
        let (length, rest) = body.split_first_chunk()?;
        let (piece, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        body = rest;
        Some(piece)
    };
    let json = piece().unwrap_or_default();
    let (mut message, count): (T, usize) = serde_json::from_slice(json)
        .map_err(|error| malformed(format!("a message that makes no sense: {error}")))?;
    // No capacity is reserved: a count is only believed as far as pieces follow.
    let parts: Option<Vec<_>> = (0..count).map(|_| piece().map(<[u8]>::to_vec)).collect();
    if let Some(parts) = parts
        && body.is_empty()
        && message.put(parts)
    {
        return Ok(message);
    }
    Err(malformed("a message whose parts make no sense".into()))
}

/// Writes one frame in clear text.
pub fn send(to: &mut impl Write, message: &impl Message) -> io::Result<()> {
    to.write_all(&frame(message)?)?;
    to.flush()
}

/// Reads one frame in clear text, of at most [`MAX_UNPROVED`] bytes.
pub fn receive<T: Message>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut body = vec![0; length_of(length, MAX_UNPROVED)?];
    from.read_exact(&mut body)?;
    parse(&body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip<T: Message + PartialEq + std::fmt::Debug>(message: T) {
        let bytes = frame(&message).unwrap();
        assert_eq!(length_of(*bytes.first_chunk().unwrap(), MAX_FRAME).unwrap(), bytes.len() - 4);
        assert_eq!(parse::<T>(&bytes[4..]).unwrap(), message);
        // Cut anywhere, or one byte longer, it is no message.
        for end in 4..bytes.len() {
            assert!(parse::<T>(&bytes[4..end]).is_err());
        }
        assert!(parse::<T>(&[&bytes[4..], b"0"].concat()).is_err());
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let member = Member { device: "0000:1a:00.0".into(), ..Member::this_process(3) };
        let parts = Arc::new(vec![vec![], vec![1, 2, 3], vec![0; 1000]]);
        round_trip(Hello { version: 7, rank: 5, nonce: [9; 32] });
        let job = "SLURM_JOB_ID=7".into();
        round_trip(Request::Join { job, ranks: 8, member: member.clone() });
        round_trip(Request::Bring { exchange: 1 << 40, what: "a plan".into(), part: vec![5; 99] });
        round_trip(Request::Ask { exchange: Some(7) });
        round_trip(Request::Ask { exchange: None });
        round_trip(Request::Abort { reason: "ä reason".into() });
        round_trip(Request::Leave);
        round_trip(Notice::Complete { members: vec![member.clone(), member] });
        round_trip(Notice::Gathered { exchange: 0, parts });
        round_trip(Notice::Missing { ranks: vec![1, 7] });
        round_trip(Notice::Left { rank: 3 });
        round_trip(Notice::Closed);
        round_trip(Notice::Ended(Ending::Refused { reason: String::new() }));
        round_trip(Notice::Ended(Ending::Lost { rank: 4 }));
        round_trip(Notice::Ended(Ending::Aborted { by: 2, reason: "enough".into() }));
        // The first messages are short, however long their numbers are.
        let hello = Hello { version: u32::MAX, rank: u32::MAX, nonce: [255; 32] };
        assert_eq!(receive::<Hello>(&mut &frame(&hello).unwrap()[..]).unwrap(), hello);
    }

    #[test]
    fn lengths_are_limited_before_anything_is_read() {
        let refused =
            |length: u32, limit| length_of(length.to_le_bytes(), limit).unwrap_err().to_string();
        assert!(refused(u32::MAX, MAX_FRAME).contains("4294967295 bytes"));
        assert!(refused(513, MAX_UNPROVED).contains("513 bytes, where 1 to 512"));
        assert!(refused(0, MAX_UNPROVED).contains("0 bytes"));
        // All that may be brought has room in a frame, and not much more.
        let bring = |bytes| {
            let part = vec![255; bytes];
            frame(&Request::Bring { exchange: 0, what: "x".repeat(1024), part })
        };
        assert!(bring(MAX_BROUGHT).is_ok());
        let error = bring(MAX_FRAME).unwrap_err();
        assert!(error.to_string().contains("is longer than 16842752"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = receive::<Hello>(&mut &bytes[..]);
            let _ = parse::<Request>(&bytes);
            let _ = parse::<Notice>(&bytes);
        }
    }
}
