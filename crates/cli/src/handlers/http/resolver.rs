//! Resolves names. A name is resolved once, its address is checked, and the connection goes to that
//! address. So a name server that changes its answer (DNS rebinding) has no effect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::settings::canonical;

/// A name that resolves to an address of the operator's own networks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` resolves to the private address {address}; if this is intended, allow the address \
     itself"
)]
pub(super) struct PrivateAddress {
    name: String,
    address: IpAddr,
}

/// Looks up the addresses of a name.
pub(super) type Lookup = fn(String) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>>;

/// Refuses private addresses for every name except `localhost`, which the allow list has checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublicResolver {
    lookup: Lookup,
}

impl PublicResolver {
    /// Creates a resolver that uses the machine's resolver.
    pub(super) fn of_the_machine() -> Self {
        Self::asking(|name| {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
        })
    }

    pub(super) fn asking(lookup: Lookup) -> Self {
        Self { lookup }
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        let lookup = (self.lookup)(name.clone());
        Box::pin(async move {
            let found = lookup.await?;
            check(&name, &found)?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

fn check(name: &str, found: &[SocketAddr]) -> Result<(), PrivateAddress> {
    if canonical(name) == "localhost" {
        return Ok(());
    }
    // A single private address is refused, since any of the addresses might be used.
    match found.iter().map(SocketAddr::ip).find(|ip| is_private(*ip)) {
        Some(address) => Err(PrivateAddress {
            name: name.to_owned(),
            address,
        }),
        None => Ok(()),
    }
}

/// Returns whether the address is not public unicast.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_private_v4(ip),
        IpAddr::V6(ip) => is_private_v6(ip),
    }
}

fn is_private_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b)) // shared by carriers
        || (a == 198 && (b == 18 || b == 19)) // benchmarks
        || (a == 192 && b == 0 && c == 0) // protocol assignments
}

fn is_private_v6(ip: Ipv6Addr) -> bool {
    let s = ip.segments();
    // An IPv4 address in IPv6: mapped, compatible, translated (NAT64), 6to4.
    let inner = match s {
        [0, 0, 0, 0, 0, 0xffff | 0, hi, lo]
        | [0x64, 0xff9b, 0, 0, 0, 0, hi, lo]
        | [0x2002, hi, lo, ..] => {
            let [a, b] = hi.to_be_bytes();
            let [c, d] = lo.to_be_bytes();
            is_private_v4(Ipv4Addr::new(a, b, c, d))
        }
        _ => false,
    };
    // Global unicast is 2000::/3; translated addresses (NAT64) are outside it.
    let global = (s[0] & 0xe000) == 0x2000 || (s[0] == 0x64 && s[1] == 0xff9b && s[2] == 0);
    let mapped = matches!(s, [0, 0, 0, 0, 0, 0xffff, ..]);
    inner || !(global || mapped) || (s[0] == 0x2001 && (s[1] == 0xdb8 || s[1] == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_known() {
        for ip in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::",
            "::1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(is_private(ip.parse().unwrap()), "{ip}");
        }
        for ip in [
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ] {
            assert!(!is_private(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn a_name_with_a_private_address_is_refused_unless_it_is_localhost() {
        let public: SocketAddr = "8.8.8.8:0".parse().unwrap();
        let private: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert!(check("a.example.org", &[public]).is_ok());
        assert!(check("a.example.org", &[public, private]).is_err());
        assert!(check("localhost", &[private]).is_ok());
    }
}
