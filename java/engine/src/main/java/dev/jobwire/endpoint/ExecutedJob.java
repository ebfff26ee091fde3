package dev.jobwire.endpoint;

import dev.jobwire.Json;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The state of a job after the endpoint ran it: the table that has its row now.
 *
 * @param state the table of the row
 * @param id the id of the row; null if it is gone. An engine may give a job back under another id
 * @param retries the number of attempts left; null if the row is gone or the failure is unrecorded
 * @param message the message of the last failure; null if there is none
 */
public record ExecutedJob(State state, String id, Integer retries, String message) {
    /** The tables in which a job can be. */
    public enum State {
        /** The job is executable: the engine returned it. */
        JOB("job"),
        /** The job is a timer: it failed, or it repeats. */
        TIMER("timer"),
        /** The job is suspended. */
        SUSPENDED("suspended"),
        /** The job failed, and no attempt is left. */
        DEAD_LETTER("dead letter"),
        /** The row is gone: the job is done. */
        GONE("gone"),
        /**
         * The job failed, and the failure could not be recorded. Its lock stays until it expires. The
         * name is that of an execution that is under way: nodes then leave the lock.
         */
        UNRECORDED("running");

        private final String word;

        State(String word) {
            this.word = word;
        }

        /** Returns the name of this state in the answer. */
        public String word() {
            return word;
        }
    }

    /** Returns a job whose row is gone. */
    public static ExecutedJob gone() {
        return new ExecutedJob(State.GONE, null, null, null);
    }

    /**
     * Returns a job whose failure could not be recorded. The message of the failure is left out: it
     * may be too long for the answer, too.
     */
    public static ExecutedJob unrecorded(String id) {
        return new ExecutedJob(State.UNRECORDED, id, null, null);
    }

    /** Returns the fields of the answer. */
    Map<String, Object> fields() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("state", state.word());
        if (state == State.UNRECORDED) {
            fields.put("id", id);
        } else if (state != State.GONE) {
            fields.put("id", id);
            fields.put("retries", retries);
            fields.put("message", message);
        }
        return fields;
    }

    /** Returns the answer as JSON. */
    public String json() {
        return Json.of(fields());
    }
}
