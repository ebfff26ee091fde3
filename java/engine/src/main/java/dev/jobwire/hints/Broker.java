package dev.jobwire.hints;

import java.util.List;

/**
 * A connection to a broker. One thread uses it. It connects when it is used, and again after a
 * failure; it does not wait between two attempts.
 */
interface Broker {
    /** Connects, if no connection stands. */
    void connect() throws BrokerException, InterruptedException;

    /**
     * Publishes hints and waits for the confirms.
     *
     * @return the number of hints that no lane took: no node has received the lane yet
     * @throws BrokerException if the broker may not have all of them
     */
    int publish(List<Hint> hints) throws BrokerException, InterruptedException;

    /** Sends a control message to the nodes, best effort. */
    void tell(byte[] message) throws BrokerException, InterruptedException;

    /** Ends the connection. */
    void close();
}
