//! The addresses of a host's name.
//!
//! What belongs here: the one look-up of a name, for the store that listens there and for the
//! ranks that connect. Invariant: both sides use the same addresses for one name; `localhost` is 127.0.0.1
//! for both, so that no other process can listen at another address of it. A look-up ends within the
//! caller's limit, even if the system's resolver does not.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

/// Where `port` of `host` may be: one place at least.
pub(super) fn addresses(host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Some(ip) = known(host) {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    let all: Vec<_> = within(until, move || Ok((&*name, port).to_socket_addrs()?.collect()))?;
    if all.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(all) }
}

/// What `look` finds, if it does so in time. A resolver knows no limit: it is left to its thread.
fn within<T: Send + 'static>(
    until: Instant,
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = channel();
    let thread = thread::Builder::new().name("overlap-gemm name".into());
    thread.spawn(move || drop(tell.send(look())))?;
    match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => {
            let text = "looking up the name took longer than the limit";
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the resolver failed")),
    }
}

/// Whether only processes of this machine can come to `host`. A name can lead to the loopback device here
/// and to the network elsewhere, Debian's own host name for one: that is no such host.
pub(super) fn is_only_here(host: &str) -> bool {
    known(host).is_some_and(|ip| ip.is_loopback())
}

/// The address of a host that nobody has to be asked for.
fn known(host: &str) -> Option<IpAddr> {
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.eq_ignore_ascii_case("localhost") {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_resolver_that_does_not_answer_is_waited_for_as_long_as_the_limit_says() {
        let (answer, answered) = channel::<()>();
        let begin = Instant::now();
        let limit = Duration::from_millis(50);
        let error = within(begin + limit, move || answered.recv().map_err(io::Error::other));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!((limit..Duration::from_secs(20)).contains(&begin.elapsed()));
        drop(answer);
        let long = begin + Duration::from_secs(60);
        assert_eq!(within(long, || Ok(7)).unwrap(), 7);
        assert_eq!(
            within(long, || Err::<(), _>(io::Error::other("no"))).unwrap_err().to_string(),
            "no"
        );
    }

    #[test]
    fn localhost_is_one_address() {
        let soon = Instant::now();
        let expected = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7))];
        for host in ["localhost", "LocalHost", "localhost.", "127.0.0.1"] {
            assert_eq!(addresses(host, 7, soon).unwrap(), expected, "{host}");
            assert!(is_only_here(host), "{host}");
        }
        assert_eq!(addresses("::1", 7, soon).unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(is_only_here("::1") && is_only_here("127.8.9.1"));
        assert!(!is_only_here("0.0.0.0") && !is_only_here("localhost.example"));
    }
}
