//! Seeded bugs: what the simulation must find, or it proves nothing.

/// A mistake in the database or the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Whoever says that a job is done deletes it.
    CompletesWithoutFence,
    /// A lock statement takes a lease that ran out, before the leader's turn has ended it.
    LocksWhatHasExpired,
    /// A lock is taken over while its lease lives.
    TakesLivingLeases,
    /// The second exclusive job of an instance is locked beside the first.
    SkipsTheInstance,
    /// Whoever releases an instance does not say who is next.
    ForgetsTheHandOver,
    /// The leader takes locks off those that live.
    SweepsLivingLeases,
    /// The fence is the number of the attempt.
    FenceCountsAttempts,
    /// A renewal that does not name its fence.
    RenewsWithoutFence,
    /// A renewal that does not name its owner.
    RenewsWithoutOwner,
    /// A release that asks neither for owner nor fence.
    ReleasesWithoutGuard,
    /// Timers become executable a second early.
    MovesTimersEarly,
    /// The next occurrence is created even if the completion is refused.
    FollowsUpWithoutGuard,
    /// Messages are settled when they are delivered, and nobody looks for orphans.
    NeverLooksForOrphans,
    /// The orphan question does not ask what keeps a job from running.
    HintsGatedJobs,
    /// Markers overtake all that waits: what is old counts as lost.
    MarkersOvertake,
    /// Hints leave before the transaction commits, and it may not.
    HintsBeforeTheCommit,
}

impl Bug {
    /// Every one.
    pub const ALL: &'static [Bug] = &[
        Bug::CompletesWithoutFence,
        Bug::LocksWhatHasExpired,
        Bug::TakesLivingLeases,
        Bug::SkipsTheInstance,
        Bug::ForgetsTheHandOver,
        Bug::SweepsLivingLeases,
        Bug::FenceCountsAttempts,
        Bug::RenewsWithoutFence,
        Bug::RenewsWithoutOwner,
        Bug::ReleasesWithoutGuard,
        Bug::MovesTimersEarly,
        Bug::FollowsUpWithoutGuard,
        Bug::NeverLooksForOrphans,
        Bug::HintsGatedJobs,
        Bug::MarkersOvertake,
        Bug::HintsBeforeTheCommit,
    ];
}
