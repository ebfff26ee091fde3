package dev.jobwire.endpoint;

/**
 * Changes jobs of one engine for operators, in transactions of the engine. A job that becomes
 * executable as a new row gets its hint from the hook; Camunda's jobs keep their rows.
 */
public interface JobOperator {
    /**
     * Makes a timer or a dead letter executable now. Returns false if there is none of this id. May
     * fail if it is locked.
     *
     * @param retries the number of attempts of a dead letter
     */
    boolean retry(String job, int retries);

    /**
     * Deletes a job that is not locked. Returns false if there is none of this id, or fails if it is
     * locked.
     */
    boolean delete(String job);
}
