//! `jobwire sweep --dry-run`: shows the work that the sweeper would do now, by class, and changes
//! nothing.
//! `jobwire engine sweep` looks at the jobs of a process engine.
//!
//! The command uses the queries of the sweeper. It counts the classes that the leader cycle repairs
//! in the database. It finds lost hints by markers: it sends a marker through each lane. A job is
//! an orphan if it was ready long enough before the marker left, and is still unlocked when the
//! marker is back. If a marker is not back in time, the hints before it are undecided, or the lane
//! has no consumer. The sweeper does nothing in such a lane, and this command can't count its
//! orphans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Args;
use jobwire_core::hint::Marker;
use jobwire_core::job::query::Sweepable;
use jobwire_core::job::scope::Services;
use jobwire_core::leader::sweeper::MOMENT;
use jobwire_core::producer::bulk::BULK_TYPE;
use jobwire_core::store::{NodeView, OrphanQuery, SUSPENSION_TYPE, received_by, services_of};
use jobwire_core::transport::Control;
use jobwire_core::{JobId, Lane, NodeId, Store, Transport};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::jobs::written;
use crate::connect::{self, Database};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// The time after which a marker that is not back is sent again.
const AGAIN: Duration = Duration::from_secs(2);
/// Maximum number of orphans in one page.
const PAGE: i64 = 10_000;
/// Maximum number of orphans' ids that are shown for a lane.
const SHOWN: usize = 5;

/// Arguments.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Only show the work that the sweeper would do; the leader sweeps by itself
    #[arg(long, required = true)]
    pub dry_run: bool,
    /// The wait and the form of the output.
    #[command(flatten)]
    pub look: LookArgs,
}

/// Arguments of a look.
#[derive(Debug, Args)]
pub struct LookArgs {
    /// Time to wait for the return of the markers
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = jobwire_core::job::duration::parse)]
    pub wait: Duration,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    counted: Sweepable,
    /// The number of living nodes.
    nodes: usize,
    lanes: BTreeMap<String, LaneReport>,
}

#[derive(Serialize)]
struct LaneReport {
    /// Whether the marker came back.
    answered: bool,
    /// Number of jobs whose hint is lost; 0 if the marker did not come back.
    orphans: i64,
    /// The first ids of these jobs.
    ids: Vec<JobId>,
}

/// Sends a marker through each lane, and waits until all are back or the deadline has passed. Returns
/// the lanes whose markers are back.
///
/// A marker may come back before this process receives the messages of the node that reports it. The
/// report is then missed. So a marker that is not back is sent [again](AGAIN).
async fn answering(
    transport: &Arc<dyn Transport>,
    control: &mut broadcast::Receiver<Control>,
    lanes: &BTreeSet<&Lane>,
    until: Instant,
) -> BTreeSet<Lane> {
    let me = NodeId::generate();
    let markers = lanes.iter().zip(1..);
    let mut open: Vec<(&Lane, Marker)> = markers
        .map(|(lane, number)| (*lane, Marker { number, node: me }))
        .collect();
    while !open.is_empty() && Instant::now() < until {
        let sent = Instant::now();
        for (lane, marker) in &open {
            if let Err(error) = transport.publisher().publish_marker(lane, *marker).await {
                tracing::warn!(%lane, %error, "can't send a marker");
            }
        }
        listen(control, until.min(sent + AGAIN), &mut open).await;
    }
    let is_back = |lane: &&&Lane| open.iter().all(|(of, _)| of != *lane);
    lanes
        .iter()
        .filter(is_back)
        .map(|lane| (*lane).clone())
        .collect()
}

/// Takes markers out of `open` when they are back, until none is left or the time has passed.
async fn listen(
    control: &mut broadcast::Receiver<Control>,
    until: Instant,
    open: &mut Vec<(&Lane, Marker)>,
) {
    while !open.is_empty() {
        match tokio::time::timeout_at(until, control.recv()).await {
            Ok(Ok(Control::MarkerBack { marker, .. })) => open.retain(|(_, sent)| *sent != marker),
            Ok(Ok(_) | Err(broadcast::error::RecvError::Lagged(_))) => {}
            Ok(Err(broadcast::error::RecvError::Closed)) | Err(_) => return,
        }
    }
}

pub(crate) async fn run(settings: Settings, args: SweepArgs) -> Result<(), Error> {
    let mut served = crate::handlers::configured(&settings)?.types();
    served.extend([SUSPENSION_TYPE, BULK_TYPE].map(str::to_owned));
    let served: Arc<[String]> = served.into();
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let lanes = settings.lanes.iter().map(|l| l.lane.clone()).collect();
    let result = look(&settings, &*store, (served, lanes), &args.look).await;
    store.close().await;
    result
}

/// Looks at a store, and prints the sweeper's next actions. `served` are the types and lanes of a node
/// without a broker, which may not run now.
pub(crate) async fn look(
    settings: &Settings,
    store: &dyn Store,
    served: (Arc<[String]>, Vec<Lane>),
    args: &LookArgs,
) -> Result<(), Error> {
    let report = if connect::has_wakes(settings) {
        // Wakes leave nothing behind that could be lost: the nodes claim what is ready.
        let nodes = store.nodes().await?;
        let counted = store
            .sweepable(&services_of(&nodes), &received_by(&nodes))
            .await?;
        Report {
            nodes: nodes.iter().filter(|node| node.lives()).count(),
            counted,
            lanes: BTreeMap::new(),
        }
    } else if connect::has_broker(settings) {
        let transport = connect::transport(settings).await?;
        let report = ask(settings, store, &transport, args.wait).await;
        transport.close(Duration::from_secs(5)).await;
        report?
    } else {
        // The node with the in-process transport may not be running now.
        let nodes = store.nodes().await?;
        let received = match nodes.iter().any(NodeView::lives) {
            true => received_by(&nodes),
            false => served.1,
        };
        Report {
            counted: store.sweepable(&served.0.into(), &received).await?,
            nodes: nodes.iter().filter(|node| node.lives()).count(),
            lanes: BTreeMap::new(),
        }
    };
    if args.json {
        output::json(&report)
    } else {
        print(&report, settings, args.wait)
    }
}

async fn ask(
    settings: &Settings,
    store: &dyn Store,
    transport: &Arc<dyn Transport>,
    wait: Duration,
) -> Result<Report, jobwire_core::StoreError> {
    let mut control = transport.listen();
    let nodes = store.nodes().await?;
    let services = services_of(&nodes);
    let received = received_by(&nodes);
    let counted = store.sweepable(&services, &received).await?;
    let received: BTreeSet<&Lane> = received.iter().collect();
    let until = Instant::now() + wait;
    let answering = answering(transport, &mut control, &received, until).await;
    tokio::time::sleep(MOMENT).await;
    let mut lanes = BTreeMap::new();
    for lane in received {
        let answered = answering.contains(lane);
        let (orphans, ids) = if answered {
            let confirm_timeout = transport.publisher().confirm_timeout();
            let age = settings.node_options().suspected_after(confirm_timeout);
            let before = counted.now - chrono::Duration::from_std(age).unwrap_or_default();
            orphans(store, lane, &services, before).await?
        } else {
            (0, Vec::new())
        };
        let report = LaneReport {
            answered,
            orphans,
            ids,
        };
        lanes.insert(lane.to_string(), report);
    }
    Ok(Report {
        counted,
        nodes: nodes.iter().filter(|node| node.lives()).count(),
        lanes,
    })
}

async fn orphans(
    store: &dyn Store,
    lane: &Lane,
    services: &Services,
    ready_before: DateTime<Utc>,
) -> Result<(i64, Vec<JobId>), jobwire_core::StoreError> {
    let mut query = OrphanQuery::new(lane.clone(), services.clone(), ready_before, PAGE);
    let (mut count, mut shown) = (0, Vec::new());
    loop {
        let page = store.orphans(&query).await?;
        count += i64::try_from(page.ready.len()).unwrap_or(PAGE);
        let room = SHOWN.saturating_sub(shown.len());
        shown.extend(page.ready.iter().take(room).map(|ready| ready.hint.id));
        query.after = page.next;
        if page.next.is_none() {
            return Ok((count, shown));
        }
    }
}

fn print(report: &Report, settings: &Settings, wait: Duration) -> Result<(), Error> {
    let has_broker = connect::has_broker(settings);
    let c = &report.counted;
    let row =
        |class: &str, jobs: i64, what: &str| [class.to_owned(), jobs.to_string(), what.to_owned()];
    let mut rows = vec![
        row(
            "expired",
            c.expired,
            "the next leader cycle would reset the leases and hint them",
        ),
        row(
            "unhinted",
            c.unhinted,
            "the next leader cycle would hint them",
        ),
        row(
            "left-over instance",
            c.left_over_instances,
            "the next leader would free them",
        ),
    ];
    for (lane, of) in &report.lanes {
        let what = match (of.answered, of.ids.as_slice()) {
            (false, _) => format!(
                "unknown: the lane's marker was not back after {wait:?}; the hints before it are \
                 undecided, no node receives the lane, or a transaction of the database server is \
                 older than the marker (`xact_start` in pg_stat_activity); the sweeper would do \
                 nothing in it"
            ),
            (true, []) => "nothing would be done".to_owned(),
            (true, ids) => {
                let ids: Vec<String> = ids.iter().copied().map(written).collect();
                format!(
                    "would be hinted again when the leader's marker is back: {}",
                    ids.join(", ")
                )
            }
        };
        rows.push(row(&format!("orphan in {lane}"), of.orphans, &what));
    }
    rows.extend([
        row(
            "ready",
            c.ready,
            if connect::has_wakes(settings) {
                "would be left alone: the nodes claim them"
            } else if has_broker {
                "would be left alone: their hints are under way, except for orphans"
            } else {
                "would be left alone: the node has their hints, or creates them when it starts"
            },
        ),
        row(
            "instance held",
            c.instance_held,
            "would be left alone: the job that holds the instance hands it to the next one at its \
             end",
        ),
        row(
            "waiting for a permit",
            c.waiting,
            "would be left alone: they are hinted when a permit of their limit is free; `jobwire \
             jobs list` shows the limit",
        ),
        row(
            "suspended or paused",
            c.suspended,
            "would be left alone: `jobwire suspensions` lists what keeps them",
        ),
        row(
            "unserved type",
            c.unserved,
            "would be left alone: no living node serves their type",
        ),
        row(
            "lane that no node receives",
            c.unreceived,
            "would be left alone: no living node receives their lane; add it to `lanes` of a node, or \
             move them: `jobwire lanes move`",
        ),
        row("running", c.running, "would be left alone"),
    ]);
    if has_broker {
        output::line(format_args!(
            "{} found",
            output::count(u64::try_from(report.nodes).unwrap_or(0), "living node")
        ))?;
        if report.nodes == 0 {
            output::line(
                "without a living node nothing would be hinted, and no marker was sent; start a \
                 node",
            )?;
        }
    }
    output::table(["class", "jobs", "action of the sweeper"], &rows)?;
    output::line("nothing was changed (dry run); the leader sweeps by itself")
}
