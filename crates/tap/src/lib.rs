//! The commit tap: streams the rows that other programs commit to chosen tables of PostgreSQL,
//! about as soon as their COMMIT returns.
//!
//! The tap reads PostgreSQL's logical replication (pgoutput) on a **temporary** replication slot.
//! Such a slot ends with its connection, so a tap that died keeps no WAL. The price is a **gap**:
//! rows that commit while no slot stands are not reported. So a tap only makes a search of the
//! tables faster, and never replaces it. The receiver searches the tables once after each
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
//! # Properties
//! * **Memory is bounded.** A transaction of any size is passed on in events of
//!   [`TapOptions::rows`] rows, of which at most [`TapOptions::events`] wait.
//! * **No WAL is kept for ever.** The tap confirms positions that it has received. A receiver that
//!   takes no event for [`TapOptions::stall`] loses the slot. A connection on which the server
//!   sends nothing for [`TapOptions::silence`] is closed, on both sides.
//! * **A report may come before the row is visible** to other sessions, by milliseconds. The server
//!   sends a commit when it is in the WAL, and shows it a moment later.
//! * A transaction with `synchronous_commit = off` is reported when the server has flushed it.
//!
//! # Requirements
//! A tap needs `wal_level = logical` (a change restarts the server), a user with the right
//! REPLICATION, a free replication slot and WAL sender, and a [`PgPublication`]. [`preflight`]
//! names each missing part. A pooler between tap and server must support replication.
//! PostgreSQL must be 13 or newer; 15 for chosen columns and conditions of rows.

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
