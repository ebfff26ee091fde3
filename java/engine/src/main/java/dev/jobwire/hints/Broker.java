package dev.jobwire.hints;

import java.util.List;

/**
 * A connection to a broker, for use by one thread. It connects on use, and again after a failure,
 * without a pause between two attempts.
 */
interface Broker {
    /** Connects if there is no connection. */
    void connect() throws BrokerException, InterruptedException;

    /**
     * Publishes hints and waits for the confirms.
     *
     * @return the number of hints that were not published because no node has received their lane
     *     yet
     * @throws BrokerException if the broker did not confirm all hints
     */
    int publish(List<Hint> hints) throws BrokerException, InterruptedException;

    /** Sends a control message to the nodes, best effort. */
    void tell(byte[] message) throws BrokerException, InterruptedException;

    /** Ends the connection. */
    void close();
}
