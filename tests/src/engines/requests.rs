//! Requests to an engine: those of tests (see `Requests.java`), and those of its REST.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::engines::EngineServer;
use crate::http::{Request, Response};

/// A held job runs until the test releases it.
const DEADLINE: Duration = Duration::from_secs(120);

/// What an engine published and dropped since its start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HintCounts {
    /// Hints that the broker has confirmed.
    pub published: u64,
    /// Due dates that the leader was told.
    pub timers: u64,
    /// Hints that wait.
    pub waiting: u64,
    /// Hints that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
}

impl EngineServer {
    /// The user of its REST and the password.
    pub const USER: (&'static str, &'static str) = ("rest", "secret");

    /// The header of this user.
    pub(crate) const AUTHORIZATION: &'static str = "Basic cmVzdDpzZWNyZXQ=";

    /// Starts instances of a process, each in a transaction of its own, and returns their ids.
    ///
    /// # Panics
    /// If the engine refuses.
    pub async fn start_instances(
        &self,
        process: &str,
        count: usize,
        variables: &[(&str, &str)],
    ) -> Vec<String> {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("process", process);
        query.append_pair("count", &count.to_string());
        query.extend_pairs(variables);
        let body = self.ask(&format!("/test/start?{}", query.finish())).await;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Starts one instance and returns its id.
    pub async fn start_instance(&self, process: &str, variables: &[(&str, &str)]) -> String {
        let mut ids = self.start_instances(process, 1, variables).await;
        ids.pop().expect("one instance was started")
    }

    /// Deploys a process that is not deployed at the start.
    pub async fn deploy(&self, process: &str) {
        self.ask(&format!("/test/deploy?process={process}")).await;
    }

    /// Lets the held activities of an instance end.
    pub async fn release(&self, instance: &str) {
        self.ask(&format!("/test/release?instance={instance}"))
            .await;
    }

    /// Suspends an instance.
    pub async fn suspend(&self, instance: &str) {
        self.ask(&format!("/test/suspend?instance={instance}"))
            .await;
    }

    /// Activates a suspended instance.
    pub async fn activate(&self, instance: &str) {
        self.ask(&format!("/test/activate?instance={instance}"))
            .await;
    }

    /// Completes the user tasks of an instance; the engine may refuse.
    pub async fn complete_tasks(&self, instance: &str) -> Response {
        self.send(self.post(&format!("/test/complete?instance={instance}")))
            .await
    }

    /// Starts an instance that the engine refuses, and returns its answer.
    pub async fn start_in_vain(&self, process: &str) -> Response {
        self.send(self.post(&format!("/test/start?process={process}")))
            .await
    }

    /// Returns what it published and dropped.
    ///
    /// # Panics
    /// If it publishes no hints.
    pub async fn hint_counts(&self) -> HintCounts {
        let request = Request::new("GET", &self.address(), "/test/hints");
        let answer = self.send(authorized(request)).await;
        let body = &answer.body;
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Sends JSON to a path below its REST.
    ///
    /// # Panics
    /// If the engine has no REST or does not answer.
    pub async fn rest(&self, method: &str, path: &str, json: &str) -> Response {
        let path = format!("{}{path}", self.rest_path());
        let request = Request::new(method, &self.address(), &path).json(json);
        self.send(authorized(request)).await
    }

    /// Sends JSON to a path of another interface, such as `/external-job-api/…`.
    pub async fn post_json(&self, path: &str, json: &str) -> Response {
        self.send(self.post(path).json(json)).await
    }

    /// Runs a job by its REST.
    ///
    /// # Panics
    /// As [`EngineServer::rest`].
    pub async fn execute(&self, job: &str) -> Response {
        let (path, body) = match self.program().is_camunda() {
            true => (format!("/job/{job}/execute"), "{}"),
            false => (format!("/management/jobs/{job}"), r#"{"action":"execute"}"#),
        };
        self.rest("POST", &path, body).await
    }

    /// Runs a job by the execution endpoint.
    pub async fn execute_by_endpoint(&self, job: &str) -> Response {
        self.send(self.execution(&format!("/jobwire/jobs/{job}/execute")))
            .await
    }

    /// Runs a job by the execution endpoint, whose instance the caller has locked.
    pub async fn execute_in_held_instance(&self, job: &str) -> Response {
        let path = format!("/jobwire/jobs/{job}/execute?instance=held");
        self.send(self.execution(&path)).await
    }

    /// Runs a job by the execution endpoint under the lock of this owner. `holds`: the caller has
    /// locked the instance, too.
    pub async fn execute_under_lock(&self, job: &str, owner: &str, holds: bool) -> Response {
        let held = if holds { "instance=held&" } else { "" };
        let path = format!("/jobwire/jobs/{job}/execute?{held}owner={owner}");
        self.send(self.execution(&path)).await
    }

    /// Makes a timer or a dead letter executable by the operation of the endpoint.
    pub async fn retry_by_endpoint(&self, job: &str, retries: u32) -> Response {
        let request = serde_json::json!({"id": job, "retries": retries});
        let operation = self.post("/jobwire/v1/retry");
        self.send(operation.json(request.to_string())).await
    }

    /// Runs a list of jobs by the execution endpoint, whose rows and instances the node has locked,
    /// each under its fence. The body of the answer has a line for each.
    pub async fn execute_list(&self, node: &str, jobs: &[(&str, i64)]) -> Response {
        let jobs = jobs
            .iter()
            .map(|(id, fence)| serde_json::json!({"id": id, "fence": fence}));
        let list = serde_json::json!({
            "node": node, "at_once": 2, "within": 30_000, "jobs": jobs.collect::<Vec<_>>(),
        });
        let request = self.post("/jobwire/jobs/execute?instance=held");
        self.send(request.json(list.to_string())).await
    }

    /// Runs a list of jobs by the operation of the endpoint, which extends the locks of the node by
    /// a minute.
    pub async fn run_list(&self, node: &str, jobs: &[(&str, i64)]) -> Response {
        let jobs = jobs
            .iter()
            .map(|(id, fence)| serde_json::json!({"id": id, "fence": fence}));
        let list = serde_json::json!({
            "node": node, "at_once": 2, "within": 30_000, "lease": 60_000,
            "jobs": jobs.collect::<Vec<_>>(),
        });
        let request = self.post("/jobwire/v1/run-list");
        self.send(request.json(list.to_string())).await
    }

    /// The endpoint takes JSON alone, also of a request without a body.
    fn execution(&self, path: &str) -> Request {
        self.post(path).json("")
    }

    fn post(&self, path: &str) -> Request {
        authorized(Request::new("POST", &self.address(), path))
    }

    async fn send(&self, request: Request) -> Response {
        let answer = request.send().await;
        answer.unwrap_or_else(|error| panic!("the engine does not answer: {error}"))
    }

    /// Posts a request that the engine must not refuse, and returns the answer's text.
    async fn ask(&self, path: &str) -> String {
        let answer = self.send(self.post(path)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }
}

fn authorized(request: Request) -> Request {
    let request = request.header("Authorization", EngineServer::AUTHORIZATION);
    request.deadline(DEADLINE)
}
