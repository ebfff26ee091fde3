//! The pages for users of process engines name every setting of the engines' executors, so that
//! nobody who moves looks for one in vain.

use super::root;

/// Flowable 6.8, 7.2 and 8.0.
const FLOWABLE: [&str; 36] = [
    "asyncExecutorActivate",
    "asyncExecutorMessageQueueMode",
    "asyncHistoryExecutorMessageQueueMode",
    "asyncJobAcquisitionEnabled",
    "timerJobAcquisitionEnabled",
    "resetExpiredJobEnabled",
    "maxAsyncJobsDuePerAcquisition",
    "maxTimerJobsPerAcquisition",
    "defaultAsyncJobAcquireWaitTime",
    "defaultTimerJobAcquireWaitTime",
    "defaultQueueSizeFullWaitTime",
    "globalAcquireLockEnabled",
    "globalAcquireLockPrefix",
    "asyncJobsGlobalLockWaitTime",
    "asyncJobsGlobalLockPollRate",
    "asyncJobsGlobalLockForceAcquireAfter",
    "timerLockWaitTime",
    "timerLockPollRate",
    "timerLockForceAcquireAfter",
    "asyncJobLockTime",
    "timerLockTime",
    "lockOwner",
    "resetExpiredJobsInterval",
    "resetExpiredJobsPageSize",
    "asyncExecutorResetExpiredJobsMaxTimeout",
    "moveTimerExecutorPoolSize",
    "enabledJobCategories",
    "jobExecutionScope",
    "asyncExecutorNumberOfRetries",
    "asyncHistoryExecutorNumberOfRetries",
    "asyncFailedJobWaitTime",
    "defaultFailedJobWaitTime",
    "failedJobRetryTimeCycle",
    "unlockOwnedJobs",
    "awaitTerminationPeriod",
    "asyncExecutorMaxPoolSize",
];

/// Activiti 6, 7 and 8.
const ACTIVITI: [&str; 23] = [
    "asyncExecutorActivate",
    "asyncExecutorMessageQueueMode",
    "spring.activiti.async-executor.message-queue-mode",
    "maxAsyncJobsDuePerAcquisition",
    "maxTimerJobsPerAcquisition",
    "defaultAsyncJobAcquireWaitTimeInMillis",
    "defaultTimerJobAcquireWaitTimeInMillis",
    "defaultQueueSizeFullWaitTime",
    "asyncJobLockTimeInMillis",
    "timerLockTimeInMillis",
    "asyncExecutorLockOwner",
    "resetExpiredJobsInterval",
    "resetExpiredJobsPageSize",
    "asyncExecutorNumberOfRetries",
    "asyncFailedJobWaitTime",
    "defaultFailedJobWaitTime",
    "failedJobRetryTimeCycle",
    "secondsToWaitOnShutdown",
    "asyncExecutorCorePoolSize",
    "asyncExecutorMaxPoolSize",
    "asyncExecutorThreadPoolQueueSize",
    "ExecutorPerTenantAsyncExecutor",
    "SharedExecutorServiceAsyncExecutor",
];

/// Camunda 7.
const CAMUNDA: [&str; 25] = [
    "jobExecutorActivate",
    "maxJobsPerAcquisition",
    "waitTimeInMillis",
    "waitIncreaseFactor",
    "maxWait",
    "backoffTimeInMillis",
    "maxBackoff",
    "backoffDecreaseThreshold",
    "lockTimeInMillis",
    "jobExecutorAcquireExclusiveOverProcessHierarchies",
    "producePrioritizedJobs",
    "jobExecutorAcquireByPriority",
    "jobExecutorPriorityRangeMin",
    "jobExecutorPriorityRangeMax",
    "jobExecutorPreferTimerJobs",
    "jobExecutorAcquireByDueDate",
    "jobExecutorDeploymentAware",
    "defaultNumberOfRetries",
    "failedJobListenerMaxRetries",
    "failedJobRetryTimeCycle",
    "invocationsPerBatchJob",
    "hintJobExecutor",
    "rejectedJobsHandler",
    "corePoolSize",
    "maxPoolSize",
];

/// Returns the names in the first cells of the rows of a section whose other cell says something. A
/// name with hyphens is the one of Spring Boot for the same setting.
fn named(page: &str, heading: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut names = Vec::new();
    for line in section.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &["", settings, ours, ""] = &cells[..] else {
            continue;
        };
        if !ours.is_empty() {
            names.extend(settings.split('`').skip(1).step_by(2).map(joined));
        }
    }
    names
}

fn joined(name: &str) -> String {
    name.replace('-', "").to_ascii_lowercase()
}

#[test]
fn the_pages_of_engines_name_every_setting_of_their_executors() {
    let settings = "docs/engines/executor-settings.md";
    let activiti = "docs/engines/activiti.md";
    let mut missing = Vec::new();
    for (page, heading, expected) in [
        (settings, "Flowable", &FLOWABLE[..]),
        (activiti, "Activiti's settings, and Jobwire's", &ACTIVITI),
        (settings, "Camunda 7", &CAMUNDA),
    ] {
        let named = named(page, heading);
        assert!(named.len() >= expected.len(), "{heading}: {named:?}");
        // A prefix may stand before the name: that of a class, or of Spring Boot.
        let lacks = |name: &&&str| !named.iter().any(|is| is.ends_with(&joined(name)));
        missing.extend(expected.iter().filter(lacks).map(|name| (heading, *name)));
    }
    assert!(missing.is_empty(), "{missing:?}");
}
