//! The messages between ranks and the store, as bytes.
//!
//! What belongs here: frames (a length, a kind, a body), the messages in them, and their limits. No
//! socket is opened here, and nothing is encrypted: that is `channel.rs`. Invariant: reading any bytes allocates no more than the
//! limit that the reader sets, and ends in a message or in an error; it never panics.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::identity::Member;

/// The first bytes of every connection: anything else is no rank of ours.
pub const MAGIC: [u8; 8] = *b"ovrlpgm\n";

/// What both sides have to speak. A change of any message, or of what follows on memory, raises it.
pub const PROTOCOL_VERSION: u32 = 2;

/// A message of the handshake: a public key of 32 bytes and a tag of 16, without a payload.
pub const HANDSHAKE: usize = 32 + 16;

/// The longest frame before both sides have shown that they know the secret.
pub const MAX_UNPROVED: usize = 512;

/// The longest frame afterwards, and the most that a rank may bring to an exchange.
pub const MAX_FRAME: usize = 16 << 20;

/// What a rank tells the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Who comes, of which job, and how many it expects.
    Join { job: String, ranks: u32, member: Member },
    /// This rank's part of an exchange. Exchanges are numbered; `what` names it for people.
    Bring { exchange: u64, what: String, part: Vec<u8> },
    /// Who has not come to the exchange? Without one: to the group?
    Ask { exchange: Option<u64> },
    /// Ends the group on all ranks.
    Abort { reason: String },
    /// This rank goes, and owes nothing.
    Leave,
}

/// What the store tells a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// All are here, in the order of their ranks.
    Complete { members: Vec<Member> },
    /// Everybody's part, in the order of the ranks.
    Gathered { exchange: u64, parts: Arc<Vec<Vec<u8>>> },
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
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    pub version: u32,
    pub rank: u32,
    pub nonce: [u8; 32],
}

/// What is wrong with what `rank` sent, for people.
pub fn nonsense(rank: u32, error: &io::Error) -> String {
    format!("rank {rank} sent what cannot be understood: {error}")
}

/// A message that can be a frame's kind and body.
pub trait Message: Sized {
    fn encode(&self, body: &mut Body) -> u8;
    fn decode(kind: u8, body: &mut Cursor<'_>) -> Option<Self>;
}

/// Writes one frame.
pub fn send(to: &mut impl Write, message: &impl Message) -> io::Result<()> {
    to.write_all(&frame(message)?)?;
    to.flush()
}

/// A message as a frame.
pub fn frame(message: &impl Message) -> io::Result<Vec<u8>> {
    let mut body = Body(vec![0; 5]);
    let kind = message.encode(&mut body);
    let Body(mut bytes) = body;
    let length = bytes.len() - 4;
    if length > MAX_FRAME {
        let text = format!("a message of {length} bytes is longer than {MAX_FRAME}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[4] = kind;
    Ok(bytes)
}

/// Reads one frame of at most `limit` bytes.
pub fn receive<T: Message>(from: &mut impl Read, limit: usize) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    let malformed = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    if length == 0 || length > limit {
        return Err(malformed(format!("a message of {length} bytes, where 1 to {limit} may come")));
    }
    // Grows with what really comes: a length alone costs nothing.
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (kind, mut body) = (bytes[0], Cursor(&bytes[1..]));
    let message = T::decode(kind, &mut body).filter(|_| body.0.is_empty());
    message.ok_or_else(|| malformed(format!("a message of kind {kind} that makes no sense")))
}

/// A frame's body while it is written.
#[derive(Debug)]
pub struct Body(Vec<u8>);

impl Body {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend(bytes);
    }
    fn member(&mut self, member: &Member) {
        let Member { rank, host, process, user, version, device } = member;
        self.u32(*rank);
        self.u32(*process);
        self.u32(*user);
        for text in [host, version, device] {
            self.bytes(text.as_bytes());
        }
    }
    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Body, &T)) {
        self.u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
        items.iter().for_each(|item| each(self, item));
    }
}

/// A frame's body while it is read.
#[derive(Debug)]
pub struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn bytes(&mut self) -> Option<Vec<u8>> {
        let count = self.u32()?;
        self.take(count as usize).map(<[u8]>::to_vec)
    }
    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }
    fn member(&mut self) -> Option<Member> {
        let (rank, process, user) = (self.u32()?, self.u32()?, self.u32()?);
        let (host, version) = (self.text()?, self.text()?);
        Some(Member { rank, host, process, user, version, device: self.text()? })
    }
    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()?;
        // No capacity is reserved: a count is only believed as far as items follow.
        (0..count).map(|_| each(self)).collect()
    }
}

impl Message for Hello {
    fn encode(&self, body: &mut Body) -> u8 {
        body.0.extend(MAGIC);
        body.u32(self.version);
        body.u32(self.rank);
        body.0.extend(self.nonce);
        b'H'
    }
    fn decode(kind: u8, body: &mut Cursor<'_>) -> Option<Self> {
        if kind != b'H' || body.array()? != MAGIC {
            return None;
        }
        Some(Hello { version: body.u32()?, rank: body.u32()?, nonce: body.array()? })
    }
}

/// A message of the handshake.
impl Message for [u8; HANDSHAKE] {
    fn encode(&self, body: &mut Body) -> u8 {
        body.0.extend(self);
        b'N'
    }
    fn decode(kind: u8, body: &mut Cursor<'_>) -> Option<Self> {
        if kind == b'N' { body.array() } else { None }
    }
}

impl Message for Request {
    fn encode(&self, body: &mut Body) -> u8 {
        match self {
            Request::Join { job, ranks, member } => {
                body.bytes(job.as_bytes());
                body.u32(*ranks);
                body.member(member);
                b'j'
            }
            Request::Bring { exchange, what, part } => {
                body.u64(*exchange);
                body.bytes(what.as_bytes());
                body.bytes(part);
                b'b'
            }
            Request::Ask { exchange } => {
                exchange.iter().for_each(|number| body.u64(*number));
                b'?'
            }
            Request::Abort { reason } => {
                body.bytes(reason.as_bytes());
                b'a'
            }
            Request::Leave => b'l',
        }
    }
    fn decode(kind: u8, body: &mut Cursor<'_>) -> Option<Self> {
        Some(match kind {
            b'j' => {
                let job = body.text()?;
                Request::Join { job, ranks: body.u32()?, member: body.member()? }
            }
            b'b' => {
                let exchange = body.u64()?;
                Request::Bring { exchange, what: body.text()?, part: body.bytes()? }
            }
            b'?' if body.0.is_empty() => Request::Ask { exchange: None },
            b'?' => Request::Ask { exchange: Some(body.u64()?) },
            b'a' => Request::Abort { reason: body.text()? },
            b'l' => Request::Leave,
            _ => return None,
        })
    }
}

impl Message for Notice {
    fn encode(&self, body: &mut Body) -> u8 {
        match self {
            Notice::Complete { members } => {
                body.list(members, Body::member);
                b'C'
            }
            Notice::Gathered { exchange, parts } => {
                body.u64(*exchange);
                body.list(parts, |body, part| body.bytes(part));
                b'G'
            }
            Notice::Missing { ranks } => {
                body.list(ranks, |body, rank| body.u32(*rank));
                b'M'
            }
            Notice::Left { rank } => {
                body.u32(*rank);
                b'L'
            }
            Notice::Closed => b'Z',
            Notice::Ended(Ending::Refused { reason }) => {
                body.bytes(reason.as_bytes());
                b'R'
            }
            Notice::Ended(Ending::Lost { rank }) => {
                body.u32(*rank);
                b'X'
            }
            Notice::Ended(Ending::Aborted { by, reason }) => {
                body.u32(*by);
                body.bytes(reason.as_bytes());
                b'A'
            }
        }
    }
    fn decode(kind: u8, body: &mut Cursor<'_>) -> Option<Self> {
        Some(match kind {
            b'C' => Notice::Complete { members: body.list(Cursor::member)? },
            b'G' => {
                let exchange = body.u64()?;
                Notice::Gathered { exchange, parts: Arc::new(body.list(Cursor::bytes)?) }
            }
            b'M' => Notice::Missing { ranks: body.list(Cursor::u32)? },
            b'L' => Notice::Left { rank: body.u32()? },
            b'Z' => Notice::Closed,
            b'R' => Notice::Ended(Ending::Refused { reason: body.text()? }),
            b'X' => Notice::Ended(Ending::Lost { rank: body.u32()? }),
            b'A' => {
                let by = body.u32()?;
                Notice::Ended(Ending::Aborted { by, reason: body.text()? })
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip<T: Message + PartialEq + std::fmt::Debug>(message: T) {
        let mut bytes = Vec::new();
        send(&mut bytes, &message).unwrap();
        assert_eq!(receive::<T>(&mut &bytes[..], MAX_FRAME).unwrap(), message);
        // Cut anywhere, or one byte longer inside, it is no message.
        for end in 0..bytes.len() {
            assert!(receive::<T>(&mut &bytes[..end], MAX_FRAME).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        longer[..4].copy_from_slice(&(bytes.len() as u32 - 3).to_le_bytes());
        assert!(receive::<T>(&mut &longer[..], MAX_FRAME).is_err());
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let member = Member { device: "0000:1a:00.0".into(), ..Member::this_process(3) };
        let parts = Arc::new(vec![vec![], vec![1, 2, 3], vec![0; 1000]]);
        round_trip(Hello { version: 7, rank: 5, nonce: [9; 32] });
        round_trip([3u8; HANDSHAKE]);
        let job = "SLURM_JOB_ID=7".into();
        round_trip(Request::Join { job, ranks: 8, member: member.clone() });
        round_trip(Request::Bring { exchange: 1 << 40, what: "a plan".into(), part: vec![5; 99] });
        round_trip(Request::Ask { exchange: Some(7) });
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
    }

    #[test]
    fn lengths_are_limited_before_anything_is_read() {
        let refused = |length: u32, limit| {
            let bytes = length.to_le_bytes();
            receive::<Request>(&mut &bytes[..], limit).unwrap_err().to_string()
        };
        assert!(refused(u32::MAX, MAX_FRAME).contains("4294967295 bytes"));
        assert!(refused(513, MAX_UNPROVED).contains("513 bytes, where 1 to 512"));
        assert!(refused(0, MAX_UNPROVED).contains("0 bytes"));
        let huge = Request::Bring { exchange: 0, what: String::new(), part: vec![0; MAX_FRAME] };
        let error = send(&mut Vec::new(), &huge).unwrap_err();
        assert!(error.to_string().contains("is longer than 16777216"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_message_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..300),
                                                  kind in prop::sample::select(b"HNjb?alCGMLZRXA".to_vec()),
                                                  framed in any::<bool>()) {
            if framed && bytes.len() > 5 {
                let length = (bytes.len() - 4) as u32;
                bytes[..4].copy_from_slice(&length.to_le_bytes());
                bytes[4] = kind;
            }
            let _ = receive::<Hello>(&mut &bytes[..], MAX_UNPROVED);
            let _ = receive::<[u8; HANDSHAKE]>(&mut &bytes[..], MAX_UNPROVED);
            let _ = receive::<Request>(&mut &bytes[..], MAX_FRAME);
            let _ = receive::<Notice>(&mut &bytes[..], MAX_FRAME);
        }
    }
}
