//! Thousands of seeds through the real machinery over a simulated world:
//! docs/internals/simulation.md.

use std::time::Duration;

use chrono::{DateTime, NaiveTime, Utc};
use jobwire_core::chrono_tz::Tz;
use jobwire_simulation::simulation::{Bug, Days, Simulation, Swept, replay, sweep};

/// The number of seeds that run by default; `JOBWIRE_TEST_SEEDS` sets another.
const SEEDS: u64 = 20_000;
/// The number of seeds within which a bug must be found.
const ENOUGH: u64 = 10_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is `{text}`; give a number")))
}

#[test]
fn every_seed_keeps_the_promises() {
    if let Some(seed) = number("JOBWIRE_TEST_SEED") {
        assert!(replay(Simulation::of(seed)), "seed {seed} fails");
        return;
    }
    let swept = sweep(1, number("JOBWIRE_TEST_SEEDS").unwrap_or(SEEDS), None);
    println!("{swept}");
    assert!(swept.failed.is_none(), "{swept}");
    let Swept {
        takeovers, faults, ..
    } = swept;
    assert!(
        takeovers > 0 && faults > 0,
        "no takeover or no fault in any seed"
    );
}

/// Protocol rule 25. The database was away for longer than a lease, and the node's own leader cycle
/// comes at the same time as its renewals and outcomes.
#[test]
fn an_embedded_node_ends_no_lease_of_its_own_after_an_outage() {
    let mut locks = 0;
    for seed in 1..=2_000 {
        let outcome = Simulation::of_an_embedded_node(seed).run();
        let counts = &outcome.report.counts;
        let is_well = outcome.holds() && counts.takeovers == 0;
        assert!(
            is_well || replay(Simulation::of_an_embedded_node(seed)),
            "seed {seed} fails"
        );
        assert_eq!(counts.takeovers, 0, "seed {seed}");
        locks += counts.locks;
    }
    assert!(locks > 2_000, "nothing ran");
}

/// Protocol rule 24. The broker confirms a marker after longer than a renewal period and an interval,
/// so each leader cycle that follows one comes late.
#[test]
fn a_leader_whose_markers_are_slow_ends_the_leases_of_dead_nodes() {
    let (mut takeovers, mut slowest) = (0, 0);
    for seed in 1..=500 {
        let simulation = Simulation {
            slow_markers: Some(Duration::from_secs(10)),
            ..Simulation::of(seed)
        };
        let outcome = simulation.run();
        assert!(outcome.holds() || replay(simulation), "seed {seed} fails");
        let counts = &outcome.report.counts;
        takeovers += counts.takeovers;
        slowest = slowest.max(counts.slowest_takeover);
    }
    println!("{takeovers} takeovers, slowest {slowest} us");
    assert!(takeovers > 100, "{takeovers}");
    assert!(slowest < 25_000_000, "{slowest}");
}

/// Returns the dates between two others at each half hour, and at 02:30 of each day in a zone. Where
/// the clock skips 02:30, the first moment after the gap counts.
fn dates(from: DateTime<Utc>, end: DateTime<Utc>, zone: Tz) -> Vec<DateTime<Utc>> {
    let mut dates = Vec::new();
    let mut half_hour = from + chrono::Duration::minutes(20);
    let mut day = from.with_timezone(&zone).date_naive();
    while half_hour <= end {
        dates.push(half_hour);
        half_hour += chrono::Duration::minutes(30);
    }
    while let Some(next) = day.succ_opt()
        && day < end.with_timezone(&zone).date_naive()
    {
        day = next;
        let at = |hour, minute| {
            let time = NaiveTime::from_hms_opt(hour, minute, 0).unwrap();
            let found = day.and_time(time).and_local_timezone(zone).earliest();
            found.map(|at| at.with_timezone(&Utc))
        };
        dates.push(at(2, 30).unwrap_or_else(|| at(3, 0).unwrap()));
    }
    dates.sort_unstable();
    dates
}

/// Runs schedules of Morocco from a moment for some hours while leaders die. Asserts that each date
/// has one job.
fn keep_schedules(seed: u64, from: &str, hours: i64) -> usize {
    let zone = Tz::Africa__Casablanca;
    let from: DateTime<Utc> = from.parse().unwrap();
    let end = from + chrono::Duration::hours(hours);
    let suffix = format!("/{}[{zone}][catch-up=all]", end.to_rfc3339());
    let days = Days {
        seed,
        from,
        length: (end - from).to_std().unwrap(),
        schedules: vec![
            ("often".to_owned(), format!("R/cron(*/30 * * * *){suffix}")),
            ("nightly".to_owned(), format!("R/cron(30 2 * * *){suffix}")),
        ],
    };
    let kept = days.run();
    assert_eq!(kept.due, dates(from, end, zone), "seed {seed}");
    assert!(kept.report.holds(), "seed {seed}: {:?}", kept.report);
    kept.deaths
}

/// Morocco sets its clocks back on 15 February 2026 and ahead on 22 March: 02:30 occurs twice, and
/// is skipped.
#[test]
fn schedules_keep_every_date_once_over_two_changes_of_the_clock_while_leaders_die() {
    for (seed, from) in [(1, "2026-02-14T12:10:00Z"), (2, "2026-03-21T12:10:00Z")] {
        let deaths = keep_schedules(seed, from, 24);
        assert!(deaths > 15, "seed {seed}: {deaths} deaths");
    }
}

/// The same from before the first change until after the second one.
#[test]
#[ignore = "long: scripts/test --long simulation::a_month"]
fn a_month_of_schedules_keeps_every_date_once_over_both_changes_while_leaders_die() {
    let deaths = keep_schedules(3, "2026-02-14T12:10:00Z", 36 * 24);
    assert!(deaths > 500, "{deaths} deaths");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [1, 2, 3, 39, 583] {
        let traced = Simulation {
            traced: true,
            ..Simulation::of(seed)
        };
        let one = traced.run().trace;
        let other = std::thread::spawn(move || traced.run().trace)
            .join()
            .unwrap();
        assert!(one.lines().count() > 20, "{one}");
        assert!(
            one == other,
            "seed {seed} gave two different runs:\n{one}\nand\n{other}"
        );
    }
}

fn finds(bug: Bug) {
    let swept = sweep(1, ENOUGH, Some(bug));
    let failed = swept
        .failed
        .unwrap_or_else(|| panic!("{bug:?} survives {ENOUGH} seeds"));
    println!(
        "{bug:?} breaks {:?} with seed {}",
        failed.invariants(),
        failed.seed
    );
}

macro_rules! bugs {
    ($($name:ident: $bug:ident;)+) => {
        $(#[test]
        fn $name() {
            finds(Bug::$bug);
        })+

        #[test]
        fn every_seeded_bug_has_its_test() {
            let tested = [$(Bug::$bug),+];
            let missing: Vec<_> = Bug::ALL.iter().filter(|bug| !tested.contains(bug)).collect();
            assert!(missing.is_empty(), "{missing:?}");
        }
    };
}

bugs! {
    a_completion_without_a_fence_is_found: CompletesWithoutFence;
    a_lock_of_a_lease_that_ran_out_is_found: LocksWhatHasExpired;
    a_takeover_of_a_living_lease_is_found: TakesLivingLeases;
    a_lock_that_skips_the_instance_is_found: SkipsTheInstance;
    a_forgotten_hand_over_is_found: ForgetsTheHandOver;
    a_sweep_of_living_leases_is_found: SweepsLivingLeases;
    fences_that_count_attempts_are_found: FenceCountsAttempts;
    a_renewal_without_a_fence_is_found: RenewsWithoutFence;
    a_renewal_without_an_owner_is_found: RenewsWithoutOwner;
    a_release_without_a_guard_is_found: ReleasesWithoutGuard;
    timers_that_move_early_are_found: MovesTimersEarly;
    a_follow_up_without_a_guard_is_found: FollowsUpWithoutGuard;
    settling_before_the_lock_without_a_sweeper_is_found: NeverLooksForOrphans;
    hints_for_gated_jobs_are_found: HintsGatedJobs;
    an_orphan_rule_by_age_alone_is_found: MarkersOvertake;
    a_hint_before_the_commit_is_found: HintsBeforeTheCommit;
}
