package dev.jobwire.endpoint;

import java.util.Optional;

/** Who locks the process instance of a job while the job runs. */
public enum InstanceLock {
    /** The engine, if the job is exclusive. */
    OF_ENGINE,
    /** The caller, who has locked the instance with the job, and unlocks it afterwards. */
    OF_CALLER;

    /**
     * Returns who locks it by the parameter {@code instance} of a request: {@code held}, or null
     * where the request has none; empty for another value.
     */
    public static Optional<InstanceLock> named(String parameter) {
        if (parameter == null || parameter.isEmpty()) {
            return Optional.of(OF_ENGINE);
        }
        return parameter.equals("held") ? Optional.of(OF_CALLER) : Optional.empty();
    }
}
