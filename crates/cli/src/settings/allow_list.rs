//! The hosts that may be called: only those that the operator allowed.
//!
//! | entry | allows |
//! | --- | --- |
//! | `api.example.org` | this host, on any port |
//! | `api.example.org:8443` | this host on this port |
//! | `*.example.org` | every host below `example.org`, not `example.org` itself |
//! | `10.0.0.7`, `[::1]:8080`, `localhost` | this address, although it is private |

use std::net::IpAddr;

use url::Host;

/// The hosts that may be called. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    host: Pattern,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Address(IpAddr),
    Exact(String),
    /// Every host below this domain, which has a leading dot.
    Below(String),
}

/// An entry that is not a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{entry}` is not a host to allow: {problem}; write `api.example.org`, `api.example.org:8443` \
     or `*.example.org`"
)]
pub struct BadHost {
    /// The entry as it was given.
    pub entry: String,
    /// The mistake in it.
    pub problem: &'static str,
}

impl AllowList {
    /// Parses the entries.
    ///
    /// # Errors
    /// Returns the first entry that is not a host.
    pub fn parse<T: AsRef<str>>(entries: impl IntoIterator<Item = T>) -> Result<Self, BadHost> {
        let rules = entries.into_iter().map(|entry| rule(entry.as_ref()));
        rules.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether no host is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether this host may be called on this port.
    #[must_use]
    pub fn allows(&self, host: &Host<&str>, port: u16) -> bool {
        self.0
            .iter()
            .filter(|rule| rule.port.is_none_or(|p| p == port))
            .any(|rule| match (&rule.host, host) {
                (Pattern::Address(allowed), Host::Ipv4(ip)) => *allowed == IpAddr::V4(*ip),
                (Pattern::Address(allowed), Host::Ipv6(ip)) => *allowed == IpAddr::V6(*ip),
                (Pattern::Exact(allowed), Host::Domain(name)) => *allowed == canonical(name),
                (Pattern::Below(suffix), Host::Domain(name)) => canonical(name)
                    .strip_suffix(suffix)
                    .is_some_and(|label| !label.is_empty()),
                _ => false,
            })
    }
}

/// Returns a name in the form that is compared: lower case, without the final dot.
pub(crate) fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn rule(entry: &str) -> Result<Rule, BadHost> {
    let entry = entry.trim();
    let bad = |problem| BadHost {
        entry: entry.to_owned(),
        problem,
    };
    if entry.is_empty() {
        return Err(bad("it is empty"));
    }
    if entry.contains(['/', '@', '?', '#']) {
        return Err(bad("it is a URL or a part of one; give only host and port"));
    }
    let bare = entry.strip_prefix('[').and_then(|e| e.strip_suffix(']'));
    if let Ok(ip) = bare.unwrap_or(entry).parse::<IpAddr>() {
        return Ok(Rule {
            host: Pattern::Address(ip),
            port: None,
        });
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse().ok().filter(|p| *p != 0);
            (
                host,
                Some(port.ok_or_else(|| bad("its port is not 1 to 65535"))?),
            )
        }
        None => (entry, None),
    };
    let host = match host.strip_prefix("*.") {
        Some(domain) => match parse_host(domain) {
            Some(Host::Domain(name)) => Pattern::Below(format!(".{}", canonical(&name))),
            _ => return Err(bad("`*.` is not followed by a domain")),
        },
        None => match parse_host(host) {
            Some(Host::Domain(name)) => Pattern::Exact(canonical(&name)),
            Some(Host::Ipv4(ip)) => Pattern::Address(IpAddr::V4(ip)),
            Some(Host::Ipv6(ip)) => Pattern::Address(IpAddr::V6(ip)),
            None => return Err(bad("it is not a host name")),
        },
    };
    Ok(Rule { host, port })
}

/// Parses a host by the rules for URLs, so that both sides of a comparison have the same form.
fn parse_host(text: &str) -> Option<Host> {
    if text.contains('*') {
        return None;
    }
    Host::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(entry: &str, url: &str) -> bool {
        let list = AllowList::parse([entry]).unwrap();
        let url = url::Url::parse(url).unwrap();
        list.allows(&url.host().unwrap(), url.port_or_known_default().unwrap())
    }

    #[test]
    fn a_host_is_allowed_exactly() {
        assert!(allows("api.example.org", "https://API.example.org./x"));
        assert!(allows("API.example.org.", "https://api.example.org:8443/x"));
        assert!(!allows("example.org", "https://api.example.org"));
        assert!(!allows(
            "api.example.org",
            "https://api.example.org.evil.net"
        ));
        assert!(!allows("api.example.org", "https://xapi.example.org"));
    }

    #[test]
    fn a_port_limits_the_entry() {
        assert!(allows(
            "api.example.org:8443",
            "https://api.example.org:8443"
        ));
        assert!(!allows("api.example.org:8443", "https://api.example.org"));
        assert!(allows("api.example.org:443", "https://api.example.org"));
    }

    #[test]
    fn a_star_allows_what_is_below() {
        assert!(allows("*.example.org", "https://a.b.example.org"));
        assert!(!allows("*.example.org", "https://example.org"));
        assert!(!allows("*.example.org", "https://evilexample.org"));
    }

    #[test]
    fn addresses_are_compared_as_addresses() {
        assert!(allows("[::1]", "http://[::1]:81"));
        assert!(allows("127.0.0.1", "http://127.0.0.1:81"));
        assert!(allows("127.0.0.1", "http://0x7f.1/"));
        assert!(allows("[::1]:8080", "http://[0:0::1]:8080"));
        assert!(allows("::1", "http://[::1]"));
        assert!(!allows("127.0.0.1", "http://127.0.0.2"));
    }

    #[test]
    fn nonsense_is_refused() {
        for entry in [
            "",
            "https://a.org",
            "a.org/x",
            "a.org:0",
            "a.org:x",
            "*.",
            "*",
            "*.*.org",
            "a b",
        ] {
            assert!(AllowList::parse([entry]).is_err(), "{entry}");
        }
    }
}
