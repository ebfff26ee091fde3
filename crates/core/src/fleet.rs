//! The fleet as this node knows it: the living nodes, and the jobs that each of them takes.
//!
//! The table `node` contains the services of each node; only nodes can write it. A beat over the
//! broker shows that the node lives, its number of free slots, and the current revision of its row.
//! A forged beat can only pretend that a registered node lives, or that it leads (for six minutes at
//! most, until followers ask the database): beats of an id without a row are ignored. After an
//! unknown id or revision the rows are read again, at most ten times a second.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::job::scope::{Group, Needs, Scope, Services};
use crate::job::{Lane, NodeId};
use crate::store::attempts::AttemptsKept;
use crate::store::{MAX_NAMES, MAX_NODES, Membership};
use crate::telemetry::log_throttle::LogThrottle;
use crate::transport::Wake;

/// Maximum number of beats that are remembered. Those of ids without a row are forgotten first.
const MOST_HEARD: usize = 2 * MAX_NODES;
/// Maximum number of different lanes of all nodes. Each of them costs the leader a marker.
const MOST_LANES: usize = 256;
/// The time of silence after which a node counts as dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(120);
/// The age up to which the rows decide about a hint. So a flood of jobs that no node serves waits for
/// one read a second.
const FRESH: Duration = Duration::from_secs(1);
/// A node of this database writes its row before its first beat. An id that sends beats for this
/// time and has no row belongs to another database.
const STRANGER_AFTER: Duration = Duration::from_secs(10);

/// The living nodes and their services.
#[derive(Default)]
pub(crate) struct Fleet {
    members: Mutex<Members>,
    /// Wakes the task that reads the rows of the nodes.
    wants_rows: Notify,
}

#[derive(Default)]
struct Members {
    /// The time at which the last rows were asked for.
    rows_of: Option<Instant>,
    registered: HashMap<NodeId, Arc<Registered>>,
    heard: HashMap<NodeId, Heard>,
    full: LogThrottle,
}

/// The contents of a node's row.
struct Registered {
    revision: i64,
    types: Arc<[String]>,
    lanes: Arc<[Lane]>,
    scope: Scope,
    attempts_kept: AttemptsKept,
    /// The time at which the node's row was first read.
    since: Instant,
}

impl Registered {
    fn of(node: Membership, since: Instant) -> Arc<Self> {
        Arc::new(Self {
            since,
            revision: node.revision,
            types: node.types.into(),
            lanes: node.lanes.into(),
            scope: node.scope,
            attempts_kept: node.attempts_kept,
        })
    }
}

/// The contents of a beat.
#[derive(Clone, Copy)]
pub(crate) struct Beat {
    /// The revision of the node's row; `None` if it has none, as with an older program.
    pub(crate) revision: Option<i64>,
    /// Free slots; `None` if the node takes no jobs that are addressed to it.
    pub(crate) free: Option<u32>,
    /// The number of rescued jobs that the node may start; `None` if its program is older.
    pub(crate) rescue_room: Option<u32>,
    /// The version of the control messages that the node understands.
    pub(crate) speaks: u32,
    /// The node receives a lane that this node receives, too.
    pub(crate) shares_lane: bool,
}

struct Heard {
    beat: Beat,
    at: Instant,
    /// The time of the first beat.
    since: Instant,
    /// The node had a row when its last beat arrived.
    is_member: bool,
}

/// The consequences of a beat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The node has a row and was not known to live.
    pub(crate) is_new: bool,
    /// The node's row is unknown or outdated, so the rows must be read.
    pub(crate) read_rows: bool,
}

/// A node to which jobs may be addressed.
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) types: Arc<[String]>,
    pub(crate) lanes: Arc<[Lane]>,
    pub(crate) scope: Scope,
    pub(crate) free: u32,
    /// The number of free slots that rescued jobs may take.
    pub(crate) free_for_rescued: u32,
    /// The number of jobs that were addressed to it in this round.
    pub(crate) given: u32,
}

impl Candidate {
    pub(crate) fn serves(&self, needs: &Needs, lane: &Lane) -> bool {
        serves(&self.types, &self.lanes, &self.scope, needs, lane)
    }
}

/// Returns whether a node with these types, lanes and scope serves a job.
fn serves(types: &[String], lanes: &[Lane], scope: &Scope, needs: &Needs, lane: &Lane) -> bool {
    types.contains(&needs.job_type) && lanes.contains(lane) && scope.takes(needs)
}

impl Members {
    /// Returns the registered nodes from which a beat arrived within this time.
    fn living(&self, within: Duration) -> impl Iterator<Item = (NodeId, &Arc<Registered>, &Beat)> {
        let heard = self.heard.iter();
        let living = heard.filter(move |(_, heard)| heard.at.elapsed() <= within);
        living.filter_map(|(id, heard)| Some((*id, self.registered.get(id)?, &heard.beat)))
    }
}

impl Fleet {
    /// Enters this node with its current row and beat.
    pub(crate) fn enlist(&self, node: Membership, beat: Beat) {
        let mut members = self.lock();
        let id = node.id;
        let at = Instant::now();
        members.registered.insert(id, Registered::of(node, at));
        let is_member = true;
        members.heard.insert(
            id,
            Heard {
                beat,
                at,
                since: at,
                is_member,
            },
        );
    }

    /// Replaces the known rows by rows that were read. The row of this node stays.
    pub(crate) fn read(&self, rows: Vec<Membership>, this: NodeId, asked: Instant) {
        let mut members = self.lock();
        members.rows_of = Some(asked);
        let mut before = std::mem::take(&mut members.registered);
        let own = before.remove(&this);
        let rows = rows.into_iter().filter(|row| row.id != this);
        let now = Instant::now();
        let rows = rows.map(|row| {
            let since = before.get(&row.id).map_or(now, |before| before.since);
            (row.id, Registered::of(row, since))
        });
        members.registered = rows.collect();
        members.registered.extend(own.map(|own| (this, own)));
    }

    /// Makes a read of the rows due, for a decision that waits for them.
    pub(crate) fn want_rows(&self) {
        self.wants_rows.notify_one();
    }

    /// Waits until a decision needs newer rows. Cancel-safe.
    pub(crate) async fn rows_wanted(&self) {
        self.wants_rows.notified().await;
    }

    /// Records a beat.
    pub(crate) fn note(&self, id: NodeId, beat: Beat) -> Noted {
        let mut members = self.lock();
        let Members {
            registered,
            heard,
            full,
            ..
        } = &mut *members;
        heard.retain(|_, heard| heard.at.elapsed() < SILENCE);
        let row = registered.get(&id);
        let is_member = row.is_some();
        let read_rows = beat
            .revision
            .is_some_and(|said| row.is_none_or(|row| row.revision < said));
        if heard.len() >= MOST_HEARD && !heard.contains_key(&id) {
            heard.retain(|id, _| registered.contains_key(id));
            if let Some(more) = full.now() {
                tracing::warn!(
                    node = %id, known = MOST_HEARD, more,
                    "beats arrive from more ids than are remembered; those without a row are \
                     forgotten"
                );
            }
            if heard.len() >= MOST_HEARD {
                return Noted::default();
            }
        }
        let at = Instant::now();
        let since = heard.get(&id).map_or(at, |before| before.since);
        let before = heard.insert(
            id,
            Heard {
                beat,
                at,
                since,
                is_member,
            },
        );
        Noted {
            is_new: is_member && before.is_none_or(|before| !before.is_member),
            read_rows,
        }
    }

    /// Returns whether this node has a row.
    pub(crate) fn knows(&self, id: NodeId) -> bool {
        self.lock().registered.contains_key(&id)
    }

    pub(crate) fn forget(&self, id: NodeId) {
        self.lock().heard.remove(&id);
    }

    /// Returns the living nodes that have a row.
    pub(crate) fn living(&self) -> Vec<NodeId> {
        self.lock().living(SILENCE).map(|(id, ..)| id).collect()
    }

    /// Returns the nodes that take addressed jobs, sent a beat within this time, and are not among
    /// `dead`.
    pub(crate) fn candidates(&self, within: Duration, dead: &HashSet<NodeId>) -> Vec<Candidate> {
        self.members(within, 0, |id| !dead.contains(&id))
    }

    /// Returns the other nodes that take forwarded jobs and sent a beat within this time.
    pub(crate) fn takers(&self, within: Duration, than: NodeId) -> Vec<Candidate> {
        self.members(within, 1, |id| id != than)
    }

    /// Returns whether a node that this one does not know well may serve a job that was hinted at
    /// this time: the rows were read before, so a node may have joined since; or another node has a
    /// row that is new here, serves the job, and was not heard yet. Such a node probably lives, and
    /// takes the job as soon as it is heard.
    pub(crate) fn may_be_served(
        &self,
        needs: &Needs,
        lane: &Lane,
        than: NodeId,
        hinted: Instant,
        within: Duration,
    ) -> bool {
        let members = self.lock();
        if members.rows_of.is_none_or(|read| read + FRESH < hinted) {
            return true;
        }
        let unheard = members.registered.iter();
        let mut unheard = unheard.filter(|(id, row)| {
            **id != than && !members.heard.contains_key(id) && row.since.elapsed() <= within
        });
        unheard.any(|(_, row)| serves(&row.types, &row.lanes, &row.scope, needs, lane))
    }

    fn members(
        &self,
        within: Duration,
        speaks: u32,
        is_meant: impl Fn(NodeId) -> bool,
    ) -> Vec<Candidate> {
        let members = self.lock();
        let meant = members.living(within);
        let meant = meant.filter(|(id, _, beat)| is_meant(*id) && beat.speaks >= speaks);
        let candidates = meant.filter_map(|(node, row, beat)| {
            let free = beat.free?;
            Some(Candidate {
                node,
                types: row.types.clone(),
                lanes: row.lanes.clone(),
                scope: row.scope.clone(),
                free,
                free_for_rescued: beat.rescue_room.map_or(free, |room| room.min(free)),
                given: 0,
            })
        });
        let mut candidates: Vec<Candidate> = candidates.collect();
        candidates.sort_unstable_by_key(|candidate| candidate.node);
        candidates
    }

    /// Returns the nodes that receive this lane, can answer the question for held hints, and sent a
    /// beat within this time.
    pub(crate) fn answering(&self, lane: &Lane, within: Duration) -> HashSet<NodeId> {
        let members = self.lock();
        let living = members.living(within);
        let answering =
            living.filter(|(_, row, beat)| beat.speaks >= 1 && row.lanes.contains(lane));
        answering.map(|(id, ..)| id).collect()
    }

    /// Returns an id that receives a lane of this node and has no row although it names one, and
    /// the number of such ids. These are nodes of another database on the same broker and prefix.
    pub(crate) fn strangers(&self) -> Option<(NodeId, usize)> {
        let members = self.lock();
        let strangers = members.heard.iter().filter(|(id, heard)| {
            heard.beat.shares_lane
                && heard.at.elapsed() < STRANGER_AFTER
                && heard.beat.revision.is_some()
                && heard.at.duration_since(heard.since) >= STRANGER_AFTER
                && !members.registered.contains_key(id)
        });
        let ids: Vec<NodeId> = strangers.map(|(id, _)| *id).collect();
        Some((*ids.iter().min()?, ids.len()))
    }

    /// Returns whether another node sent a beat within this time.
    pub(crate) fn hears_others(&self, than: NodeId, within: Duration) -> bool {
        self.lock().living(within).any(|(id, ..)| id != than)
    }

    /// Returns the turn of a node for the wake of a lane: whether it is among the first, whose free
    /// slots by their last beats are as many as the jobs, and a part of a tenth of a second that
    /// differs from node to node. All nodes that know the same beats agree.
    pub(crate) fn turn(
        &self,
        lane: &Lane,
        wake: &Wake,
        of: NodeId,
        within: Duration,
    ) -> (bool, Duration) {
        let place = |id: NodeId| mixed(id.0.as_u64_pair().1 ^ wake.draw);
        let own = place(of);
        let members = self.lock();
        let before = members.living(within).filter(|(id, row, _)| {
            *id != of && row.lanes.contains(lane) && (place(*id), *id) < (own, of)
        });
        let free = before.map(|(_, _, beat)| u64::from(beat.free.unwrap_or(0)));
        let is_first = free.sum::<u64>() < wake.jobs;
        (is_first, Duration::from_millis(own % 100))
    }

    /// Returns the services of the living nodes.
    pub(crate) fn services(&self) -> Services {
        let members = self.lock();
        let mut groups: Vec<Group> = Vec::new();
        for (_, row, _) in members.living(SILENCE) {
            let same = |group: &Group| *group.types == *row.types && group.scope == row.scope;
            if !groups.iter().any(same) {
                groups.push(Group {
                    types: row.types.to_vec(),
                    scope: row.scope.clone(),
                });
            }
        }
        Services::of(groups)
    }

    /// Returns the types whose attempts at least one node records, with the longest time for which one
    /// keeps them. Dead nodes count while they have a row: the leader ends their leases.
    pub(crate) fn attempts_kept(&self) -> AttemptsKept {
        let members = self.lock();
        let mut kept = AttemptsKept::new();
        let rows = members.registered.values();
        for (job_type, keep) in rows.flat_map(|row| &row.attempts_kept) {
            if let Some(longest) = kept.get_mut(job_type) {
                *longest = (*longest).max(*keep);
            } else if kept.len() < MAX_NAMES {
                // The bound limits what rows that any program may write cost each leader cycle.
                kept.insert(job_type.clone(), *keep);
            }
        }
        kept
    }

    pub(crate) fn lanes(&self) -> Vec<Lane> {
        let mut members = self.lock();
        let living = members.living(SILENCE);
        let lanes: BTreeSet<&Lane> = living.flat_map(|(_, row, _)| row.lanes.iter()).collect();
        let mut lanes: Vec<Lane> = lanes.into_iter().cloned().collect();
        if lanes.len() > MOST_LANES {
            if let Some(more) = members.full.now() {
                tracing::warn!(
                    lanes = lanes.len(),
                    most = MOST_LANES,
                    more,
                    "living nodes receive more lanes than the sweeper serves; the last ones by \
                     name are not swept; use fewer lanes"
                );
            }
            lanes.truncate(MOST_LANES);
        }
        lanes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Mixes the bits of a number (the finalizer of SplitMix64), so that neighbours are far apart.
const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(revision: Option<i64>) -> Beat {
        Beat {
            revision,
            free: Some(1),
            rescue_room: None,
            speaks: 1,
            shares_lane: true,
        }
    }

    fn row(types: &[&str], lanes: &[&str], revision: i64) -> Membership {
        Membership {
            id: NodeId::generate(),
            revision,
            types: types.iter().map(|name| (*name).to_owned()).collect(),
            lanes: lanes.iter().map(|name| Lane((*name).to_owned())).collect(),
            scope: Scope::default(),
            host: "here".to_owned(),
            version: "1".to_owned(),
            transport: "test".to_owned(),
            attempts_kept: AttemptsKept::new(),
        }
    }

    #[test]
    fn an_id_without_a_row_changes_nothing_and_pushes_no_node_out() {
        let fleet = Fleet::default();
        let this = NodeId::generate();
        let honest = row(&["mail"], &["default"], 1);
        let id = honest.id;
        fleet.read(vec![honest], this, Instant::now());
        assert_eq!(
            fleet.note(id, beat(Some(1))),
            Noted {
                is_new: true,
                read_rows: false
            }
        );
        for _ in 0..3 * MOST_HEARD {
            let noted = fleet.note(NodeId::generate(), beat(None));
            assert_eq!(noted, Noted::default());
        }
        assert!(fleet.lock().heard.len() <= MOST_HEARD);
        assert_eq!(*fleet.services().types, ["mail"]);
        assert_eq!(fleet.candidates(SILENCE, &HashSet::new()).len(), 1);
        assert_eq!(fleet.note(id, beat(Some(1))), Noted::default());
    }

    #[test]
    fn a_newer_revision_asks_for_the_rows_and_an_unknown_id_counts_once_its_row_was_read() {
        let fleet = Fleet::default();
        let this = NodeId::generate();
        let mut other = row(&["mail"], &["default"], 1);
        let noted = fleet.note(other.id, beat(Some(1)));
        assert_eq!(
            noted,
            Noted {
                is_new: false,
                read_rows: true
            }
        );
        assert!(fleet.services().types.is_empty());
        fleet.read(vec![other.clone()], this, Instant::now());
        assert_eq!(*fleet.services().types, ["mail"]);
        assert_eq!(
            fleet.note(other.id, beat(Some(1))),
            Noted {
                is_new: true,
                read_rows: false
            }
        );
        other.types = vec!["fax".to_owned()];
        other.revision = 2;
        assert!(fleet.note(other.id, beat(Some(2))).read_rows);
        fleet.read(vec![other], this, Instant::now());
        assert_eq!(*fleet.services().types, ["fax"]);
    }

    #[test]
    fn of_the_times_for_which_nodes_keep_attempts_the_longest_counts_also_of_a_dead_node() {
        fn kept(of: &[(&str, u64)]) -> AttemptsKept {
            let of = of.iter();
            of.map(|(name, seconds)| ((*name).to_owned(), Duration::from_secs(*seconds)))
                .collect()
        }
        fn keeping(of: &[(&str, u64)]) -> Membership {
            Membership {
                attempts_kept: kept(of),
                ..row(&["mail", "fax"], &["default"], 1)
            }
        }
        let fleet = Fleet::default();
        assert!(fleet.attempts_kept().is_empty());
        let this = row(&["mail"], &["default"], 1);
        // These nodes have rows and send no beats.
        let others = [
            keeping(&[("mail", 60), ("fax", 1)]),
            keeping(&[("mail", 7)]),
            row(&["print"], &["default"], 1),
        ];
        fleet.enlist(this.clone(), beat(Some(1)));
        fleet.read(others.into(), this.id, Instant::now());
        assert_eq!(fleet.attempts_kept(), kept(&[("mail", 60), ("fax", 1)]));
        fleet.read(Vec::new(), this.id, Instant::now());
        assert!(fleet.attempts_kept().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_a_row_that_receives_the_same_lane_is_of_another_database() {
        let fleet = Fleet::default();
        let ours = row(&["mail"], &["default"], 1);
        let (ours_id, stranger, other_lane) = (ours.id, NodeId::generate(), NodeId::generate());
        fleet.read(vec![ours], NodeId::generate(), Instant::now());
        let elsewhere = Beat {
            shares_lane: false,
            ..beat(Some(1))
        };
        for _ in 0..3 {
            assert_eq!(fleet.strangers(), None);
            fleet.note(ours_id, beat(Some(1)));
            fleet.note(stranger, beat(Some(1)));
            fleet.note(other_lane, elsewhere);
            tokio::time::advance(STRANGER_AFTER / 2).await;
        }
        assert_eq!(fleet.strangers(), Some((stranger, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_may_have_joined_since_the_hint_are_expected_until_they_are_heard() {
        const WITHIN: Duration = Duration::from_secs(3);
        let fleet = Fleet::default();
        let this = NodeId::generate();
        let other = row(&["mail"], &["default"], 1);
        let hinted = Instant::now();
        let may_be_served = |job_type: &str, lane: &str| {
            let (needs, lane) = (Needs::of(job_type), Lane(lane.to_owned()));
            fleet.may_be_served(&needs, &lane, this, hinted, WITHIN)
        };
        assert!(may_be_served("fax", "default"), "no row was read");
        fleet.want_rows();
        fleet.rows_wanted().await;
        let before = hinted - FRESH - Duration::from_millis(1);
        fleet.read(Vec::new(), this, before);
        assert!(may_be_served("fax", "default"), "a node may have joined");
        fleet.read(vec![other.clone()], this, hinted);
        assert!(may_be_served("mail", "default"));
        assert!(!may_be_served("fax", "default"));
        assert!(!may_be_served("mail", "other"));
        fleet.note(other.id, beat(Some(1)));
        assert!(!may_be_served("mail", "default"), "it is known");
        let dead = row(&["fax"], &["default"], 1);
        fleet.read(vec![other.clone(), dead.clone()], this, hinted);
        tokio::time::advance(WITHIN).await;
        fleet.read(vec![other, dead], this, hinted);
        assert!(may_be_served("fax", "default"));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!may_be_served("fax", "default"), "it has died");
    }

    #[test]
    fn the_nodes_of_a_wake_agree_who_is_first() {
        let fleet = Fleet::default();
        let lane = Lane("mail".to_owned());
        let nodes: Vec<Membership> = (0..10).map(|_| row(&["a"], &["mail"], 1)).collect();
        let other = row(&["a"], &["bulk"], 1);
        for node in nodes.iter().chain([&other]) {
            let free = Some(8);
            fleet.enlist(
                node.clone(),
                Beat {
                    free,
                    ..beat(Some(1))
                },
            );
        }
        let first = |jobs, draw| {
            let wake = Wake {
                jobs,
                draw,
                ..Wake::default()
            };
            let is_first = |node: &&Membership| fleet.turn(&lane, &wake, node.id, SILENCE).0;
            nodes
                .iter()
                .filter(is_first)
                .map(|node| node.id)
                .collect::<Vec<_>>()
        };
        let mut chosen = std::collections::HashSet::new();
        for draw in 0..100 {
            assert_eq!(first(1, draw).len(), 1);
            assert_eq!(first(17, draw).len(), 3, "three nodes have 17 free slots");
            assert_eq!(first(1_000, draw).len(), 10);
            assert!(first(0, draw).is_empty());
            chosen.extend(first(1, draw));
        }
        assert_eq!(chosen.len(), 10, "each node has its turns");
    }

    #[test]
    fn the_lanes_that_are_swept_are_bounded() {
        let fleet = Fleet::default();
        let names: Vec<String> = (0..2 * MOST_LANES).map(|n| format!("lane-{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let node = row(&[], &names, 1);
        let id = node.id;
        fleet.read(vec![node], NodeId::generate(), Instant::now());
        fleet.note(id, beat(Some(1)));
        assert_eq!(fleet.lanes().len(), MOST_LANES);
    }
}
