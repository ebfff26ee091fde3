//! The commit tap: streams the rows that other programs commit to chosen tables of PostgreSQL,
//! about as soon as their COMMIT returns.
//!
//! It reads PostgreSQL's logical replication (pgoutput) on a **temporary** replication slot. Such a
//! slot ends with its connection, so a tap that died keeps no WAL. The price is a **gap**: what
//! commits while no slot stands is not reported. A tap is therefore an accelerator beside a search
//! of the tables, and never the only source: the receiver looks for itself once after each
//! [`Event::Standing`].
//!
//! ```no_run
//! use jobwire_tap::{Address, Event, Tap, TapOptions};
//!
//! # async fn example() -> Result<(), jobwire_tap::TapError> {
//! let mut options = TapOptions::default();
//! options.publication = "shop_tap".to_owned();
//! let address = Address::new("/run/postgresql", 5432, "tap", "shop");
//! let mut tap = Tap::open(address, options)?;
//! loop {
//!     match tap.next().await {
//!         Event::Standing => println!("look for what was committed before"),
//!         Event::Rows(rows) => {
//!             for id in rows.texts("id") {
//!                 println!("{} {id} is committed", rows.table.name);
//!             }
//!         }
//!         Event::Gap(why) => println!("nothing is reported until the next slot: {why}"),
//!         _ => {}
//!     }
//! }
//! # }
//! ```
//!
//! # What holds
//! * **Memory is bounded.** A transaction of any size is passed on in events of
//!   [`TapOptions::rows`] rows, of which at most [`TapOptions::events`] wait.
//! * **No WAL is kept for ever.** Positions are confirmed when they were received. A receiver that
//!   takes no event for [`TapOptions::stall`] loses the slot. A connection on which the server sends
//!   nothing for [`TapOptions::silence`] is closed, and the server closes it on its side.
//! * **A report may come before the row is visible** to other sessions, by milliseconds. The server
//!   sends a commit when it is in the WAL, and shows it a moment later.
//! * A transaction with `synchronous_commit = off` is reported when the server has flushed it.
//!
//! # What is needed
//! [`preflight`] tells what is missing: `wal_level = logical` (a restart of the server), a user with
//! the right REPLICATION, a free replication slot and WAL sender, and a [`PgPublication`]. A pooler
//! in between must pass replication on. PostgreSQL 13 or newer; 15 for columns and conditions of
//! rows.

mod address;
mod decode;
mod error;
mod event;
mod login;
mod messages;
mod options;
mod preflight;
mod publication;
mod session;
mod slot;
mod tap;
mod tls;
mod wire;

pub use address::{Address, Pem, Tls, TlsMode};
pub use error::TapError;
pub use event::{Change, Commit, Event, Row, Rows, Table, Value};
pub use options::TapOptions;
pub use preflight::{About, Finding, preflight};
pub use publication::{Changes, PgPublication, PublishedTable};
pub use tap::Tap;
