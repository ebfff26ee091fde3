//! `jobwire nodes`: shows the nodes and the jobs that each takes.
//!
//! The command reads the table `node` and asks no broker. A node writes its row once a minute. A
//! node that has not written it for two and a half minutes is shown as silent. After five minutes
//! the leader removes the row.

use clap::Args;
use jobwire_core::job::scope::Names;
use jobwire_core::store::NodeView;
use serde_json::{Value, json};

use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Arguments.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

pub(crate) async fn run(settings: Settings, args: NodesArgs) -> Result<(), Error> {
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let nodes = store.nodes().await?;
    store.close().await;
    if args.json {
        return output::json(&nodes.iter().map(as_json).collect::<Vec<_>>());
    }
    let rows: Vec<[String; 8]> = nodes.iter().map(as_row).collect();
    output::table(
        [
            "NODE", "STATE", "HOST", "VERSION", "STARTED", "LANES", "TYPES", "ONLY",
        ],
        &rows,
    )
}

fn state(node: &NodeView) -> &'static str {
    if node.lives() { "alive" } else { "silent" }
}

fn scope(node: &NodeView) -> [(&'static str, &Names); 3] {
    let scope = &node.membership.scope;
    [
        ("deployments", &scope.deployments),
        ("categories", &scope.categories),
        ("tenants", &scope.tenants),
    ]
}

fn as_row(node: &NodeView) -> [String; 8] {
    let it = &node.membership;
    let lanes: Vec<&str> = it.lanes.iter().map(|lane| lane.as_str()).collect();
    let only = scope(node).into_iter().filter_map(|(kind, names)| {
        let names = names.as_ref()?.iter().cloned().collect::<Vec<_>>();
        Some(format!("{kind}: {}", names.join(",")))
    });
    let bounds = &it.scope;
    let bounds = match (bounds.min_priority, bounds.max_priority) {
        (None, None) => None,
        (min, max) => {
            let text = |bound: Option<i64>| bound.map(|n| n.to_string()).unwrap_or_default();
            Some(format!("priorities: {}..{}", text(min), text(max)))
        }
    };
    let only = only.chain(bounds);
    [
        it.id.to_string(),
        state(node).to_owned(),
        it.host.clone(),
        it.version.clone(),
        node.started_at.format("%Y-%m-%d %H:%M:%SZ").to_string(),
        lanes.join(","),
        it.types.join(","),
        only.collect::<Vec<_>>().join("; "),
    ]
}

fn as_json(node: &NodeView) -> Value {
    let it = &node.membership;
    let mut value = json!({
        "id": it.id,
        "state": state(node),
        "host": it.host,
        "version": it.version,
        "transport": it.transport,
        "started_at": node.started_at,
        "seen_at": node.seen_at,
        "lanes": it.lanes,
        "types": it.types,
    });
    for (kind, names) in scope(node) {
        value[kind] = json!(names);
    }
    value["min_priority"] = json!(it.scope.min_priority);
    value["max_priority"] = json!(it.scope.max_priority);
    value
}
