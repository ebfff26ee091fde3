//! # Jobwire for process engines that already run
//!
//! An engine keeps its jobs in its database and polls for them. This crate adds a message-queue
//! mode from outside. Jobwire finds the jobs, hints them over a broker, and locks them by the
//! engine's own rules. The engine executes them, over its REST interface or over a small endpoint
//! in its application. One property of the engine hands its jobs over to Jobwire.
//!
//! **An engine is a store.** [`EngineStore`] implements [`Store`](jobwire_core::Store) over the
//! engine's tables, so a [`Node`](jobwire_core::Node) runs the engine's jobs like its own. A
//! process runs one node for each store.
//!
//! ```no_run
//! # async fn example(transport: std::sync::Arc<dyn jobwire_core::Transport>) -> Result<(), Box<dyn std::error::Error>> {
//! use jobwire_core::store::TapMode;
//! use jobwire_core::{Node, NodeOptions};
//! use jobwire_engines::{EngineOptions, EngineStore, handlers};
//!
//! let options = EngineOptions::new("http://127.0.0.1:8080/process-api");
//! let store = EngineStore::flowable("postgres://flowable:secret@127.0.0.1/flowable", options).await?;
//! let node = Node::builder(store.clone(), transport)
//!     .handlers(handlers(&store)?)
//!     .options(NodeOptions::default().lanes(vec![store.options().lane.clone().into()]).tap(TapMode::On))
//!     .start()
//!     .await?;
//! # node.stop().await;
//! # Ok(()) }
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`store`] | the store of every engine, over its database |
//! | [`remote`] | the store of an engine over its endpoint alone, on any database |
//! | [`bridge`] | what both stores share |
//! | [`handler`] | the handler that lets the engine execute a job |
//! | [`examine`] | the examination of an engine, for `jobwire doctor` |
//! | [`shadow`] | how long jobs wait now, and would wait over Jobwire, for `jobwire engine shadow` |
//! | [`flowable`] | Flowable, over REST or the endpoint |
//! | [`activiti`] | Activiti, over the endpoint |
//! | [`camunda`] | the rules of Camunda's table |
//! | [`coordination`] | the leader and the nodes, in the schema `jobwire_engine` |
//! | [`id`] | the engine's ids as UUIDs |

mod act;
pub mod activiti;
mod activity;
mod answer;
mod backlog;
pub mod bridge;
mod call;
mod calls;
pub mod camunda;
mod changing;
mod columns;
mod connection;
pub mod coordination;
mod decode;
mod dialect;
mod doubt;
pub mod examine;
mod executing;
mod fate;
mod fault;
mod finding;
pub mod flowable;
mod freed;
mod gate;
pub mod handler;
mod http;
pub mod id;
mod listing;
mod lists;
mod locking;
mod meter;
mod offset;
mod options;
mod other_scopes;
mod owner;
mod pace;
mod parts;
mod priorities;
mod probing;
mod queries;
mod released;
pub mod remote;
mod routing;
mod row;
mod settling;
pub mod shadow;
mod statements;
pub mod store;
mod sweep;
mod sweepable;
mod tap;
mod traceless;
mod unsent;
mod unserved;
mod walk;
mod zone;

pub use bridge::Bridge;
pub use handler::handlers;
pub use options::{Credentials, EngineOptions, Execution, OtherScopes};
pub use remote::EndpointStore;
pub use store::EngineStore;
