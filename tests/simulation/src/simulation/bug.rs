//! Seeded bugs, which the simulation must find.

/// A bug in the database or the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A completion deletes the job without a check of the fence.
    CompletesWithoutFence,
    /// A lock statement takes an expired lease before the leader cycle has reset it.
    LocksWhatHasExpired,
    /// A lock statement takes a lease that has not expired.
    TakesLivingLeases,
    /// The second exclusive job of an instance is locked at the same time as the first.
    SkipsTheInstance,
    /// The release of an instance does not hint the next job.
    ForgetsTheHandOver,
    /// The leader resets leases that have not expired.
    SweepsLivingLeases,
    /// The fence is the number of the attempt.
    FenceCountsAttempts,
    /// A renewal does not name its fence.
    RenewsWithoutFence,
    /// A renewal does not name its owner.
    RenewsWithoutOwner,
    /// A release names neither owner nor fence.
    ReleasesWithoutGuard,
    /// Timers become executable a second early.
    MovesTimersEarly,
    /// The next occurrence is created even if the completion is refused.
    FollowsUpWithoutGuard,
    /// Messages are settled on delivery, and the search for orphans finds none.
    NeverLooksForOrphans,
    /// The search for orphans does not check the process instance.
    HintsGatedJobs,
    /// Markers overtake all waiting hints, so that old hints count as lost.
    MarkersOvertake,
    /// Hints are published before the transaction commits, which may roll back.
    HintsBeforeTheCommit,
}

impl Bug {
    /// All bugs.
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
