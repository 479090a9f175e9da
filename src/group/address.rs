//! Which address a host's name means.
//!
//! What belongs here: the one way from a name to addresses, for the store that listens there and for the
//! ranks that come. Invariant: both sides take the same addresses for one name; `localhost` is 127.0.0.1
//! for both, so that nobody else can listen at another address of it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// Where `port` of `host` may be: one place at least.
pub(super) fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some(ip) = known(host) {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let all: Vec<_> = (host, port).to_socket_addrs()?.collect();
    if all.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(all) }
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

    #[test]
    fn localhost_is_one_address() {
        let expected = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7))];
        for host in ["localhost", "LocalHost", "localhost.", "127.0.0.1"] {
            assert_eq!(addresses(host, 7).unwrap(), expected, "{host}");
            assert!(is_only_here(host), "{host}");
        }
        assert_eq!(addresses("::1", 7).unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(is_only_here("::1") && is_only_here("127.8.9.1"));
        assert!(!is_only_here("0.0.0.0") && !is_only_here("localhost.example"));
    }
}
