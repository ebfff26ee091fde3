//! The snippets of the documentation, each a module.
#![allow(dead_code, unused, reason = "snippets show forms; nothing calls them")]

include!(concat!(env!("OUT_DIR"), "/snippets.rs"));
