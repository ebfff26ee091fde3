package dev.jobwire.endpoint;

import dev.jobwire.Json;

/**
 * What became of a job that the endpoint ran: where its row is now.
 *
 * @param state the table of the row
 * @param id the id of the row; null if it is gone. An engine may give a job back under another id
 * @param retries the attempts that are left; null if the row is gone
 * @param message the message of the last failure; null without one
 */
public record ExecutedJob(State state, String id, Integer retries, String message) {
    /** The tables in which a job can be. */
    public enum State {
        /** It is executable: the engine gave it back. */
        JOB("job"),
        /** It is a timer: it failed, or repeats. */
        TIMER("timer"),
        /** It is suspended. */
        SUSPENDED("suspended"),
        /** It failed, and no attempt is left. */
        DEAD_LETTER("dead letter"),
        /** It is nowhere: it is done. */
        GONE("gone");

        private final String word;

        State(String word) {
            this.word = word;
        }

        /** Returns the word of the answer. */
        public String word() {
            return word;
        }
    }

    /** Returns a job whose row is gone. */
    public static ExecutedJob gone() {
        return new ExecutedJob(State.GONE, null, null, null);
    }

    /** Returns the answer as JSON. */
    public String json() {
        String state = "{\"state\":" + Json.quoted(this.state.word());
        if (this.state == State.GONE) {
            return state + "}";
        }
        return state
                + ",\"id\":" + Json.quoted(id)
                + ",\"retries\":" + retries
                + ",\"message\":" + Json.quoted(message) + "}";
    }
}
