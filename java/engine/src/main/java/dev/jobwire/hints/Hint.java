package dev.jobwire.hints;

import java.util.UUID;

/**
 * A job that is ready.
 *
 * @param id the id of the job, see {@link EngineIds}
 * @param instance the process instance; null if there is none
 * @param committedAt the time at which its transaction committed, in microseconds since 1970
 */
record Hint(UUID id, String instance, long committedAt) {}
