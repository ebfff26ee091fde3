use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use jobwire_core::job::LockedJob;
use jobwire_core::store::{Handoff, Release};
use jobwire_core::{Hint, JobId, NodeId};
use rand::Rng;

use super::world::{Bench, World, done, node, take, terms, work};

const NODES: usize = 8;
const JOBS: usize = 400;
const INSTANCES: usize = 20;

/// The running jobs and their nodes, and how often each job was finished, as the nodes see it.
#[derive(Default)]
struct Seen {
    running: HashMap<JobId, NodeId>,
    instances: HashMap<String, JobId>,
    finished: HashMap<JobId, u32>,
}

impl Seen {
    fn start(&mut self, owner: NodeId, job: &LockedJob) {
        let other = self.running.insert(job.job.id, owner);
        assert_eq!(other, None, "a job with two owners");
        if let Some(instance) = job.job.exclusive_instance() {
            let other = self.instances.insert(instance.to_owned(), job.job.id);
            assert_eq!(other, None, "two exclusive jobs of {instance} at once");
        }
    }

    fn stop(&mut self, job: &LockedJob) {
        self.running.remove(&job.job.id);
        if let Some(instance) = job.job.exclusive_instance() {
            self.instances.remove(instance);
        }
    }
}

/// Locks the jobs of random overlapping hints and finishes or releases them, until none is left.
async fn run<S: Bench>(store: S, hints: Arc<Vec<Hint>>, seen: Arc<Mutex<Seen>>) {
    let owner = node();
    while store
        .count(&jobwire_core::JobQuery::default())
        .await
        .unwrap()
        > 0
    {
        let asked: Vec<Hint> = {
            let mut random = rand::rng();
            (0..40)
                .map(|_| hints[random.random_range(0..hints.len())].clone())
                .flat_map(|hint| [hint.clone(), hint])
                .collect()
        };
        let mut jobs = store.lock(&terms(owner), &asked).await.unwrap().jobs;
        while !jobs.is_empty() {
            for job in &jobs {
                seen.lock().unwrap().start(owner, job);
            }
            tokio::task::yield_now().await;
            let given_back = jobs.split_off(jobs.len() - jobs.len() / 4);
            for job in jobs.iter().chain(&given_back) {
                seen.lock().unwrap().stop(job);
            }
            let held = given_back.iter().map(LockedJob::held);
            let held: Vec<_> = held.map(Release::of_attempt).collect();
            let settled = store.release(owner, &held).await.unwrap();
            assert_eq!(settled.applied.len(), held.len());
            let completions: Vec<_> = jobs.iter().map(done).collect();
            let then = if rand::rng().random_bool(0.5) {
                take(owner)
            } else {
                Handoff::Hint
            };
            let settled = store.complete(owner, &completions, &then).await.unwrap();
            assert_eq!(settled.applied.len(), completions.len());
            let mut seen = seen.lock().unwrap();
            for id in settled.applied {
                *seen.finished.entry(id).or_default() += 1;
            }
            jobs = settled.next;
        }
    }
}

pub(super) async fn eight_nodes_with_overlapping_hints_run_each_job_once<S: Bench>(w: &World<S>) {
    let jobs = (0..JOBS).map(|i| match i % 2 {
        0 => work(),
        _ => work().instance(format!("instance-{}", i % INSTANCES)),
    });
    let hints = Arc::new(w.ready(jobs.collect()).await);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let nodes: Vec<_> = (0..NODES)
        .map(|_| tokio::spawn(run(w.store.clone(), hints.clone(), seen.clone())))
        .collect();
    for node in nodes {
        node.await.unwrap();
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.finished.len(), JOBS);
    assert!(seen.finished.values().all(|times| *times == 1));
}
